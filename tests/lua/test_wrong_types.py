"""A key of the queue has another type: the script raises an error and changes nothing.

If a script wrote before it has read all of its keys, the error would leave an item in no list, or data
without an id, which blocks the id.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from leasequeue.wire.scripts import load, with_origins
from tests.lua.space import ME, NOW, Call, Held, Letter, Space, State, data_of, items_of, new, picture

if TYPE_CHECKING:
    from redis.asyncio import Redis


ROOT = Path(__file__).parents[2]

#: A queue on which every script uses each of its keys.
BUSY: State = picture(
    waiting=["w1", "w2"],
    leased={"held": Held(3), "expired": Held(4, ends=NOW - 1)},
    scheduled={"due": NOW - 1, "later": NOW + 60_000},
    past={"w1": Held(2), "ghost": Held(1)},
    dead={"d1": Letter(1, at=NOW - 9), "d2": Letter(2)},
    fence=4,
) | {
    "processing": ["expired", "held", "noted"],
    "gone": {"noted": NOW - 5.0},
    "errors": {"w1": "an error"},
    "options": {"x": '{"level":1}'},
    "cancelled": {"x": NOW + 9.0},
    "progress": {"held": "0.5"},
    "recent": {"x": NOW + 9.0},
    "control": {"ageing": "5000"},
    "item:orphan": "x",
    "sessions": {"lh:dead": NOW - 1.0, ME: NOW + 1.0},
    "inbox:lh:dead": ["i1"],
    f"inbox:{ME}": ["i2"],
    "item:i1": data_of("i1"),
    "item:i2": data_of("i2"),
    "schedules": {"s1": "1 once every 1000 -", "s2": "1 all every 1000 -"},
    "ticks": {"s1": NOW - 1.0, "s2": NOW + 1.0},
    "schedule:s1": "data",
    "declared": {"s1": "1 2 1 once every 1000 -", "s2": "1 2 1 all every 1000 -"},
    "set:s:1": ["3 held"],
    "events:keep": {"last": "7", "count": "1000", "age_ms": "60000", "live": "plain"},
    "workers": {ME: '{"name":"host/1"}', f"told:{ME}": "quiet", "lh:lost": "{}"},
    "heartbeats": {ME: NOW + 1.0, "lh:old": NOW - 1.0},
    "run:r1": {"state": "active", "active": "1", "flow": "", "lookup": '[["user_id",["62"]]]'},
    "run:r2": {
        "state": "failed",
        "active": "0",
        "flow": "",
        "lookup": '[["user_id",["62"]]]',
        "keep": "1000",
        "s:a": "f",
        "n:a": "{}",
        "e:a": "bad",
        "error": "a: bad",
    },
    "runs:active": {"r1": NOW - 0.0},
    "runs:failed": {"r2": NOW - 0.0},
    "runs:ends": {"r1": float("inf"), "r2": NOW + 9.0},
    "runs:by:\0user_id\x0062": {"r1": float("inf"), "r2": NOW + 9.0},
}

#: A call of each script, with rows of every kind.
CALLS: dict[str, tuple[list[tuple[object, ...]], dict[str, object]]] = {
    "add_items": ([new("n1"), new("n2", delay=5_000), new("held", unique=True)], {}),
    "add_once": ([new("n1"), new("n2", delay=5_000)], {"run": "j", "keep_ms": 1000}),
    "close_queue": ([], {}),
    "cancel_data": (
        [],
        {"payload": data_of("w1"), "keep_ms": 1000, "cursor": "0", "count": 9, "at_most": 9},
    ),
    "cancel_many": ([("held", 1000), ("w1", 1000), ("later", 0)], {}),
    "complete_many": ([("held", 3, 0), ("w1", 2, 0), ("expired", 4, 0)], {}),
    "check_waiting": ([], {}),
    "clean_turn": ([], {"deep": 0, "every_ms": 60_000}),
    "counts": ([], {}),
    "dead_list": ([], {}),
    "deep_clean_restore": ([("orphan",)], {"started_ms": NOW}),
    "deep_clean_scan": ([], {"cursor": "0", "pattern": "*"}),
    "deep_clean_walk": ([], {"start": 0}),
    "delete_queue": ([("item",)], {"cursor": "", "pattern": "*"}),
    "drop_many": ([("d1",), ("missing",)], {}),
    "drop_old": ([], {}),
    "set_limits": ([("rate", "1000:1"), ("concurrency/g", 2)], {}),
    "pause_queue": ([], {"of_group": "", "until_ms": "inf", "reason": "why"}),
    "end_leases": ([("held", 3), ("expired", 4)], {}),
    "events_keep": ([], {}),
    "events_read": ([], {"after": "0"}),
    "fail_many": ([("held", 3, -1, "error"), ("expired", 4, 9_000, "error")], {}),
    "fail_session": (
        [("held",), ("w1",)],
        {"worker": ME, "expired": 0, "connections": "", "ends": 1},
    ),
    "find_many": ([("w1",), ("held",)], {}),
    "fsck_entries": ([], {"which": "options"}),
    "fsck_lanes": ([], {"which": "slots"}),
    "fsck_leases": ([], {"which": "deadlines"}),
    "fsck_keys": ([], {"pattern": "none"}),
    "fsck_queue": ([], {"which": "queue", "start": 0}),
    "fsck_runs": ([], {"which": "runs:active", "pattern": ""}),
    "fsck_tick": ([], {"schedule": "s1", "definition": "1 once every 1000 -", "due_ms": NOW, "wrong_ms": -1}),
    "fsck_rename": ([], {"made": "options", "wanted": "hash"}),
    "fsck_twice": ([], {"which": "queue", "item": "w1", "met_at": 0, "met_again": 1}),
    "fsck_types": ([("queue", "list")], {}),
    "inspect": ([], {"start": 0}),
    "lease_many": ([(9, 60_000)], {}),
    "lease_set": (
        [],
        {
            "stream": "s",
            "reader": "r",
            "set": "s:2",
            "known": 0,
            "count": 9,
            "hold_ms": 60_000,
            "keep_ms": 60_000,
        },
    ),
    "await_results": ([("d1",), ("held",)], {"keep_ms": 15_000}),
    "read_control": ([], {"cursor": "0"}),
    "leave": ([], {"stays": 0}),
    "light_clean": ([], {}),
    "list_ids": ([], {"cursor": "0"}),
    "list_leases": ([], {"cursor": "0", "elapsed_ms": 0}),
    "move_items": ([], {"source": "other", "spot": "queue", "left_out": 0}),
    "probe": ([], {}),
    "progress": ([("held", 3, "1"), ("expired", 4, "1")], {}),
    "once_drop": ([], {"run": "j", "job": "name", "ended_ms": 1000, "keep_ms": 1000, "report": ""}),
    "once_run": ([], {"job": "name", "run": "j", "keep_ms": 1000}),
    "purge_queue": ([], {"source": "queue", "purged": 0}),
    "recover": ([("held", 3), ("expired", 4)], {"elapsed_ms": 0, "hold_ms": 60_000}),
    "register": ([], {"keep_ms": 10_000}),
    "release_many": ([("held", 3, 0, 1), ("expired", 4, 9_000, 0)], {}),
    "renew_many": ([("held", 3, 60_000)], {}),
    "replace_data": ([("held", 3, "new"), ("expired", 4, "new")], {}),
    "requeue_many": ([("d1",), ("d2",)], {}),
    "result": ([("d1",)], {}),
    "run_cancel": ([], {"of_run": "r1"}),
    "run_delete": ([], {"run": "r2", "is_last": 1}),
    "run_fields": ([("s:a",)], {"run": "r1"}),
    "runs_find": ([("user_id", "62")], {"flow": "", "cursor": ""}),
    "runs_list": ([], {"of_all": 1, "flow": "", "cursor": ""}),
    "run_finish": (
        [("held", 3, 0, "home\0r\0a", "done", "1", ""), ("expired", 4, 0, "x", "failed", "bad", "")],
        {},
    ),
    "run_report": ([("home\0r\0a", "done", "1")], {}),
    "run_settle": ([("x",)], {"cursor": "0"}),
    "run_forget": ([("d1",)], {}),
    "run_reopen": ([("a",)], {"of_run": "r2", "caller": "c", "is_last": 1}),
    "run_once": (
        [],
        {"item": "held", "lease": 3, "of_stage": "home\0r1\0a", "step": "charge", "outcome": "1"},
    ),
    "run_start": (
        [("stages", '["a"]'), ("first", '["a"]'), ("n:a", "{}"), ("keep", 1000)],
        {"of_run": "new", "builder": "", "is_first": 1, "seal": 1},
    ),
    "runs_read": ([("r1",), ("r2",)], {}),
    "sample_queue": ([], {"horizon_ms": 60_000, "note": 1}),
    "schedule_drop": ([("s1",), ("missing",)], {}),
    "schedule_put": (
        [],
        {"schedule": "s2", "definition": "1 all every 2000 -", "due_ms": NOW + 5, "data": "data"},
    ),
    "schedules": ([], {"cursor": "0"}),
    "schedules_expire": ([], {"cursor": "0", "keep_ms": 1000}),
    "session_leases": ([(ME,)], {"cursor": "0"}),
    "set_complete": ([("held", 3, 1)], {"stream": "s", "reader": "r"}),
    "set_failures": ([], {"stream": "s", "reader": "r", "set": "s:1", "cursor": "0"}),
    "set_failures_put": (
        [("held", "-1 3 error")],
        {"stream": "s", "reader": "r", "set": "s:1", "anew": 1, "keep_ms": 60_000},
    ),
    "set_read": ([], {"stream": "s", "reader": "r", "set": "s:1", "peek": 0, "give_up": 1}),
    "set_renew": ([], {"stream": "s", "reader": "r", "set": "s:1", "start": 0, "hold_ms": 60_000}),
    "stream_hold": ([("s:1", 60_000)], {"stream": "s", "reader": "r", "take": 1, "keep_ms": 60_000}),
    "tick": (
        [
            ("s1", "1 once every 1000 -", NOW - 1, "s1@1", NOW + 999),
            ("missing", "1 once every 1000 -", NOW - 1, "missing@1", NOW + 999),
        ],
        {},
    ),
    "ticks_due": ([], {}),
    "worker_beat": ([], {"alive_ms": 15_000, "first": 1, "about": "{}"}),
    "worker_leave": ([], {}),
    "worker_tell": ([], {"worker": ME, "what": "quiet"}),
    "workers": ([], {"cursor": "0"}),
}


def test_every_script_is_called_here() -> None:
    assert CALLS.keys() == load().keys()


def place_in(error: ResponseError, script: str) -> tuple[Path, int]:
    """Return the file of `lua/` and the line where a script has failed."""
    text = with_origins(str(error), load()[script])
    match = re.search(r"(lua/[\w/]+\.lua):(\d+)", text)
    assert match, text
    return ROOT / match[1], int(match[2])


@pytest.mark.parametrize("script", CALLS)
@pytest.mark.seed("RWQ-B2", "RWQ-B10", "WRQ-G2", "GLD-T3")
async def test_a_key_of_another_type_is_an_error_and_changes_nothing(
    redis: Redis, name: str, script: str
) -> None:
    rows, arguments = CALLS[script]
    right = Space(redis, name)
    await right.seed(BUSY)
    await right.run(script, rows, state="waiting", **arguments)
    expected = await right.snapshot()
    for key in {*load()[script].keys} - {"none", "probe"}:
        space = Space(redis, f"{name}-{key}")
        stored = f"inbox:{ME}" if key == "inbox" else key
        wrong: State = {stored: ["a list"] if key in {"fence", "sample"} else "a string"}
        if key == "events":  # it is read only if events are kept
            wrong |= {"events:keep": {"last": "1", "count": "0", "age_ms": "0"}}
        await space.seed(BUSY | wrong)
        before = await space.snapshot()
        # `inspect` and `list_ids` read only the keys of one state.
        states = {"deadlines": "leased", "scheduled": "scheduled", "dead": "dead", "processing": "processing"}
        try:
            await space.run(script, rows, state=states.get(key, "waiting"), **arguments)
        except ResponseError as error:
            assert "WRONGTYPE" in str(error)  # noqa: PT017 - some calls do not need the key
            assert await space.snapshot() == before, key
            file, line = place_in(error, script)
            assert "call(" in file.read_text().splitlines()[line - 1], f"{file}:{line} sends no command"
        else:  # it needs the key for other calls, and did all that it does when the key is right
            after = await space.snapshot()
            assert after[stored] == wrong[stored]
            assert after == {**{k: v for k, v in expected.items() if k not in wrong}, **wrong}, key


@pytest.mark.parametrize(
    ("before", "call", "error"),
    [
        (picture(waiting=["a"]) | {"item:a": ["a list"]}, Call("lease_many", [(1, 60_000)]), "item:a"),
        (picture(waiting=["a"]) | {"fence": "many"}, Call("lease_many", [(1, 60_000)]), "fence"),
        ({"once:j": "a string"}, Call("add_once", *CALLS["add_once"]), ""),
        (BUSY | {"dead:d2": "a string"}, Call("requeue_many", *CALLS["requeue_many"]), ""),
        ({"schedule:s2": ["a list"]}, Call("schedule_put", *CALLS["schedule_put"]), ""),
        (BUSY | {"schedule:missing": ["a list"]}, Call("tick", *CALLS["tick"]), ""),
        (BUSY | {"runs:ends": "a string"}, Call("run_cancel", *CALLS["run_cancel"]), ""),
        (BUSY | {"unsettled": "a string"}, Call("run_cancel", *CALLS["run_cancel"]), ""),
        (BUSY | {"runs:by:\0user_id\x0062": "a string"}, Call("run_cancel", *CALLS["run_cancel"]), ""),
        (BUSY | {"runs:active": "a string"}, Call("run_reopen", *CALLS["run_reopen"]), ""),
        (BUSY | {"dead": "a string"}, Call("run_reopen", *CALLS["run_reopen"]), ""),
        (BUSY | {"scheduled": "a string"}, Call("run_reopen", *CALLS["run_reopen"]), ""),
        (BUSY | {"runs:completed": "a string"}, Call("run_delete", *CALLS["run_delete"]), ""),
    ],
)
async def test_a_key_of_one_item_of_another_type_is_an_error_and_changes_nothing(
    space: Space, before: State, call: Call, error: str
) -> None:
    await space.seed(before)
    with pytest.raises(ResponseError, match=f"WRONGTYPE.*{error}"):
        await space.run_all([call])
    assert await space.snapshot() == before


async def test_data_of_another_type_fails_its_own_row_and_no_other(space: Space) -> None:
    held = picture(leased={"a": Held(1), "b": Held(2), "c": Held(3)}, fence=3)
    await space.seed(held | {"item:b": ["a list"]})
    rows = [(item_id, token, -1, "an error") for token, item_id in enumerate("abc", 1)]
    assert await space.run("fail_many", rows) == [1, -3, 1]
    assert await space.snapshot() == picture(
        leased={"b": Held(2)}, dead={"a": Letter(1), "c": Letter(3)}, fence=3
    ) | {"item:b": ["a list"]}


async def test_data_of_another_type_holds_up_no_other_item(space: Space) -> None:
    """Its id goes to the end of the queue. It is an error if there is nothing else."""
    await space.seed(picture(waiting=["wrong", "a", "b"]) | {"item:wrong": ["a list"]})
    reply = await space.run("lease_many", [(2, 60_000)])
    assert [given.id for given in items_of(reply)] == ["a", "b"]
    assert (await space.snapshot())["queue"] == ["wrong"]
    with pytest.raises(ResponseError, match=r"WRONGTYPE.*item:wrong"):
        await space.run("lease_many", [(2, 60_000)])
    assert (await space.snapshot())["queue"] == ["wrong"]
