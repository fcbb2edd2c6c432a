"""fail_many: an item is retried or becomes a dead letter, for the current holder only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.lua.space import NOW, Held, Letter, Space, State, picture
from tests.lua.test_renew_and_release import EXPIRED, LEASED, THIRD

if TYPE_CHECKING:
    from tests.conftest import MakeServer

pytestmark = pytest.mark.core

DIED = Letter(5, attempt=3)
WAYS = pytest.mark.parametrize(
    ("delay", "after"),
    [
        pytest.param(0, picture(waiting=["w", "v", "a"], past={"a": THIRD}, fence=5), id="at once"),
        pytest.param(
            9_000,
            picture(waiting=["w", "v"], scheduled={"a": NOW + 9_000}, past={"a": THIRD}, fence=5),
            id="later",
        ),
        pytest.param(-1, picture(waiting=["w", "v"], dead={"a": DIED}, fence=5), id="never"),
    ],
)


@pytest.mark.parametrize("before", [LEASED, EXPIRED], ids=["leased", "expired"])
@WAYS
@pytest.mark.seed("RWQ-T5", "GLD-G4")
async def test_a_failed_item_is_retried_or_dies(
    space: Space, before: State, delay: int, after: State
) -> None:
    """The attempt counts; the second of two equal rows is rejected."""
    after = after if delay < 0 else after | {"errors": {"a": "an error"}}
    assert await space.apply(before, "fail_many", [("a", 5, delay, "an error")]) == ([1], after)
    assert await space.run("fail_many", [("a", 5, delay, "another error")]) == [0]
    assert await space.snapshot() == after


async def test_rows_of_every_kind_share_a_call(space: Space) -> None:
    leases = {"a": Held(1), "b": Held(2), "c": Held(3), "d": Held(4)}
    await space.seed(picture(waiting=["w"], leased=leases, fence=4))
    rows = [("a", 1, 0, ""), ("b", 2, 5_000, ""), ("c", 3, -1, "why"), ("d", 9, -1, ""), ("c", 3, 0, "")]
    assert await space.run("fail_many", rows) == [1, 1, 1, 0, 0]
    assert await space.snapshot() == picture(
        waiting=["w", "a"],
        leased={"d": Held(4)},
        scheduled={"b": NOW + 5_000},
        past={"a": Held(1), "b": Held(2)},
        dead={"c": Letter(3, error="why")},
        fence=4,
    )


async def test_a_retried_item_keeps_its_history(space: Space) -> None:
    await space.seed(LEASED)
    await space.run("fail_many", [("a", 5, 0, "")])
    reply = await space.run("lease_many", [(3, 60_000)])
    assert reply[-4:] == [b"a", b"data of a", 8, 4]
    assert await space.run("complete_many", [("a", 3, 0)]) == [1], "the first holder may still be first"


async def test_a_dead_letter_replaces_an_older_one_of_its_id(space: Space) -> None:
    old: State = {"dead:a": {"data": "old", "error": "old", "more": "old"}, "dead": {"a": 5.0, "b": 6.0}}
    await space.seed(LEASED | old)
    assert await space.run("fail_many", [("a", 5, -1, "an error")]) == [1]
    after = picture(waiting=["w", "v"], dead={"a": DIED}, fence=5)
    assert await space.snapshot() == after | {"dead": {"a": float(NOW), "b": 6.0}}


@pytest.mark.parametrize("wrong", ["a string", ["a list"]])
async def test_a_dead_letter_replaces_a_key_of_another_type(space: Space, wrong: str | list[str]) -> None:
    await space.seed(LEASED | {"dead:a": wrong})
    assert await space.run("fail_many", [("a", 5, -1, "an error")]) == [1]
    assert await space.snapshot() == picture(waiting=["w", "v"], dead={"a": DIED}, fence=5)


async def test_a_long_processing_list_is_not_searched_for_the_dead(space: Space) -> None:
    many = {f"i{n}": Held(n) for n in range(1, 301)}
    await space.seed(picture(leased=many, fence=300))
    assert await space.run("fail_many", [("i300", 300, -1, "an error")]) == [1]
    found = await space.snapshot()
    assert found["gone"] == {"i300": NOW}
    assert found["dead"] == {"i300": float(NOW)}


async def test_a_server_without_room_lets_failed_items_go(make_server: MakeServer, name: str) -> None:
    """The first write needs no memory, so the server accepts the others."""
    own = await make_server()
    async with Redis.from_url(own.url) as client:
        space = Space(client, name)
        await space.seed(picture(leased={"a": Held(1), "b": Held(2), "c": Held(3)}, fence=3))
        await client.config_set("maxmemory", "1")
        rows = [("a", 1, -1, "an error"), ("b", 2, 0, ""), ("c", 3, 9_000, "")]
        assert await space.run("fail_many", rows) == [1, 1, 1]
        after = picture(
            waiting=["b"],
            scheduled={"c": NOW + 9_000},
            past={"b": Held(2), "c": Held(3)},
            dead={"a": Letter(1)},
            fence=3,
        )
        with pytest.raises(ResponseError, match="used memory > 'maxmemory'"):
            await space.run("requeue_many", [("a",)])
        await client.config_set("maxmemory", "0")  # older servers refuse the transaction of a snapshot, too
        assert await space.snapshot() == after, "a retry needs memory"
        await client.config_set("maxmemory", "1")
        assert await space.run("drop_old") == 1
