"""No key of the lanes outlives their last item, however it leaves; then the queue is a plain one again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lua.space import NOW, Space, State, data_of, items_of, listed, new, picture
from tests.queue.keyspace import glob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


#: What each item of a lane carries: in two levels and two groups, so that there are several lanes.
OPTIONS: dict[str, dict[str, object]] = {
    "high": {"level": 3},
    "low": {"level": -2, "group": "g"},
    "one": {"group": "g"},
    "two": {"group": "g"},
    "odd\0": {"group": "ü*"},
}
IDS = [*OPTIONS]
#: The keys that the lanes of a queue have.
LANES = ("lanes", "levels", "turns:", "held", "promoted", "alarm", "lease:", "leased_by_session:", "options")


async def add(space: Space, **others: object) -> None:
    """Add an item of each kind."""
    rows = [
        (item_id, data_of(item_id), 0, "0:" + json.dumps({**options, **others}))
        for item_id, options in OPTIONS.items()
    ]
    assert await space.run("add_items", rows) == [1] * len(rows)


async def lease(space: Space, *, now_ms: int = NOW, lease_ms: int = 60_000) -> list[tuple[str, int]]:
    """Lease all items; return their ids and tokens."""
    reply = await space.run("lease_many", [(100, lease_ms)], now_ms=now_ms)
    return [(given.id, given.token) for given in items_of(reply)]


def lanes_in(state: State) -> State:
    """Return the keys of the lanes."""
    return {key: contents for key, contents in state.items() if key.startswith(LANES)}


async def leave_by_lease(space: Space) -> None:
    await add(space)
    given = await lease(space)
    assert await space.run("complete_many", [(*one, 0) for one in given]) == [1] * len(IDS)


async def leave_by_purge(space: Space) -> None:
    await add(space)
    assert (await space.run("purge_queue", source="lanes", count=100, purged=0))[2] == len(IDS)


async def leave_by_cancel(space: Space) -> None:
    await add(space)
    assert await space.run("cancel_many", [(item_id, 0) for item_id in IDS]) == [1] * len(IDS)


async def leave_by_cancel_one_by_one(space: Space) -> None:
    await add(space)
    for item_id in reversed(IDS):
        assert await space.run("cancel_many", [(item_id, 0)]) == [1]


async def leave_by_cancel_data(space: Space) -> None:
    await add(space)
    for item_id in IDS:
        reply = await space.run(
            "cancel_data", payload=data_of(item_id), keep_ms=0, state="laned", cursor="lanes", at_most=9
        )
        assert reply[2:] == [item_id.encode()]


async def leave_by_expiry(space: Space) -> None:
    await add(space, expires_in=1000)
    assert await lease(space, now_ms=NOW + 2000) == []
    await space.send("UNLINK", space.key("cancelled"))


async def leave_by_expiry_that_a_clean_finds(space: Space) -> None:
    await add(space, expires_in=1000)
    await space.run("fsck_entries", which="options", now_ms=NOW + 2000)
    await space.send("UNLINK", space.key("cancelled"))


async def leave_by_a_slow_worker(space: Space) -> None:
    """Each lease has expired, and the first holder still completes its item."""
    await add(space)
    given = await lease(space)
    await space.run("light_clean", now_ms=NOW + 70_000)
    assert await space.run("counts") == [len(IDS), 0, 0, 0]
    assert await space.run("complete_many", [(*one, 0) for one in given]) == [1] * len(IDS)


async def leave_by_a_foreign_completion(space: Space) -> None:
    """The data is gone; a clean finds what is left."""
    await add(space)
    await space.send("UNLINK", *(space.key(f"item:{item_id}") for item_id in IDS))
    await space.run("fsck_lanes", which="lanes")
    await space.run("fsck_entries", which="options")


async def leave_by_death(space: Space) -> None:
    await add(space)
    given = await lease(space)
    assert await space.run("fail_many", [(*one, -1, "why") for one in given]) == [1] * len(IDS)
    assert await space.run("requeue_many", [(item_id,) for item_id in IDS]) == [1] * len(IDS)
    given = await lease(space)
    assert await space.run("fail_many", [(*one, -1, "why") for one in given]) == [1] * len(IDS)
    assert await space.run("drop_many", [(item_id,) for item_id in IDS]) == [1] * len(IDS)


async def leave_by_move(space: Space, spots: tuple[str, ...] = ("lanes", "lower")) -> None:
    await add(space)
    other = Space(space.redis, f"{space.prefix}:other")
    for spot in spots:
        rows = [(item_id,) for item_id in IDS if spot == "ids"]
        await other.run("move_items", rows, source=space.prefix, spot=spot, left_out=0, count=100)
    found = await other.snapshot()
    assert {key for key in found if key.startswith("item:")} == {f"item:{item_id}" for item_id in IDS}
    keys = [key async for key in space.redis.scan_iter(match=glob(other.prefix) + b":*")]
    await space.send("UNLINK", *keys)


async def leave_by_move_of_ids(space: Space) -> None:
    await leave_by_move(space, ("ids",))


WAYS: list[Callable[[Space], Awaitable[None]]] = [
    leave_by_lease,
    leave_by_purge,
    leave_by_cancel,
    leave_by_cancel_one_by_one,
    leave_by_cancel_data,
    leave_by_expiry,
    leave_by_expiry_that_a_clean_finds,
    leave_by_a_slow_worker,
    leave_by_a_foreign_completion,
    leave_by_death,
    leave_by_move,
    leave_by_move_of_ids,
]


@pytest.mark.parametrize("leave", WAYS)
async def test_only_the_fence_is_left_and_other_clients_see_the_next_item(
    space: Space, leave: Callable[[Space], Awaitable[None]]
) -> None:
    await leave(space)
    state = await space.snapshot()
    assert set(state) <= {"fence"}
    assert await space.run("add_items", [new("plain")]) == [1]
    assert await space.snapshot() == picture(waiting=["plain"]) | state


#: Those that lease nothing: leasing takes what is held as well.
APART = [
    way
    for way in WAYS
    if way not in {leave_by_lease, leave_by_expiry, leave_by_a_slow_worker, leave_by_death}
]


@pytest.mark.parametrize("leave", APART)
async def test_what_is_held_returns_to_the_queue_with_the_last_item_of_a_lane(
    space: Space, leave: Callable[[Space], Awaitable[None]]
) -> None:
    await space.run("add_items", [("high", "", 0, '0:{"level":3}'), new("p1"), new("p2")])
    assert listed((await space.snapshot())["held"]) == ["p2", "p1"]
    assert await space.run("cancel_many", [("high", 0)]) == [1]
    await leave(space)
    state = await space.snapshot()
    assert listed(state["queue"]) == ["p2", "p1"]
    assert lanes_in(state) == {}


@pytest.mark.parametrize("leave", WAYS)
async def test_a_queue_with_limits_has_no_levels_and_turns_without_lanes(
    space: Space, leave: Callable[[Space], Awaitable[None]]
) -> None:
    await space.run("set_limits", [("concurrency/g", 50)])
    await leave(space)
    state = await space.snapshot()
    assert set(state) - {"fence"} == {"control"}
    assert await space.run("add_items", [new("plain")]) == [1]
    assert await lease(space) != []


@pytest.mark.parametrize("limits", [[], [("concurrency/*", 5)]])
async def test_what_is_cancelled_leaves_a_long_lane_from_its_middle(
    space: Space, limits: list[tuple[str, int]]
) -> None:
    if limits:
        await space.run("set_limits", limits)
    ids = [f"i{number}" for number in range(900)]
    assert sum(await space.run("add_items", [(one, "", 0, '0:{"group":"g"}') for one in ids])) == 900
    rest = ids[:1] + ids[-1:]
    await space.run("cancel_many", [(one, 0) for one in ids[1:-1]])
    lanes = (await space.snapshot())["lanes"]
    assert isinstance(lanes, dict)
    assert [member.rpartition("i")[2] for member in lanes] == ["0", "899"]
    await space.run("cancel_many", [(one, 0) for one in rest])
    assert set(await space.snapshot()) == ({"control"} if limits else set())
