"""Items with an expiry: discarded when a lease or a check meets them, unless a worker has begun with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import NOW, Space, leased
from tests.lua.test_item_options import row

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

pytestmark = pytest.mark.core

#: When the items of these tests have expired.
LATE = NOW + 500


async def add(space: Space, *item_ids: str, delay: int = 0, **options: Any) -> None:
    """Add items that expire after 500 ms."""
    await space.run("add_items", [row(one, delay=delay, expires_in=500, **options) for one in item_ids])


async def lease(space: Space, now_ms: int) -> list[str]:
    """Lease all items that can be leased; return their ids."""
    reply = await space.run("lease_many", [(9, 60_000)], now_ms=now_ms)
    return [one.decode() for one, *_ in leased(reply)]


@pytest.mark.parametrize("lanes", [{}, {"group": "g"}, {"level": 3}], ids=["plain", "group", "level"])
async def test_a_lease_discards_items_that_have_expired_and_takes_the_others(
    space: Space, lanes: dict[str, Any]
) -> None:
    await add(space, "a", "b", **lanes)
    await space.run("add_items", [row("c", **lanes)])
    assert await lease(space, LATE) == ["c"]
    left = {key for key in await space.snapshot() if ":a" in key or ":b" in key or key == "options"}
    assert left == ({"options"} if lanes else set())
    assert await space.run("counts") == [0, 1, 0, 0]


async def test_an_item_that_has_not_expired_is_leased(space: Space) -> None:
    await add(space, "a")
    assert await lease(space, LATE - 1) == ["a"]


async def test_an_item_that_a_worker_has_begun_with_is_retried_after_its_time(space: Space) -> None:
    await add(space, "failed", "expired")
    leased = await space.lease_all(2, lease_ms=100)
    await space.run("fail_many", [("failed", leased[0].token, 0, "why")])
    assert sorted(await lease(space, LATE)) == ["expired", "failed"]


async def test_an_item_that_was_released_without_an_attempt_expires(space: Space) -> None:
    await add(space, "a")
    [leased] = await space.lease_all(1)
    await space.run("release_many", [("a", leased.token, 0, 1)])
    assert await lease(space, LATE) == []
    assert "item:a" not in await space.snapshot()


async def test_an_item_that_a_foreign_client_holds_is_not_discarded(space: Space) -> None:
    await add(space, "a")
    await space.seed({"lease:a": "another session"})
    assert await lease(space, LATE) == []
    await space.run("fsck_entries", which="options", now_ms=LATE)
    assert "item:a" in await space.snapshot()


@pytest.mark.parametrize("delay", [0, 90_000])
@pytest.mark.parametrize("lanes", [{}, {"group": "g"}], ids=["plain", "group"])
async def test_a_check_of_the_options_discards_items_wherever_they_wait(
    space: Space, delay: int, lanes: dict[str, Any]
) -> None:
    await add(space, "a", "b", delay=delay, **lanes)
    await space.run("fsck_entries", which="options", now_ms=LATE - 1)
    assert {"item:a", "item:b"} <= (await space.snapshot()).keys()
    await space.run("fsck_entries", which="options", now_ms=LATE)
    assert await lease(space, LATE) == []
    assert (await space.snapshot()).keys() <= {"cancelled", "fence"}


async def test_those_who_wait_are_told_that_an_item_has_expired(space: Space, channel: PubSub) -> None:
    await add(space, "a", "b")
    await space.run("await_results", [("a",)], keep_ms=60_000)
    await lease(space, LATE)
    message = await channel.get_message(ignore_subscribe_messages=True, timeout=120)
    assert message is not None
    assert message["data"] == b"expired a"
    asked = [("a",), ("b",), ("c",)]
    assert await space.run("await_results", asked, keep_ms=60_000, now_ms=LATE) == [4, b"", 4, b"", -1, b""]
    much_later = LATE + 3_600_001
    assert (await space.run("await_results", asked[:1], keep_ms=1, now_ms=much_later))[0] == -1


async def test_an_id_that_is_added_again_has_not_expired(space: Space) -> None:
    await add(space, "a")
    assert await lease(space, LATE) == []
    await space.run("add_items", [row("a")], now_ms=LATE)
    assert await lease(space, LATE) == ["a"]
    token = (await space.snapshot())["fence"]
    await space.run("complete_many", [("a", token, 0)], now_ms=LATE)
    assert (await space.run("await_results", [("a",)], keep_ms=1, now_ms=LATE))[0] == -1


async def test_discarding_is_an_event(space: Space) -> None:
    await space.run("events_keep", count=100)
    await add(space, "a", "b")
    await lease(space, LATE)
    events = [one for one in await space.run("events_read", after="0") if isinstance(one, list)]
    kinds = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in events]
    assert [(one[b"what"], one[b"id"]) for one in kinds[2:]] == [(b"discarded", b"a"), (b"discarded", b"b")]
    assert kinds[2][b"details"] == b'{"reason":"expired"}'


async def test_as_many_items_expire_as_a_lease_can_check(space: Space) -> None:
    for at in range(0, 1200, 400):
        await add(space, *(f"{n}" for n in range(at, at + 400)))
    await space.run("add_items", [row("last")])
    replies = [await space.run("lease_many", [(1, 60_000)], now_ms=LATE) for _ in range(2)]
    assert [(reply[1] == 0, len(reply) > 3) for reply in replies] == [(True, False), (False, True)]
