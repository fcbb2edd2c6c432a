"""Each problem is found, repaired and reported, and nothing else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.errors import WrongKeyType
from leasequeue.queue.findings import Problem
from tests.lua.space import ME, NOW, Expiring, Held, Letter, Space, State, data_of, lease_keys, picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


DEFINITION = "1 once every 60000 -"
SOON = NOW + 600_000.0
#: A queue on which all keys agree.
RIGHT: State = picture(
    waiting=["w1", "w2"],
    leased={"held": Held(3, at=NOW - 1), "other": Held(5, at=NOW - 1)},
    scheduled={"later": SOON},
    past={"w1": Held(2, at=NOW - 1)},
    dead={"d1": Letter(1, at=NOW - 9), "d2": Letter(4)},
    fence=5,
) | {
    "errors": {"w1": "an error"},
    "options": {"w2": '{"expires":9000000000000}'},
    "sessions": {ME: NOW + 9_000.0},
    f"inbox:{ME}": ["i1"],
    "item:i1": data_of("i1"),
    "schedules": {"s1": DEFINITION},
    "ticks": {"s1": NOW + 60_000.0},
    "schedule:s1": "data",
    "result:done": Expiring("result"),
    "idle": Expiring({ME: 6.0}),
}
KEEP = {"last": "7", "count": "1000", "age_ms": "60000"}


def without(*keys: str) -> State:
    """Return the right keys but some."""
    return {key: contents for key, contents in RIGHT.items() if key not in keys}


def changed(key: str, contents: Any) -> State:
    """Return the right keys with one changed."""
    return RIGHT | {key: contents}


def plus(key: str, entries: dict[str, Any]) -> State:
    """Return the right keys with entries added to one, a hash or a sorted set."""
    before = RIGHT.get(key, {})
    assert isinstance(before, dict)
    return RIGHT | {key: {**before, **entries}}


def keeping(**settings: str) -> State:
    """Return the right keys of a queue that keeps events."""
    return RIGHT | {"events:keep": {**settings}}


D2 = RIGHT["dead:d2"]
assert isinstance(D2, dict)
QUEUE, LISTED, LEASES, DELAYS, LEDGER = (
    RIGHT[key] for key in ("queue", "processing", "deadlines", "scheduled", "ledger")
)
assert isinstance(QUEUE, list)
assert isinstance(LISTED, list)
assert isinstance(LEASES, dict)
assert isinstance(LEDGER, dict)
RELEASED: State = {
    key: contents
    for key, contents in without("lease:held", "leased_by_session:held").items()
    if key not in {"queue", "processing", "deadlines", "ledger"}
} | {
    "queue": [*QUEUE, "held"],
    "processing": ["other"],
    "deadlines": {"other": NOW + 60_000.0},
    "ledger": {name: str(LEDGER[name]) for name in ("other", "w1")},
}
KEYED = {"later": '{"unstarted":"k"}'}
TAGGED, CARRIED = {"w1": '{"tags":["red"]}'}, {"options": '{"tags":["red"]}'}
#: The same queue, controlled: one more item has a level and a group, and a leased one the same.
PLACE, LANE = "5000000000000000", "48g\0"
OPTIONS = {
    "w2": '{"expires":9000000000000}',
    "w3": '{"level":2,"group":"g"}',
    "other": '{"level":2,"group":"g"}',
}
LANED: State = without("queue", "sessions", f"inbox:{ME}", "item:i1", "idle") | {
    "held": QUEUE,
    "item:w3": data_of("w3"),
    "lease:w3": f"lh:waiting {PLACE}",
    "options": OPTIONS,
    "lanes": {LANE + PLACE + "w3": 0.0},
    "levels": {"48": NOW - 1.0, "50": NOW - 1.0},
    "turns:48": {"g": NOW - 1.0},
    "turns:50": {"": NOW - 1.0},
    "control": {"concurrency/g": "5"},
    "running:g": {"other": NOW + 60_000.0},
}


#: Beside it a lane that is parked rightly, as its group is paused.
PAUSED_LANE = f"48a\0{PLACE}w4"
PAUSED: State = LANED | {
    "item:w4": data_of("w4"),
    "lease:w4": f"lh:waiting {PLACE}",
    "options": {**OPTIONS, "w4": '{"level":2,"group":"a"}'},
    "lanes": {LANE + PLACE + "w3": 0.0, PAUSED_LANE: 0.0},
    "turns:48": {"a": 1e15 + NOW, "g": NOW - 1.0},
    "control": {"concurrency/g": "5", "paused/a": f"inf {NOW} why"},
}


def laned(key: str, entries: dict[str, Any]) -> State:
    """Return the keys of the controlled queue with entries added to one."""
    before = LANED.get(key, {})
    assert isinstance(before, dict)
    return LANED | {key: {**before, **entries}}


WORKER: State = {"workers": {"lh:a": "{}"}}
LIVELY: State = {"workers": {"lh:a": '{"alive_ms":30000}'}}
#: The same queue with two flow runs, one of which has ended.
LOOKUP = '[["user_id",["62"]]]'
R = {"state": "active", "active": "1", "created": str(NOW - 9), "flow": "f", "lookup": LOOKUP, "keep": "9000"}
S = R | {"state": "failed", "active": "0", "ended": str(NOW - 5)}
ENDS = {"r": math.inf, "s": NOW - 5 + 9000.0}
#: What a run that cannot be read becomes.
UNREADABLE = {
    "state": "failed",
    "active": "0",
    "created": str(NOW),
    "ended": str(NOW),
    "keep": "86400000",
    "error": "its state or a number in it could not be read",
}
RUNS: State = RIGHT | {
    "run:r": R,
    "run:s": Expiring(S),
    "runs:active": {"r": NOW - 9.0},
    "runs:failed": {"s": NOW - 5.0},
    "runs:ends": ENDS,
    "runs:by:f\0user_id\x0062": ENDS,
}
#: For each problem: the names that are reported, the keys before the check, and after it.
CASES: dict[Problem, list[tuple[list[str], State, State]]] = {
    Problem.LOST_ITEM: [
        (["w1", "w2"], without("queue"), RIGHT),
        (["x"], changed("item:x", "x"), changed("item:x", "x") | {"queue": ["x", *QUEUE]}),
    ],
    Problem.GHOST: [
        (["x"], changed("queue", ["w2", "x", "w1"]), RIGHT),
        (["x"], LANED | {"held": ["w2", "x", "w1"]}, LANED),
        (["x"], laned("lanes", {LANE + "5000000000000001x": 0.0}), LANED),
    ],
    Problem.TWO_PLACES: [
        (["w1"], changed("queue", ["w1", "w2", "w1"]), RIGHT),
        (["held"], changed("queue", ["w2", "held", "w1"]), RIGHT),
        (["later"], changed("queue", ["w2", "later", "w1"]), RIGHT),
        (["held"], plus("scheduled", {"held": SOON}), RIGHT),
        (["w1"], LANED | {"held": ["w1", "w2", "w1"]}, LANED),
        (["other"], laned("lanes", {LANE + "5000000000000001other": 0.0}), LANED),
        (["w3"], laned("lanes", {LANE + "5000000000000001w3": 0.0}), LANED),
        (["later"], laned("lanes", {LANE + "5000000000000001later": 0.0}), LANED),
    ],
    Problem.LOST_INBOX: [
        (
            ["lh:away"],
            RIGHT | {"inbox:lh:away": ["a", "b"], "item:a": "a", "item:b": "b"},
            RIGHT | {"queue": ["w2", "w1", "a", "b"], "item:a": "a", "item:b": "b"},
        )
    ],
    Problem.LEASE_WITHOUT_ITEM: [
        (["x"], plus("deadlines", {"x": SOON}) | lease_keys("x", ME), RIGHT),
        (["x"], plus("deadlines", {"x": SOON + 0.5}), RIGHT),
    ],
    Problem.LEASE_WITHOUT_TOKEN: [
        (["held"], changed("ledger", {k: v for k, v in LEDGER.items() if k != "held"}), RELEASED)
    ],
    Problem.UNREADABLE_RECORD: [
        (
            ["w1"],
            plus("ledger", {"w1": "what"}),
            changed("ledger", {k: v for k, v in LEDGER.items() if k != "w1"}),
        ),
        (
            ["w1"],
            plus("ledger", {"w1": "1 99999999999999999999 1 1"}),
            changed("ledger", {k: v for k, v in LEDGER.items() if k != "w1"}),
        ),
        (
            ["w1"],
            plus("ledger", {"w1": "4 2 1 1"}),
            changed("ledger", {k: v for k, v in LEDGER.items() if k != "w1"}),
        ),
    ],
    Problem.RECORD_WITHOUT_ITEM: [(["x"], plus("ledger", {"x": "1 1 1 1"}), RIGHT)],
    Problem.LOST_LEASE_KEY: [
        (["held"], without("lease:held"), RIGHT),
        (["held"], without("leased_by_session:held"), RIGHT),
        (["held"], without("lease:held", "leased_by_session:held"), RIGHT | lease_keys("held", "lh:unknown")),
        (["later"], without("lease:later"), RIGHT),
        (["w3"], {key: contents for key, contents in LANED.items() if key != "lease:w3"}, LANED),
    ],
    Problem.LOST_PROCESSING_ENTRY: [
        (["held"], changed("processing", ["other"]), changed("processing", ["held", "other"]))
    ],
    Problem.DELAY_WITHOUT_ITEM: [(["x"], plus("scheduled", {"x": SOON}), RIGHT)],
    Problem.FACT_WITHOUT_ITEM: [
        (["x"], plus("errors", {"x": "an error"}), RIGHT),
        (["x"], plus("options", {"x": '{"level":2}'}), RIGHT),
    ],
    Problem.UNREADABLE_OPTIONS: [
        (["w2"], changed("options", {"w2": "{"}), without("options") | {"lost:options": {"w2": "{"}})
    ],
    Problem.STALE_TAG: [(["w1"], RIGHT | {"tags": {"red\0w1": 0.0}}, RIGHT)],
    Problem.LOST_TAG: [
        (["w1"], changed("options", TAGGED), changed("options", TAGGED) | {"tags": {"red\0w1": 0.0}}),
        (
            ["d2"],
            changed("dead:d2", D2 | CARRIED),
            changed("dead:d2", D2 | CARRIED) | {"tags": {"red\0d2": 0.0}},
        ),
    ],
    Problem.STALE_UNSTARTED: [(["w1"], RIGHT | {"unstarted": {"k": "w1"}}, RIGHT)],
    Problem.LOST_UNSTARTED: [
        (["later"], changed("options", KEYED), changed("options", KEYED) | {"unstarted": {"k": "later"}})
    ],
    Problem.NO_DEAD_LETTER: [(["x"], plus("dead", {"x": NOW - 1.0}), RIGHT)],
    Problem.UNLISTED_DEAD_LETTER: [
        (["d1", "d2"], without("dead"), changed("dead", {"d1": float(NOW), "d2": float(NOW)}))
    ],
    Problem.UNREADABLE_DEAD_LETTER: [
        (["d2"], changed("dead:d2", {**D2, "token": "nan"}), changed("dead:d2", {**D2, "token": "0"}))
    ],
    Problem.DEAD_LETTER_WITHOUT_DATA: [
        (["d2"], changed("dead:d2", {"error": "x"}), changed("dead:d2", {"error": "x"}))
    ],
    Problem.DEAD_LETTER_OF_AN_UNFINISHED_ITEM: [
        (["held"], plus("dead", {"held": float(NOW)}) | {"dead:held": {"data": "x", "token": "3"}}, RIGHT)
    ],
    Problem.WRONG_TIME_OF_DEATH: [(["d2"], plus("dead", {"d2": NOW + 1e12}), RIGHT)],
    Problem.ENDLESS_SESSION: [
        ([ME], changed("sessions", {ME: float("inf")}), changed("sessions", {ME: NOW + 10_000.0}))
    ],
    Problem.LOST_HEARTBEAT: [
        (
            ["lh:a"],
            changed("workers", {"lh:a": "{}"}),
            RIGHT | WORKER | {"heartbeats": {"lh:a": NOW + 15_000.0}},
        ),
        (
            ["lh:a"],
            RIGHT | LIVELY | {"heartbeats": {}},
            RIGHT | LIVELY | {"heartbeats": {"lh:a": NOW + 30_000.0}},
        ),
    ],
    Problem.LATE_HEARTBEAT: [
        (
            ["lh:a"],
            RIGHT | LIVELY | {"heartbeats": {"lh:a": NOW + 31_001.0}},
            RIGHT | LIVELY | {"heartbeats": {"lh:a": NOW + 30_000.0}},
        )
    ],
    Problem.LOST_WORKER: [
        (
            ["lh:a"],
            changed("heartbeats", {"lh:a": math.inf}),
            changed("heartbeats", {"lh:a": NOW + 15_000.0}),
        ),
        (
            ["lh:a"],
            RIGHT | WORKER | {"heartbeats": {"lh:a": 1e300}},
            RIGHT | WORKER | {"heartbeats": {"lh:a": NOW + 15_000.0}},
        ),
        (["lh:a"], changed("workers", {"told:lh:a": "quiet"}), RIGHT),
    ],
    Problem.WRONG_PAUSE: [
        (
            ["paused/h"],
            laned("control", {"concurrency/g": "5", "paused/h": f"{NOW + 9_000} 0{NOW + 2_000} why"}),
            laned("control", {"concurrency/g": "5", "paused/h": f"{NOW + 7_000} 0{NOW} why"}),
        )
    ],
    Problem.LOST_TICK: [(["s1"], without("ticks"), RIGHT)],
    Problem.WRONG_TICK: [
        (["s1"], changed("ticks", {"s1": 1e300}), RIGHT),
        (["s1"], changed("ticks", {"s1": SOON}), RIGHT),
    ],
    Problem.SCHEDULE_WITHOUT_TICK: [
        (["s2"], plus("schedules", {"s2": "9 new"}), plus("schedules", {"s2": "9 new"}))
    ],
    Problem.TICK_WITHOUT_SCHEDULE: [
        (["s2"], plus("ticks", {"s2": SOON}) | {"schedule:s2": "data", "declared": {"s2": "1 2 x"}}, RIGHT),
        (["s2"], changed("schedule:s2", "data"), RIGHT),
    ],
    Problem.DECLARATION_WITHOUT_SCHEDULE: [
        (["s2"], changed("declared", {"s2": f"1 2 {DEFINITION}"}), RIGHT),
        (["s1"], changed("declared", {"s1": "what"}), RIGHT),
    ],
    Problem.NO_TIME_TO_LIVE: [
        (["result:done"], changed("result:done", "result"), RIGHT),
        (["idle"], changed("idle", {ME: 6.0}), RIGHT),
        (["lease:held"], changed("lease:held", ME), RIGHT),
        (["lease:later"], changed("lease:later", "lh:scheduled"), RIGHT),
        (["lease:w1"], changed("lease:w1", ME), RIGHT),
        (["lease:w1"], changed("lease:w1", "lh:waiting 7"), RIGHT),
        (["alarm"], changed("alarm", "5 lh:a"), changed("alarm", Expiring("5 lh:a"))),
        (["recent"], changed("recent", {"a": SOON}), changed("recent", Expiring({"a": SOON}))),
        (["set:s"], changed("set:s", ["5 other"]), changed("set:s", Expiring(["5 other"]))),
        (["once:r"], changed("once:r", {"a"}), changed("once:r", Expiring({"a"}))),
        (["stream:s"], changed("stream:s", {"reader": "r"}), changed("stream:s", Expiring({"reader": "r"}))),
        (["delivered:lh:s"], changed("delivered:lh:s", "1 a"), changed("delivered:lh:s", Expiring("1 a"))),
    ],
    Problem.LOST_SETTING_OF_EVENTS: [
        (["count"], keeping(last="7", age_ms="60000"), keeping(**KEEP)),
        (["age_ms"], keeping(**KEEP | {"age_ms": "soon"}), keeping(**KEEP | {"age_ms": "0"})),
        (["last"], keeping(count="9", age_ms="0"), keeping(last=str(NOW * 1000), count="9", age_ms="0")),
    ],
    Problem.WRONG_FENCE: [
        (["fence"], changed("fence", "2"), RIGHT),
        (["fence"], without("fence"), changed("fence", str(NOW * 1000))),
    ],
    Problem.RENAMED: [
        (["queue"], changed("queue", "text"), changed("queue", ["w2", "w1"]) | {"lost:queue": "text"}),
        (["fence"], changed("fence", "many"), changed("fence", str(NOW * 1000)) | {"lost:fence": "many"}),
        (["ledger"], changed("ledger", "text"), {}),
        (["item:w1"], changed("item:w1", ["a list"]), {}),
        (["result:x"], changed("result:x", ["a list"]), changed("lost:result:x", ["a list"])),
        (["stream:x"], changed("stream:x", ["a list"]), changed("lost:stream:x", ["a list"])),
        (["holders:x"], changed("holders:x", ["a list"]), changed("lost:holders:x", ["a list"])),
        (["hold_line:x"], changed("hold_line:x", ["a list"]), changed("lost:hold_line:x", ["a list"])),
        (["run:x"], RUNS | {"run:x": ["a list"]}, RUNS | {"lost:run:x": ["a list"]}),
        (["runs:by:x"], RUNS | {"runs:by:x": ["a list"]}, RUNS | {"lost:runs:by:x": ["a list"]}),
    ],
    Problem.ENDLESS_FOREIGN_LEASE: [
        (["w1"], changed("lease:w1", "a client"), changed("lease:w1", "a client"))
    ],
    Problem.UNREADABLE_LANE_ENTRY: [
        (["what"], laned("lanes", {"what": 0.0}), LANED),
        (["99g\0" + PLACE + "w3"], laned("lanes", {"99g\0" + PLACE + "w3": 0.0}), LANED),
        (["w3"], laned("lanes", {LANE + PLACE + "w3": 7.0}), LANED),
        (
            ["w1"],
            laned("lanes", {"50\0" + PLACE + "w1": 0.0}) | {"held": ["w2"]},
            LANED | {"held": ["w1", "w2"]},
        ),
    ],
    Problem.LOST_TURN: [
        (["g"], LANED | {"turns:48": {}}, laned("turns:48", {"g": float(NOW)})),
        (["g"], LANED | {"levels": {"50": NOW - 1.0}}, laned("levels", {"48": float(NOW)})),
    ],
    Problem.LATE_TURN: [
        (["g"], laned("turns:48", {"g": 1e15 + NOW}), laned("turns:48", {"g": float(NOW)})),
        (
            ["g"],
            PAUSED | {"turns:48": {"a": 1e15 + NOW, "g": 1e15 + NOW}},
            PAUSED | {"turns:48": {"a": float(NOW), "g": float(NOW)}},  # leasing parks it again
        ),
        (["48"], laned("levels", {"48": NOW + 1e9}), laned("levels", {"48": float(NOW)})),
    ],
    Problem.TURN_WITHOUT_LANE: [(["turns:48"], RIGHT | {"turns:48": {"h": 1e15 + NOW}}, RIGHT)],
    Problem.LOST_SLOT: [(["other"], LANED | {"running:g": {}}, LANED)],
    Problem.STALE_SLOT: [
        (["w3"], laned("running:g", {"w3": NOW + 1.0}), LANED),
        (["other"], laned("running:h", {"other": NOW + 1.0}), LANED),
    ],
    Problem.LOST_GROUP: [
        (
            ["other"],
            LANED | {"options": {key: text for key, text in OPTIONS.items() if key != "other"}},
            LANED | {"options": {**OPTIONS, "other": '{"group":"g"}'}},
        )
    ],
    Problem.UNREADABLE_LIMIT: [
        (
            ["concurrency"],
            laned("control", {"concurrency": "many"}),
            LANED | {"lost:control": {"concurrency": "many"}},
        ),
        (["rate/g"], laned("control", {"rate/g": "0:1"}), LANED | {"lost:control": {"rate/g": "0:1"}}),
    ],
    Problem.ENDLESS_WINDOW: [
        (["a"], changed("recent", Expiring({"a": math.inf})), RIGHT),
        (["a"], changed("cancelled", Expiring({"a": 1e300})), RIGHT),
    ],
    Problem.LOST_RUN: [(["z"], RUNS | {"runs:ends": {**ENDS, "z": math.inf}}, RUNS)],
    Problem.UNLISTED_RUN: [
        (["r"], {key: value for key, value in RUNS.items() if key != "runs:active"}, RUNS),
        (["r"], RUNS | {"runs:completed": {"r": NOW - 9.0}}, RUNS),
        (["s"], RUNS | {"runs:by:f\0user_id\x0063": {"s": ENDS["s"]}}, RUNS),
        (["r", "s"], {key: value for key, value in RUNS.items() if not key.startswith("runs:")}, RUNS),
        (["s"], RUNS | {"runs:by:f\0user_id\x0062": {"r": math.inf, "s": math.inf}}, RUNS),
    ],
    Problem.UNREADABLE_RUN: [
        (["s"], RUNS | {"run:s": Expiring(S | wrong)}, RUNS | {"run:s": Expiring(S | UNREADABLE)})
        for wrong in ({"state": "lost"}, {"active": "many"}, {"ended": "nan"}, {"keep": "1e999"})
    ],
    Problem.EXPIRING_RUN: [(["r"], RUNS | {"run:r": Expiring(R)}, RUNS)],
    # The lease keys end in 600 s.
    Problem.LOST_LEASE: [
        (["held", "other"], without("deadlines"), changed("deadlines", {"held": SOON, "other": SOON})),
        (
            ["held", "other"],
            without("deadlines", "processing"),
            changed("deadlines", {"held": SOON, "other": SOON}),
        ),
    ],
    Problem.LOST_DELAY: [(["later"], without("scheduled"), RIGHT)],
    Problem.WRONG_LEASE_END: [
        (["held"], plus("deadlines", {"held": NOW + 1e13}), plus("deadlines", {"held": SOON}))
    ],
    Problem.WRONG_DUE_TIME: [(["later"], changed("scheduled", {"later": 1e300}), RIGHT)],
}
#: Each repair as its own case.
EACH = [(problem, *case) for problem, cases in CASES.items() for case in cases]


@pytest.fixture
async def queue(redis_url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    """Give the queue, at the time of the tests."""
    async with AsyncWorkQueue.from_url(redis_url, name, clock=lambda: NOW / 1000) as queue:
        yield queue


def rounded(state: State) -> State:
    """Return keys with times in whole seconds, as times to live are read, and `processing` in order."""
    found = dict(state)
    for key in ("deadlines", "scheduled"):
        entries = found.get(key)
        if isinstance(entries, dict):
            found[key] = {name: math.ceil(float(at) / 1000) * 1000.0 for name, at in entries.items()}
    processing = found.get("processing")
    if isinstance(processing, list):
        found["processing"] = sorted(processing)
    return found


def test_each_problem_has_a_case() -> None:
    """Others have their own tests, in test_deleting.py and test_steering.py of tests/queue."""
    own = {Problem.WRONG_TYPE, Problem.UNFINISHED_DELETION, Problem.SETTLED_STAGE, Problem.STUCK_STAGE}
    assert {*Problem} - CASES.keys() == own


async def test_a_right_queue_is_left_alone(space: Space, queue: AsyncWorkQueue) -> None:
    right = keeping(**KEEP)
    await space.seed(right)
    for report in (await queue.admin.fsck(), await queue.deep_clean(), await queue.light_clean()):
        assert (report.findings, report.repaired, report.unrepaired) == ((), 0, 0)
    assert rounded(await space.snapshot()) == rounded(right)


@pytest.mark.parametrize(("problem", "names", "before", "after"), EACH, ids=[str(case[0]) for case in EACH])
async def test_a_problem_is_repaired_and_reported(
    space: Space, queue: AsyncWorkQueue, problem: Problem, names: list[str], before: State, after: State
) -> None:
    await space.seed(before)
    report = await queue.admin.fsck()
    found = {one.problem: one for one in report.findings}
    examples = {name.removeprefix(f"{space.prefix}:") for name in found[problem].examples}
    assert (examples, found[problem].count) == ({*names}, len(names))
    assert found[problem].is_repaired == (problem.repair != "")
    if after:
        assert rounded(await space.snapshot()) == rounded(after)
    again = (await queue.admin.fsck()).findings
    assert [one.problem for one in again] == ([] if problem.repair else [problem])


async def test_the_light_cleans_of_workers_repair_all_in_turn(space: Space, queue: AsyncWorkQueue) -> None:
    """But what needs a walk over the whole queue or over flow runs, or renames a key."""
    for problem, names, before, _ in EACH:
        if problem in {
            Problem.LOST_ITEM,
            Problem.LOST_DELAY,
            Problem.GHOST,
            Problem.TWO_PLACES,
            Problem.RENAMED,
            Problem.LOST_RUN,
            Problem.UNLISTED_RUN,
            Problem.UNREADABLE_RUN,
            Problem.EXPIRING_RUN,
        }:
            continue
        await space.send("FLUSHDB")
        await space.seed({key: contents for key, contents in before.items() if key != "processing"})
        await space.seed({"processing": before["processing"]} if "processing" in before else {})
        found = (await queue.light_clean()).findings
        if problem is not Problem.LOST_LEASE or "processing" in before:
            assert problem in {one.problem for one in found}, (problem, names)


async def test_a_key_of_a_wrong_type_is_renamed_by_fsck_alone(space: Space, queue: AsyncWorkQueue) -> None:
    """It may belong to another program."""
    await space.seed(changed("options", "text"))
    with pytest.raises(WrongKeyType):
        await queue.deep_clean()
    assert (await space.snapshot())["options"] == "text"
    await space.seed(changed("result:x", ["a list"]))
    await space.redis.unlink(space.key("options"))
    report = await queue.light_clean()
    assert [(str(one.problem), one.examples) for one in report.findings] == [("wrong_type", ("result:x",))]
    assert (report.unrepaired, report.repaired) == (1, 0)


async def test_a_second_key_of_a_wrong_type_gets_another_name(space: Space, queue: AsyncWorkQueue) -> None:
    await space.seed(changed("queue", "one"))
    await queue.admin.fsck()
    await space.redis.unlink(space.key("queue"))
    await space.seed({"queue": "two"})
    await queue.admin.fsck()
    left = await space.snapshot()
    assert (left["lost:queue"], left[f"lost:queue:{NOW}"]) == ("one", "two")


async def test_the_lease_key_of_an_item_that_has_left_the_last_lane_ends(
    space: Space, queue: AsyncWorkQueue
) -> None:
    """Also if the queue ceases to be controlled by that."""
    await space.seed({key: LANED[key] for key in LANED if key not in {"lanes", "control"}} | {"held": ["w3"]})
    await queue.admin.fsck()
    assert (await space.snapshot())["lease:w3"] == Expiring(f"lh:waiting {PLACE}")
    assert (await queue.admin.fsck()).findings == ()


async def test_many_ghosts_and_doubles_are_dropped_wherever_they_are(
    space: Space, queue: AsyncWorkQueue
) -> None:
    ids = [f"i{n}" for n in range(1_200)]
    right = picture(waiting=ids)
    mixed = [
        name
        for n, item_id in enumerate(reversed(ids))
        for name in (item_id, *([f"g{n}"] if n % 3 == 0 else []))
    ]
    await space.seed(right | {"queue": mixed})
    [ghosts] = (await queue.admin.fsck()).findings
    assert (ghosts.problem, ghosts.count) == (Problem.GHOST, 400)
    assert await space.snapshot() == right
