"""A key of the queue has another type: the script raises an error and changes nothing.

If a script wrote before it has read all of its keys, the error would leave an item in no list, or data
without an id, which blocks the id.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from leasequeue.wire.scripts import load, with_origins
from tests.lua.space import ME, NOW, Call, Held, Letter, Space, State, data_of, items_of, new, picture
from tests.queue.asking import keys_like
from tests.stateful.calls_of_scripts import drawn_call
from tests.stateful.leftovers import Drawn
from tests.stateful.recovery import View

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
    "options": {"x": '{"level":1,"tags":["t"],"unstarted":"k"}'},
    "tags": {"t\0x": 0.0},
    "unstarted": {"k": "x"},
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

#: Scripts of which it depends on the call which keys they use.
VARIED = {
    *("add_items", "complete_many", "deep_clean_restore", "fail_session", "fsck_entries", "fsck_queue"),
    *("purge_queue", "release_many"),
}


def call_of(script: str, number: int = 0) -> Call:
    """Draw a call of a script that fits the busy queue."""
    return drawn_call(script, View(BUSY), Drawn(NOW, False, {}, []), Random(f"{script} {number}"))


def place_in(error: ResponseError, script: str) -> tuple[Path, int]:
    """Return the file of `lua/` and the line where a script has failed."""
    text = with_origins(str(error), load()[script])
    match = re.search(r"(lua/[\w/]+\.lua):(\d+)", text)
    assert match, text
    return ROOT / match[1], int(match[2])


@pytest.mark.parametrize("script", load())
@pytest.mark.seed("RWQ-B2", "RWQ-B10", "WRQ-G2", "GLD-T3")
async def test_a_key_of_another_type_is_an_error_and_changes_nothing(
    redis: Redis, name: str, script: str
) -> None:
    for number in range(10 if script in VARIED else 1):  # so that each key is used
        await check(redis, f"{name}-{number}", call_of(script, number))


async def check(redis: Redis, name: str, call: Call) -> None:
    """Check a call with each key of its script of another type."""
    right = Space(redis, name)
    await right.seed(BUSY)
    await right.run_all([in_state(call, "")])
    expected = await right.snapshot()
    for key in {*load()[call.script].keys} - {"none", "probe"}:
        space = Space(redis, f"{name}-{key}")
        stored = f"inbox:{ME}" if key == "inbox" else key
        wrong: State = {stored: ["a list"] if key in {"fence", "format", "sample"} else "a string"}
        if key == "events":  # it is read only if events are kept
            wrong |= {"events:keep": {"last": "1", "count": "0", "age_ms": "0"}}
        # Some scripts look at a part of the database in one call: it holds one space, as for `right`.
        await redis.unlink(*await keys_like(redis, f"{name}*"))
        await space.seed(BUSY | wrong)
        before = await space.snapshot()
        try:
            await space.run_all([in_state(call, key)])
        except ResponseError as error:
            assert "WRONGTYPE" in str(error)  # noqa: PT017 - some calls do not need the key
            assert await space.snapshot() == before, key
            file, line = place_in(error, call.script)
            assert "call(" in file.read_text().splitlines()[line - 1], f"{file}:{line} sends no command"
        else:  # it needs the key for other calls, and did all that it does when the key is right
            after = await space.snapshot()
            assert after[stored] == wrong[stored]
            assert after == {**{k: v for k, v in expected.items() if k not in wrong}, **wrong}, key


def in_state(call: Call, key: str) -> Call:
    """Return a call that reads the items of the state that a key is about, if it reads those of one state."""
    states = {"deadlines": "leased", "scheduled": "scheduled", "dead": "dead", "processing": "processing"}
    return call._replace(arguments={**call.arguments, "state": states.get(key, "waiting")})


DEFINITION = "1 once every 1000 -"
PUT = Call(
    "schedule_put", (), {"schedule": "s2", "definition": DEFINITION, "due_ms": NOW + 5, "data": "data"}
)
TICK = Call("tick", [(one, DEFINITION, NOW - 1, f"{one}@1", NOW + 999) for one in ("s1", "missing")])
REOPEN = Call("run_reopen", [("a",)], {"of_run": "r2", "caller": "c", "is_last": 1})


@pytest.mark.parametrize(
    ("before", "call", "error"),
    [
        (picture(waiting=["a"]) | {"item:a": ["a list"]}, Call("lease_many", [(1, 60_000)]), "item:a"),
        (picture(waiting=["a"]) | {"fence": "many"}, Call("lease_many", [(1, 60_000)]), "fence"),
        ({"once:j": "a string"}, Call("add_once", [new("n1")], {"run": "j", "keep_ms": 1000}), ""),
        (BUSY | {"dead:d2": "a string"}, Call("requeue_many", [("d1",), ("d2",)]), ""),
        ({"schedule:s2": ["a list"]}, PUT, ""),
        (BUSY | {"schedule:missing": ["a list"]}, TICK, ""),
        (BUSY | {"runs:ends": "a string"}, Call("run_cancel", (), {"of_run": "r1"}), ""),
        (BUSY | {"unsettled": "a string"}, Call("run_cancel", (), {"of_run": "r1"}), ""),
        (BUSY | {"runs:by:\0user_id\x0062": "a string"}, Call("run_cancel", (), {"of_run": "r1"}), ""),
        (BUSY | {"runs:active": "a string"}, REOPEN, ""),
        (BUSY | {"dead": "a string"}, REOPEN, ""),
        (BUSY | {"scheduled": "a string"}, REOPEN, ""),
        (BUSY | {"runs:completed": "a string"}, Call("run_delete", (), {"run": "r2", "is_last": 1}), ""),
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
