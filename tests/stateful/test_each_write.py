"""Scripts that are stopped after each of their writes: at no moment is an item in no place.

Other tests stop scripts in drawn states, after drawn writes, and let the queue recover. Here
each script that moves items is stopped after each write, in a state that has what it moves: the new place is
written first, and the old one is left last.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.lua.space import ME, NOW, Call, Expiring, Held, Letter, Space, State, data_of, picture
from tests.stateful.interruption import Interrupter
from tests.stateful.recovery import View

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = pytest.mark.core

OPTIONS = '{"level":2,"group":"g","tags":["t"]}'
PLACE = "5000000000000000"
#: Two items in each state.
PLAIN: State = picture(
    waiting=["w1", "w2"],
    leased={"l1": Held(2), "l2": Held(3)},
    scheduled={"s1": NOW - 1.0, "s2": NOW + 9_000.0},
    dead={"d1": Letter(1), "d2": Letter(4)},
    fence=4,
) | {
    f"delivered:{ME}": Expiring("3 l2"),
    f"inbox:{ME}": ["i2", "i1"],
    **{f"item:{one}": data_of(one) for one in ("i1", "i2")},
    "sessions": {ME: NOW + 9_000.0, "lh:dead": NOW - 1.0},
    "inbox:lh:dead": ["i3"],
    "item:i3": data_of("i3"),
    "events:keep": {"last": "7", "count": "1000", "age_ms": "0", "live": ""},
}
#: The same in a queue with a limit, where items that wait and that are leased have a level and a group.
LANED: State = {key: contents for key, contents in PLAIN.items() if key != "queue"} | {
    "options": dict.fromkeys(["w1", "l1", "l2", "s1"], OPTIONS),
    "lanes": {f"48g\0{PLACE}w1": 0.0},
    "lease:w1": f"lh:waiting {PLACE}",
    "held": ["w2"],
    "tags": {f"t\0{one}": 0.0 for one in ("w1", "l1", "l2", "s1")},
    "levels": {"48": NOW - 1.0},
    "turns:48": {"g": NOW - 1.0},
    "control": {"concurrency/g": "5"},
    "running:g": {"l1": NOW + 60_000.0, "l2": NOW + 60_000.0},
}
#: The same, but the group gathers: the first of a batch has waited long enough, and another is leased.
BATCH = "batch:3:5000:g"
GATHERED: State = {
    key: contents for key, contents in LANED.items() if key not in ("control", "running:g")
} | {
    "options": dict.fromkeys(["w1", "l1", "l2", "s1"], OPTIONS.replace('"g"', f'"{BATCH}"')),
    "lanes": {f"48{BATCH}\0{(NOW - 9_000) * 1000:016}w1": 0.0},
    "lease:w1": f"lh:waiting {(NOW - 9_000) * 1000:016}",
    "turns:48": {BATCH: NOW - 1.0},
    f"running:{BATCH}": {"l1": NOW + 60_000.0, "l2": NOW + 60_000.0},
}
HELD = [("l1", 2), ("l2", 3)]
LATER = {"now_ms": NOW + 70_000}
CALLS = {
    "leave": Call("leave", arguments={"stays": 0}),
    "leave, and stay": Call("leave", arguments={"stays": 1}),
    "lease": Call("lease_many", [(9, 60_000)]),
    "lease what has expired": Call("lease_many", [(9, 60_000)], LATER),
    "lease a whole batch": Call("lease_many", [(1, 60_000)], {"whole": 1, **LATER}),
    "release": Call("release_many", [(*HELD[0], 0, 1), (*HELD[1], 0, 0)]),
    "release with a delay": Call("release_many", [(*one, 5_000, 0) for one in HELD]),
    "retry": Call("fail_many", [(*one, 0, "why") for one in HELD]),
    "retry later": Call("fail_many", [(*one, 5_000, "why") for one in HELD]),
    "die": Call("fail_many", [(*one, -1, "why") for one in HELD]),
    "requeue": Call("requeue_many", [("d1",), ("d2",)]),
    "promote": Call("promote", arguments={"item": "s1"}),
    "raise": Call("set_priority", arguments={"item": "w2", "new_level": 4}),
    "lower": Call("set_priority", arguments={"item": "w1", "new_level": 0}),
    "end leases": Call("end_leases", HELD),
    "recover": Call("recover", HELD, {"elapsed_ms": 0, "hold_ms": 60_000}),
    "clean": Call("light_clean", arguments=LATER),
    "fail a session": Call(
        "fail_session",
        [("l1",), ("l2",)],
        {"worker": ME, "expired": 1, "connections": "", "ends": 1, **LATER},
    ),
    "replace": Call("add_items", [("w1", "new", 0, 2), ("w2", "new", 0, f"2:{OPTIONS}")]),
    "replace and delay": Call("add_items", [("w1", "new", 900, 2), ("w2", "new", 900, 2)]),
    "add unique": Call("add_items", [(one, "new", 0, 1) for one in ("w1", "l1", "s2", "d1")]),
    "limit": Call("set_limits", [("concurrency", 1)]),
    "limit no more": Call("set_limits", [("concurrency/g", "")]),
    "wait": Call("register", arguments={"keep_ms": 9_000}),
    "emit": Call("emit_chunks", [(*one, "emitted", 9_000, 999, "chunk") for one in HELD]),
    "cancel others": Call("cancel_many", [("l1", 0), ("w1", 0)]),
    "complete others": Call("complete_many", [("l1", 2, 0)]),
}


def lost(view: View) -> set[str]:
    """Return the items that are in no place."""
    waiting = Counter(view.contents("queue") or []) + Counter(view.contents("held") or [])
    waiting.update(member.partition("\0")[2][16:] for member in view.zset("lanes"))
    for key in view.keys:
        if key.startswith("inbox:"):
            waiting.update(view.contents(key))
    items = {name for name, data in view.items.items() if isinstance(data, str)}
    return items - waiting.keys() - view.zset("deadlines").keys() - view.zset("scheduled").keys()


@pytest.mark.parametrize("state", [PLAIN, LANED, GATHERED], ids=["plain", "controlled", "gathered"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_an_item_is_in_a_place_after_each_write(
    redis: Redis, name: str, call: Call, state: State
) -> None:
    space = Space(redis, name)
    interrupter = Interrupter(space)
    existed = {key.removeprefix("item:") for key in state if key.startswith("item:")}
    existed |= {key.removeprefix("dead:") for key in state if key.startswith("dead:")}
    ended = (
        {str(next(iter(row))) for row in call.rows}
        if call.script in {"cancel_many", "complete_many"}
        else set()
    )
    run, count = None, 0
    while run is None or not run.ended:
        await space.send("FLUSHDB")
        await space.seed(state)
        run = await interrupter.run(call, count)
        view = View(await space.snapshot())
        commands = "\n".join(run.commands)
        assert lost(view) == set(), f"after {count} writes:\n{commands}"
        assert existed - ended <= view.items.keys() | view.dead.keys(), f"after {count} writes:\n{commands}"
        count += 1
        if call.script in {"lease_many", "recover"}:
            leased = {item_id for item_id, end in view.zset("deadlines").items() if end % 1 == 0}
            assert leased <= view.hash("ledger").keys(), f"a lease without a token:\n{commands}"
    assert count > 1, "it writes"


@pytest.mark.parametrize("state", [PLAIN, LANED], ids=["plain", "controlled"])
@pytest.mark.parametrize("row", ["l1 2 0:9000:result", "l2 3 1"])
async def test_a_completion_that_was_interrupted_has_decided_or_is_accepted_again(
    redis: Redis, name: str, row: str, state: State
) -> None:
    """Removing the data decides: before it the holder can complete the item, after it no one leases it."""
    space = Space(redis, name)
    interrupter = Interrupter(space)
    item_id, *_ = rows = row.split()
    run, count = None, 0
    while run is None or not run.ended:
        await space.send("FLUSHDB")
        await space.seed(state)
        run = await interrupter.run(Call("complete_many", [rows]), count)
        exists = await redis.exists(space.key(f"item:{item_id}"))
        assert await space.run("complete_many", [rows]) == [exists], run.commands
        assert not await redis.exists(space.key(f"item:{item_id}"))
        count += 1
    assert count > 1


async def test_a_queue_stays_marked_until_all_else_of_it_is_deleted(redis: Redis, name: str) -> None:
    space = Space(redis, name)
    interrupter = Interrupter(space)
    state: State = {"control": {"closed": "deleted 1"}, "errors": {"a": "why"}, "fence": "1", "queue": ["a"]}
    call = Call("delete_queue", [("errors",), ("queue",)], {"pattern": "*", "cursor": "", "count": 500})
    run, count = None, 0
    while run is None or not run.ended:
        await space.send("FLUSHDB")
        await space.seed(state)
        run = await interrupter.run(call, count)
        left = await space.snapshot()
        assert "control" in left or left.keys() == {"fence"}, run.commands
        count += 1
    assert (await space.snapshot()).keys() == {"fence"}
