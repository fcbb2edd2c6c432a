"""Calls with as many rows as allowed, and queues far larger than the part that one call may read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from leasequeue import LimitExceeded
from leasequeue.keys import QueueKeys
from leasequeue.queue.cleaning import CHECKED
from leasequeue.wire.scripts import load
from leasequeue.wire.server_errors import translate
from tests.lua.space import ME, NOW, Call, Held, Letter, Space, State, items_of, new, picture
from tests.lua.test_wrong_types import call_of

if TYPE_CHECKING:
    from leasequeue.wire.scripts import Script


ROWS = 1_000
#: How many items `lease_many` leases in a call.
LEASED_ROWS = 250
IDS = [f"i{n}" for n in range(ROWS)]
LEASES = {item_id: Held(n) for n, item_id in enumerate(IDS, 1)}
LEASED = picture(leased=LEASES, fence=ROWS)
WAITING = picture(waiting=IDS)
DUE = dict.fromkeys(IDS, NOW + 60_000)
SCHEDULED = picture(scheduled=DUE)
RENEWED = picture(leased={i: Held(n, ends=NOW + 90_000) for n, i in enumerate(IDS, 1)}, fence=ROWS)
RELEASED = picture(waiting=IDS, past={i: Held(n, attempt=0) for n, i in enumerate(IDS, 1)}, fence=ROWS)
DEAD = picture(dead={item_id: Letter(n) for n, item_id in enumerate(IDS, 1)}, fence=ROWS)
EACH = [(item_id,) for item_id in IDS]


def held(*values: object) -> list[tuple[object, ...]]:
    """Return a row for each leased item: its id, its token, and these values."""
    return [(item_id, lease.token, *values) for item_id, lease in LEASES.items()]


#: Calls with as many rows as allowed: the keys before, the call, the answer to each row, and the keys after.
FULL: dict[str, tuple[State, Call, object, State]] = {
    "added": ({}, Call("add_items", [new(item_id) for item_id in IDS]), 1, picture(waiting=IDS)),
    "added again": (LEASED, Call("add_items", [new(item_id) for item_id in IDS]), 0, LEASED),
    "replaced": (
        LEASED,
        Call("add_items", [new(item_id, unique=True) for item_id in IDS]),
        1,
        picture(waiting=IDS, fence=ROWS),
    ),
    "delayed": ({}, Call("add_items", [new(item_id, delay=60_000) for item_id in IDS]), 1, SCHEDULED),
    "completed": (LEASED, Call("complete_many", held(0)), 1, picture(fence=ROWS)),
    "renewed": (LEASED, Call("renew_many", held(90_000)), NOW + 90_000, RENEWED),
    "released": (LEASED, Call("release_many", held(0, 0)), 1, RELEASED),
    "released to the front": (LEASED, Call("release_many", held(0, 1)), 1, RELEASED),
    "failed for good": (LEASED, Call("fail_many", held(-1, "an error")), 1, DEAD),
    "retried": (LEASED, Call("fail_many", held(0, "")), 1, picture(waiting=IDS, past=LEASES, fence=ROWS)),
    "retried later": (
        LEASED,
        Call("fail_many", held(60_000, "")),
        1,
        picture(scheduled=DUE, past=LEASES, fence=ROWS),
    ),
    "requeued": (DEAD, Call("requeue_many", EACH), 1, picture(waiting=IDS, fence=ROWS)),
    "not requeued, as their ids exist": (DEAD | WAITING, Call("requeue_many", EACH), -1, DEAD | WAITING),
    "dropped": (DEAD, Call("drop_many", EACH), 1, picture(fence=ROWS)),
}


@pytest.mark.parametrize(
    "script",
    [script for script in load().values() if {"count", "rest"} & {*script.arguments.values()}],
    ids=lambda script: script.name,
)
async def test_a_call_over_the_limit_is_refused_and_changes_nothing(space: Space, script: Script) -> None:
    few = {item_id: LEASES[item_id] for item_id in IDS[:3]}
    await space.seed(picture(leased=few, fence=3) | {"sessions": {"lh:dead": NOW - 1.0}})
    before = await space.snapshot()
    calls = [call_of(script.name, number) for number in range(9)]
    rows = next((rows for one in calls if (rows := [*one.rows])), [])
    count = "count" in script.arguments.values()
    for given in (
        (rows, {"count": ROWS + 1}) if count else None,
        (rows[:1] * (ROWS + 1), {}) if rows else None,
    ):
        if given:
            with pytest.raises(ResponseError) as refused:
                await space.run(
                    script.name, given[0], **{**calls[0].arguments, "state": "leased", **given[1]}
                )
            assert isinstance(translate(refused.value, maybe_applied=False), LimitExceeded)
    assert await space.snapshot() == before


async def test_a_lease_of_more_items_than_allowed_is_refused_and_changes_nothing(space: Space) -> None:
    await space.seed(WAITING)
    with pytest.raises(ResponseError, match="LIMIT"):
        await space.run("lease_many", [(ROWS, 60_000), (1, 60_000)])
    assert await space.snapshot() == WAITING


@pytest.mark.parametrize(("before", "call", "answer", "after"), FULL.values(), ids=FULL.keys())
async def test_1000_items_are_handled_in_a_call(
    space: Space, before: State, call: Call, answer: object, after: State
) -> None:
    assert await space.apply(before, call.script, call.rows) == ([answer] * ROWS, after)


@pytest.mark.parametrize("asked", [LEASED_ROWS, LEASED_ROWS + 1, ROWS])
async def test_250_items_are_leased_in_a_call_however_many_are_asked_for(space: Space, asked: int) -> None:
    """More would take the server over 5 ms. The reply says whether to ask for the others."""
    await space.seed(WAITING)
    reply = await space.run("lease_many", [(asked, 60_000)])
    assert [given.id for given in items_of(reply)] == IDS[:LEASED_ROWS]
    assert reply[1] == (-1 if asked == LEASED_ROWS else 0)
    leases = dict([*LEASES.items()][:LEASED_ROWS])
    assert await space.snapshot() == picture(waiting=IDS[LEASED_ROWS:], leased=leases, fence=LEASED_ROWS)


async def test_the_first_of_1000_requests_are_served_in_a_call(space: Space) -> None:
    await space.seed(WAITING)
    wants = [(1, 60_000 + n) for n in range(ROWS)]
    first = IDS[:LEASED_ROWS]
    assert [given.id for given in items_of(await space.run("lease_many", wants))] == first
    leases = {item_id: Held(n, ends=NOW + 59_999 + n) for n, item_id in enumerate(first, 1)}
    assert await space.snapshot() == picture(waiting=IDS[LEASED_ROWS:], leased=leases, fence=LEASED_ROWS)


async def test_1000_results_are_kept_and_read_in_a_call(space: Space) -> None:
    await space.seed(LEASED)
    rows = [(item_id, lease.token, f"0:60000:done {item_id}") for item_id, lease in LEASES.items()]
    assert await space.run("complete_many", rows) == [1] * ROWS
    results = await space.run("result", EACH)
    assert results == [f"done {item_id}".encode() for item_id in IDS]


async def test_1000_schedules_are_returned_ticked_and_dropped_in_a_call(space: Space) -> None:
    definition = "1 once every 1000 -"
    drawn: State = {"schedules": dict.fromkeys(IDS, definition), "ticks": dict.fromkeys(IDS, float(NOW))}
    await space.seed(drawn | {f"schedule:{name}": "data" for name in IDS})
    assert {name.decode() for name in (await space.run("schedules", cursor="0", count=ROWS))[1::5]} <= {*IDS}
    assert {name.decode() for name in (await space.run("ticks_due", count=ROWS))[2::3]} == {*IDS}
    rows = [(name, definition, NOW, f"{name}@1", NOW + 1000) for name in IDS]
    assert await space.run("tick", rows) == [1] * ROWS
    assert await space.run("ticks_due", count=ROWS) == [NOW, 1000]
    assert await space.run("counts") == [ROWS, 0, 0, 0]
    assert await space.run("schedule_drop", EACH) == [1] * ROWS
    left = picture(waiting=[f"{name}@1" for name in IDS])
    assert await space.snapshot() == left | {key: "data" for key in left if key.startswith("item:")}


async def test_1000_orphans_are_restored_in_a_call(space: Space) -> None:
    await space.seed({key: data for key, data in picture(waiting=IDS).items() if key != "queue"})
    assert (await space.run("deep_clean_restore", [IDS], started_ms=NOW))[0] == ROWS
    assert await space.snapshot() == picture(waiting=IDS)


async def test_a_light_clean_checks_1000_entries_in_a_call(space: Space) -> None:
    await space.seed(LEASED | {"processing": [*reversed(IDS), *(f"ghost{n}" for n in range(ROWS))]})
    assert (await space.run("light_clean", count=ROWS))[:5] == [ROWS, 0, ROWS, 0, 0]
    assert await space.snapshot() == LEASED


@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.seed("GLD-G3", "GLD-T1")
async def test_every_script_works_on_a_large_queue(space: Space, many: int) -> None:
    """Every key has as many members: Lua can unpack about 8,000 values."""
    ids = [f"i{n}" for n in range(many)]
    async with space.redis.pipeline(transaction=False) as pipe:
        for start in range(0, many, 5_000):
            piece = ids[start : start + 5_000]
            pipe.lpush(space.key("queue"), *(f"w{item_id}" for item_id in piece))
            pipe.lpush(space.key("processing"), *(f"p{item_id}" for item_id in piece), *piece)
            pipe.zadd(space.key("gone"), dict.fromkeys(piece, NOW - 1))
            pipe.zadd(space.key("deadlines"), {f"p{item_id}": NOW - 1 for item_id in piece})
            pipe.zadd(space.key("scheduled"), {f"s{item_id}": NOW - 1 for item_id in piece})
            pipe.zadd(space.key("dead"), {f"d{item_id}": NOW - 1 for item_id in piece})
            pipe.hset(space.key("schedules"), mapping=dict.fromkeys(piece, "1 once every 1 -"))
            pipe.zadd(space.key("ticks"), dict.fromkeys(piece, NOW - 1))
            pipe.zadd(space.key("sessions"), {f"lh:{item_id}": NOW - 1 for item_id in piece})
            pipe.hset(space.key("ledger"), mapping={f"p{item_id}": "1 1 1 1" for item_id in piece})
            if start == 0:  # as many as the scripts below use
                pipe.mset({space.key(f"item:{kind}{item_id}"): "x" for kind in "wps" for item_id in piece})
        pipe.set(space.key("fence"), 1)
        await pipe.execute()

    assert await space.run("counts") == [many, many, many, many]
    first = await space.lease_all(ROWS)
    assert [given.id for given in first] == [f"wi{n}" for n in range(ROWS)]
    rows = [(given.id, given.token, 0) for given in first]
    assert await space.run("complete_many", rows[:500]) == [1] * 500
    assert await space.run("release_many", [(*row, 1) for row in rows[500:700]]) == [1] * 200
    assert await space.run("fail_many", [(*row[:2], -1, "") for row in rows[700:]]) == [1] * 300
    assert len(await space.run("dead_list", start=-ROWS, count=ROWS)) == 7 * ROWS
    assert (await space.run("requeue_many", [[given.id for given in first[700:]]])) == [1] * 300
    assert await space.run("drop_old", count=ROWS) == ROWS
    assert (await space.run("light_clean", count=ROWS))[4] == 1
    assert len(await space.run("deep_clean_walk", start=0, count=ROWS)) == ROWS
    assert len(await space.run("ticks_due", start=many - ROWS, count=ROWS)) == 2 + 3 * ROWS
    assert len(await space.run("schedules", cursor="0", count=ROWS)) >= 1 + 5 * ROWS
    due = [(item_id, "1 once every 1 -", NOW - 1, f"t{item_id}", NOW) for item_id in ids[:ROWS]]
    assert await space.run("tick", due) == [1] * ROWS
    pattern = QueueKeys(space.prefix, ME).data_pattern
    assert len(await space.run("deep_clean_scan", cursor="0", pattern=pattern, count=ROWS)) > 2
    for which, script in CHECKED.items():
        await space.run(script, which=which, count=ROWS)
    assert (await space.run("fsck_queue", which="queue", start=0, count=ROWS))[0] == ROWS
    for state in ("waiting", "leased", "scheduled"):
        assert len(await space.run("inspect", state=state, start=-ROWS, count=ROWS)) == 1 + 11 * ROWS
    assert (await space.run("add_items", [new(item_id) for item_id in ids[:ROWS]])) == [1] * ROWS
