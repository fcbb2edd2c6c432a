"""renew_many, release_many, replace_data and fail_many: accepted from the current holder only."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.lua.space import ME, NOW, Held, Letter, Space, State, picture

if TYPE_CHECKING:
    from tests.conftest import MakeServer


THIRD = Held(5, first=3, attempt=3, ends=NOW + 10)
#: Its ledger after it was released.
BACK = replace(THIRD, attempt=2)
LEASED = picture(waiting=["w", "v"], leased={"a": THIRD}, fence=5)
EXPIRED = picture(waiting=["w", "v"], leased={"a": Held(5, first=3, attempt=3, ends=NOW - 10)}, fence=5)
WITHOUT_DATA = {key: contents for key, contents in LEASED.items() if key != "item:a"}

NOT_THE_HOLDER = pytest.mark.parametrize(
    ("before", "token"),
    [
        pytest.param(LEASED, 4, id="an earlier holder"),
        pytest.param(LEASED, 2, id="an earlier incarnation"),
        pytest.param(LEASED, 6, id="a token that does not exist yet"),
        pytest.param(picture(waiting=["a"], past={"a": THIRD}, fence=5), 5, id="returned"),
        pytest.param(picture(scheduled={"a": NOW + 9}, past={"a": THIRD}, fence=5), 5, id="scheduled"),
        pytest.param(picture(waiting=["a"], fence=5), 5, id="added again"),
        pytest.param(WITHOUT_DATA, 5, id="completed by a foreign client"),
        pytest.param(picture(fence=5), 5, id="completed"),
    ],
)


@pytest.mark.parametrize("before", [LEASED, EXPIRED], ids=["leased", "expired"])
@pytest.mark.seed("RWQ-T9")
async def test_the_holder_gets_more_time_counted_from_now(space: Space, before: State) -> None:
    """Also when the lease has expired, until it is reclaimed."""
    await space.seed(before)
    assert await space.run("renew_many", [("a", 5, 90_000)]) == [NOW + 90_000]
    renewed = Held(5, first=3, attempt=3, ends=NOW + 90_000)
    assert await space.snapshot() == picture(waiting=["w", "v"], leased={"a": renewed}, fence=5)
    assert 80_000 < await space.redis.pttl(space.key("lease:a")) <= 90_000


async def test_a_renewal_can_shorten_a_lease(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(1, ends=NOW + 500_000)}, fence=1))
    assert await space.run("renew_many", [("a", 1, 70_000)]) == [NOW + 70_000]
    assert await space.snapshot() == picture(leased={"a": Held(1, ends=NOW + 70_000)}, fence=1)


async def test_renewing_writes_the_lease_keys_again(space: Space) -> None:
    before = dict(LEASED)
    del before["lease:a"], before["leased_by_session:a"]
    await space.seed(before)
    assert await space.run("renew_many", [("a", 5, 70_000)]) == [NOW + 70_000]
    renewed = Held(5, first=3, attempt=3, ends=NOW + 70_000, by=ME)
    assert await space.snapshot() == picture(waiting=["w", "v"], leased={"a": renewed}, fence=5)


@NOT_THE_HOLDER
@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("renew_many", [90_000]),
        ("release_many", [0, 1]),
        ("replace_data", ["new"]),
        *(("fail_many", [delay, "an error"]) for delay in (-1, 0, 9_000)),
    ],
)
@pytest.mark.seed("RWQ-G11", "GLD-B12")
async def test_only_the_current_holder_can_renew_release_fail_or_replace_data(
    space: Space, before: State, token: int, script: str, values: list[object]
) -> None:
    assert await space.apply(before, script, [("a", token, *values)]) == ([0], before)


@pytest.mark.parametrize("before", [LEASED, EXPIRED], ids=["leased", "expired"])
async def test_the_holder_replaces_the_data_and_nothing_else(space: Space, before: State) -> None:
    await space.seed(before)
    assert await space.run("replace_data", [("x", 5, "none"), ("a", 5, "new"), ("a", 4, "old")]) == [0, 1, 0]
    assert await space.snapshot() == before | {"item:a": "new"}


async def test_each_row_of_a_renewal_has_its_answer_and_lease_time(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(1), "b": Held(2), "c": Held(3)}, fence=3))
    rows = [("c", 3, 70_000), ("b", 1, 80_000), ("x", 2, 80_000), ("a", 1, 90_000)]
    assert await space.run("renew_many", rows) == [NOW + 70_000, 0, 0, NOW + 90_000]
    renewed = {"a": Held(1, ends=NOW + 90_000), "b": Held(2), "c": Held(3, ends=NOW + 70_000)}
    assert await space.snapshot() == picture(leased=renewed, fence=3)


@pytest.mark.parametrize("before", [LEASED, EXPIRED], ids=["leased", "expired"])
@pytest.mark.parametrize(
    ("delay", "front", "after"),
    [
        (0, 1, picture(waiting=["a", "w", "v"], past={"a": BACK}, fence=5)),
        (0, 0, picture(waiting=["w", "v", "a"], past={"a": BACK}, fence=5)),
        (9_000, 0, picture(waiting=["w", "v"], scheduled={"a": NOW + 9_000}, past={"a": BACK}, fence=5)),
        (9_000, 1, picture(waiting=["w", "v"], scheduled={"a": NOW + 9_000}, past={"a": BACK}, fence=5)),
    ],
    ids=["to the front", "to the end", "delayed", "delayed, front or not"],
)
@pytest.mark.seed("RWQ-T5")
async def test_the_holder_releases_the_item(
    space: Space, before: State, delay: int, front: int, after: State
) -> None:
    assert await space.apply(before, "release_many", [("a", 5, delay, front)]) == ([1], after)
    assert await space.run("release_many", [("a", 5, delay, front)]) == [0], "once"
    assert await space.snapshot() == after


@pytest.mark.parametrize(("front", "order"), [(1, "cabwv"), (0, "wvcab")])
@pytest.mark.seed("WRQ-O5", "WRQ-B3")
async def test_many_keep_the_order_of_their_rows_at_either_end(space: Space, front: int, order: str) -> None:
    leases = {"a": Held(1), "b": Held(2), "c": Held(3)}
    await space.seed(picture(waiting=["w", "v"], leased=leases, fence=3))
    rows = [(item_id, leases[item_id].token, 0, front) for item_id in "cab"]
    assert await space.run("release_many", rows) == [1, 1, 1]
    past = {item_id: released(held) for item_id, held in leases.items()}
    assert await space.snapshot() == picture(waiting=[*order], past=past, fence=3)


async def test_rows_of_every_kind_share_a_call(space: Space) -> None:
    leases = {"a": Held(1), "b": Held(2), "c": Held(3), "d": Held(4)}
    await space.seed(picture(waiting=["w"], leased=leases, fence=4))
    rows = [("a", 1, 0, 0), ("b", 2, 5_000, 0), ("c", 3, 0, 1), ("d", 9, 0, 1), ("a", 1, 0, 1)]
    assert await space.run("release_many", rows) == [1, 1, 1, 0, 0]
    past = {item_id: released(leases[item_id]) for item_id in "abc"}
    assert await space.snapshot() == picture(
        waiting=["c", "w", "a"], leased={"d": Held(4)}, scheduled={"b": NOW + 5_000}, past=past, fence=4
    )


def released(held: Held) -> Held:
    return replace(held, attempt=held.attempt - 1)


async def test_attempts_that_are_not_counted_never_fall_below_none(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(5, attempt=0)}, fence=5))
    assert await space.run("release_many", [("a", 5, 0, 1)]) == [1]
    assert await space.snapshot() == picture(waiting=["a"], past={"a": Held(5, attempt=0)}, fence=5)


async def test_a_released_item_keeps_its_history(space: Space) -> None:
    await space.seed(LEASED)
    await space.run("release_many", [("a", 5, 0, 1)])
    reply = await space.run("lease_many", [(1, 60_000)])
    assert reply[3:] == [b"a", b"data of a", 6, 3]
    assert await space.run("complete_many", [("a", 3, 0)]) == [1], "the first holder may still be first"


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


async def test_failures_of_every_kind_share_a_call(space: Space) -> None:
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
