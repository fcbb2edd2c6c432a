"""Any one key of a busy controlled queue is deleted: after one cycle of cleaning all rules hold again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue
from tests.lua.space import NOW, Expiring, Space, State, items_of, leased
from tests.stateful.corruption import violations
from tests.stateful.recovery import View

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

pytestmark = [pytest.mark.core]

#: Keys whose loss loses items: nothing but them knows the data, or that an id is a dead letter.
DATA = ("item:", "dead:")
#: What an empty queue may still have: limits, dead letters, a process that waits.
KEPT = {"fence", "control", "dead", "sessions", "promoted"}


@pytest.fixture
def space(redis: Redis, name: str) -> Space:
    """Give the keys of the queue."""
    return Space(redis, name)


class Stage:
    """A queue whose clock the test moves."""

    now = NOW


@pytest.fixture
async def queue(redis_url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    Stage.now = NOW
    async with AsyncWorkQueue.from_url(redis_url, name, clock=lambda: Stage.now / 1000) as queue:
        yield queue


async def furnish(space: Space) -> State:
    """Bring a queue with limits into a state with items in all places; return its keys."""
    limits = [("concurrency/*", 3), ("concurrency", 50), ("rate/h", "1000:9")]
    await space.run("set_limits", limits)
    rows: list[tuple[object, ...]] = [
        (f"{group}{number}", "data", 0, "0:" + json.dumps({"group": group, "level": number % 2}))
        for number in range(6)
        for group in "gh"
    ]
    rows += [(f"p{number}", "data", 0, 0) for number in range(6)]
    rows += [("late", "data", 5_000, '0:{"group":"g"}'), ("old", "data", 0, '0:{"expires_in":9000}')]
    rows += [("window", "data", 0, '0:{"dedupe":60000}'), ("cancelled", "data", 0, 0)]
    assert await space.run("add_items", rows) == [1] * len(rows)
    given = items_of(await space.run("lease_many", [(9, 60_000)]))
    dying, retried, *_ = given
    assert await space.run("fail_many", [(dying.id, dying.token, -1, "why")]) == [1]
    assert await space.run("fail_many", [(retried.id, retried.token, 4_000, "why")]) == [1]
    assert await space.run("progress", [(given[2].id, given[2].token, '"half"')]) == [1]
    await space.run("cancel_many", [("cancelled", 60_000)])
    await space.run("register", session="lh:asleep", keep_ms=60_000)
    state = await space.snapshot()
    assert {
        "lanes",
        "held",
        "levels",
        "turns:49",
        "running:g",
        "running:h",
        "promoted",
        "queue",
    } < state.keys()
    return state


async def lease(space: Space) -> list[tuple[bytes, int, int]]:
    """Lease what can be leased; return rows that complete it."""
    reply = await space.run("lease_many", [(100, 60_000)], now_ms=Stage.now)
    return [(item_id, token, 0) for item_id, _, token, _ in leased(reply)]


async def drain(space: Space, queue: AsyncWorkQueue, lost: str) -> None:
    """Complete what is leased, then all that can be leased, as the clock moves."""
    for _ in range(3):
        ledger = View(await space.snapshot()).hash("ledger")
        held = [(item_id, int(entry.split()[1]), 0) for item_id, entry in ledger.items()]
        if held:
            await space.run("complete_many", held, now_ms=Stage.now)
        Stage.now += 10_000  # less than the leases last: a slot that is lost, or an index, would be seen
        while rows := await lease(space):
            assert await space.run("complete_many", rows, now_ms=Stage.now) == [1] * len(rows)
    items = {key for key in await space.snapshot() if key.startswith("item:")}
    assert not items or lost == "scheduled", items
    Stage.now += 700_000  # of a delay that was lost its lease key says how long it lasts: see `space.LONG`
    await queue.light_clean()
    while rows := await lease(space):
        assert await space.run("complete_many", rows, now_ms=Stage.now) == [1] * len(rows)
    await queue.admin.fsck()


def keys_of(state: State) -> list[str]:
    return sorted(key for key in state if not key.startswith(DATA))


@pytest.mark.parametrize("way", ["fsck", "cleans"])
async def test_all_rules_hold_again_after_any_key_was_lost(
    space: Space, queue: AsyncWorkQueue, way: str
) -> None:
    state = await furnish(space)
    assert (await queue.admin.fsck()).findings == (), "a healthy queue"
    wrong: dict[str, object] = {}
    for lost in keys_of(state):
        Stage.now = NOW + 1  # what was leased before is older than the cleaning
        await space.send("FLUSHDB")
        await space.seed({key: contents for key, contents in state.items() if key != lost})
        if way == "fsck":
            await queue.admin.fsck()
        else:
            await queue.light_clean()
            await queue.deep_clean()
        problems: list[object] = [*violations(View(await space.snapshot()), NOW, waits=way != "fsck")]
        problems += [(await queue.admin.fsck()).findings] if way == "fsck" else []
        await drain(space, queue, lost)
        left = await space.snapshot()
        kept = {*KEPT, "rates"} if "control" in left else KEPT
        lasting = {key for key, contents in left.items() if not isinstance(contents, Expiring)}
        problems += [key for key in lasting if key not in kept and not key.startswith("dead:")]
        if problems := [one for one in problems if one != ()]:
            wrong[lost] = problems
    assert wrong == {}
