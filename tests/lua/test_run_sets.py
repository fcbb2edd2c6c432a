"""The sets by which flow runs are listed and found, and the scripts that read them, and delete a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import NOW, Call, Expiring, Space, State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


KEEP = 600_000
INFINITY = float("inf")


def run_hash(
    state: str,
    *,
    active: int | None = None,
    at: int = NOW,
    flow: str = "access",
    lookup: Mapping[str, Sequence[str]] | None = None,
    more: Mapping[str, str] | None = None,
) -> Expiring | dict[str, str]:
    """Make the hash of a flow run; one that has ended has a time to live."""
    active = (1 if state == "active" else 0) if active is None else active
    contents = {
        "flow": flow,
        "state": state,
        "created": str(at),
        "keep": str(KEEP),
        "active": str(active),
        "lookup": json.dumps([[name, [*values]] for name, values in (lookup or {}).items()]),
        **({} if state == "active" else {"ended": str(at)}),
        **(more or {}),
    }
    return contents if state == "active" or active else Expiring(contents)


def by(attribute: str, value: str, flow: str = "access") -> str:
    """Name a look-up."""
    return f"runs:by:{flow}\0{attribute}\0{value}"


def listed(runs: State) -> State:
    """Make the sets in which runs are, from their hashes."""
    sets: dict[str, dict[str, float]] = {}
    for key, drawn in runs.items():
        contents = drawn.contents if isinstance(drawn, Expiring) else drawn
        assert isinstance(contents, dict)
        run, state = key.removeprefix("run:"), str(contents["state"])
        at = float(contents["created"])
        expires = at + KEEP if isinstance(drawn, Expiring) else INFINITY
        sets.setdefault(f"runs:{state}", {})[run] = at
        sets.setdefault("runs:ends", {})[run] = expires
        for name, values in json.loads(str(contents["lookup"])):
            for value in values:
                sets.setdefault(by(name, value, str(contents["flow"])), {})[run] = expires
    is_over = all(isinstance(drawn, Expiring) for drawn in runs.values())
    drawn_sets: State = {}
    for name, entries in sets.items():
        ends = INFINITY not in entries.values() if name.startswith("runs:by:") else is_over
        drawn_sets[name] = Expiring(entries) if ends and name != "runs:active" else entries
    return drawn_sets


async def ids_of(space: Space, state: str, *, flow: str | None = None, count: int = 100) -> list[str]:
    """List all runs of a state, page by page."""
    cursor, found = b"", []
    while True:
        arguments = {"state": state, "of_all": int(flow is None), "flow": flow or "", "count": count}
        [[cursor, *page]] = await space.run_all([Call("runs_list", (), {**arguments, "cursor": cursor})])
        found += [one.decode() for one in page[::2]]
        if not cursor:
            return found


async def found(space: Space, *pairs: tuple[str, str], count: int = 100, now_ms: int = NOW) -> list[str]:
    """Find runs by values, page by page."""
    cursor, ids = b"", []
    while True:
        cursor, *page = await space.run(
            "runs_find", pairs, flow="access", cursor=cursor, count=count, now_ms=now_ms
        )
        ids += [one.decode() for one in page]
        if not cursor:
            return ids


async def check(space: Space, which: str = "", *, now_ms: int = NOW) -> list[Any]:
    """Call fsck_runs, on the keys of runs unless a set is given."""
    pattern = f"{space.prefix}:run*"
    reply = await space.run("fsck_runs", which=which, pattern=pattern, now_ms=now_ms, count=1000)
    return [[one.decode() for one in part] for part in reply[1:]]


RUNS: State = {
    "run:a": run_hash("active", at=NOW - 5, lookup={"user_id": ["62"], "guilds": ["1", "2"]}),
    "run:b": run_hash("active", at=NOW - 4, lookup={"user_id": ["62"], "guilds": ["2"]}, flow="access"),
    "run:c": run_hash("failed", at=NOW - 3, lookup={"user_id": ["62"]}),
    "run:d": run_hash("completed", at=NOW - 2, lookup={"user_id": ["7"]}, flow="other"),
    "run:e": run_hash("failed", at=NOW - 1, active=2, lookup={"guilds": ["2"]}),
}


async def test_a_run_is_written_into_the_sets_of_its_state_and_of_its_values(space: Space) -> None:
    await space.seed(RUNS)
    repairs, _ = await check(space)
    assert sorted(repairs[1::2]) == ["a", "b", "c", "d", "e"]
    assert {*repairs[::2]} == {"unlisted_run"}
    expected = RUNS | listed(RUNS)
    assert await space.snapshot() == expected
    repairs, sets = await check(space)
    assert repairs == []
    assert sorted(sets) == sorted(key for key in expected if key.startswith("runs:"))
    for name in sets:
        assert await check(space, name) == [[], []]
    assert await space.snapshot() == expected


async def test_a_run_with_open_stages_keeps_the_sets_in_which_it_is_found(space: Space) -> None:
    """Also if the runs that were found before it have all ended."""
    over = {"run:c": RUNS["run:c"]}
    await space.seed(over | listed(over) | {"run:e": RUNS["run:e"]})
    await check(space)
    both = over | {"run:e": RUNS["run:e"]}
    assert await space.snapshot() == both | listed(both)


@pytest.mark.seed("GLD-K5")
async def test_sets_without_an_unfinished_run_expire_and_others_do_not(space: Space) -> None:
    ended = {key: RUNS[key] for key in ("run:c", "run:d")}
    await space.seed(ended)
    await check(space)
    keys = await space.snapshot()
    assert keys == ended | listed(ended)
    assert all(isinstance(contents, Expiring) for contents in keys.values())
    # One that begins keeps them all, and a value's set only if it is found by it.
    await space.seed({"run:a": RUNS["run:a"]})
    await check(space)
    runs = ended | {"run:a": RUNS["run:a"]}
    assert await space.snapshot() == runs | listed(runs)


@pytest.mark.seed("GLD-O20")
async def test_runs_are_listed_by_state_and_flow_the_newest_first(space: Space) -> None:
    await space.seed(RUNS | listed(RUNS))
    assert await ids_of(space, "active") == ["b", "a"]
    assert await ids_of(space, "failed") == ["e", "c"]
    assert await ids_of(space, "completed") == ["d"]
    assert await ids_of(space, "completed", flow="access") == []
    assert await ids_of(space, "failed", flow="access", count=1) == ["e", "c"]
    assert await ids_of(space, "cancelled") == []


async def test_pages_have_each_run_once_also_those_of_the_same_time(space: Space) -> None:
    ids = [f"r{n}" for n in range(23)] + ["", "r\xff", "r1\0"]
    await space.seed({f"run:{one}": run_hash("active", at=NOW + n // 7) for n, one in enumerate(ids)})
    await check(space)
    assert sorted(await ids_of(space, "active", count=3)) == sorted(ids)
    assert await ids_of(space, "active", count=3) == await ids_of(space, "active", count=100)


async def test_a_page_goes_on_where_the_last_one_ended_whatever_has_left_meanwhile(space: Space) -> None:
    await space.seed({f"run:{n}": run_hash("active", at=NOW + n) for n in range(9)})
    await check(space)
    cursor, *page = await space.run("runs_list", state="active", of_all=1, flow="", cursor="", count=3)
    assert page[::2] == [b"8", b"7", b"6"]
    for gone in ("8", "6", "4"):
        await space.send("ZREM", space.key("runs:active"), gone)
    await space.send("ZADD", space.key("runs:active"), NOW + 99, "9")
    _, *page = await space.run("runs_list", state="active", of_all=1, flow="", cursor=cursor, count=9)
    assert page[::2] == [b"5", b"3", b"2", b"1", b"0"]


@pytest.mark.seed("GLD-O13", "GLD-L4", "GLD-K6")
async def test_runs_are_found_by_each_element_of_a_list_and_by_several_values(space: Space) -> None:
    await space.seed(RUNS | listed(RUNS))
    assert await found(space, ("user_id", "62")) == ["b", "a", "c"]
    assert await found(space, ("user_id", "62"), count=1) == ["b", "a", "c"]
    assert await found(space, ("guilds", "2")) == ["e", "b", "a"]
    assert await found(space, ("guilds", "1")) == ["a"]
    assert await found(space, ("user_id", "62"), ("guilds", "2")) == ["b", "a"]
    assert await found(space, ("user_id", "62"), ("guilds", "2"), count=1) == ["b", "a"]
    assert await found(space, ("user_id", "7")) == []  # of another flow
    assert await found(space, ("name", "62")) == []


@pytest.mark.seed("GLD-B15", "GLD-B20")
async def test_a_look_up_returns_no_run_that_is_gone(space: Space) -> None:
    await space.seed(RUNS | listed(RUNS))
    assert await found(space, ("user_id", "62"), now_ms=NOW + KEEP) == ["b", "a"]
    await space.send("UNLINK", space.key("run:b"))
    assert await found(space, ("user_id", "62")) == ["a", "c"]
    assert await ids_of(space, "active") == ["a"]


@pytest.mark.seed("GLD-B20")
async def test_a_value_of_which_runs_end_all_the_time_does_not_grow(space: Space) -> None:
    """Each run ends after a tenth of the keep time, and is forgotten when its own is over."""
    await space.seed({"run:first": run_hash("active", at=0, lookup={"user_id": ["62"]})})
    await check(space)
    at = 0
    for n in range(60):
        at = n * KEEP // 10
        runs: State = {f"run:{n}": run_hash("active", at=at, lookup={"user_id": ["62"]})}
        await space.seed(runs)
        await check(space, now_ms=at)
        if n:
            await space.seed({f"run:{n - 1}": run_hash("completed", at=at, lookup={"user_id": ["62"]})})
            await check(space, now_ms=at)
        if n > 11:
            await space.send("UNLINK", space.key(f"run:{n - 12}"))
    keys = await space.snapshot()
    for name in ("runs:completed", "runs:ends", by("user_id", "62")):
        contents = keys[name]
        assert isinstance(contents, dict)
        assert len(contents) < 16, name
    # When all have ended, all sets have a time to live.
    await space.seed({f"run:{run}": run_hash("completed", at=at) for run in ("first", "59")})
    await check(space, now_ms=at)
    await space.send("UNLINK", *(space.key(f"run:{n}") for n in range(60)), space.key("run:first"))
    assert "runs:active" not in await space.snapshot()


@pytest.mark.seed("GLD-B15")
async def test_reading_keeps_the_places_of_runs_that_are_gone(space: Space) -> None:
    stages = {"stages": '["check","done"]', "s:check": "d", "s:done": "w", "t:check": "5", "e:done": "why"}
    why = {"error": "x: why"}
    await space.seed({"run:a": run_hash("active", more=stages), "run:b": run_hash("failed", more=why)})
    await space.seed({"run:building": {"building": "1", "flow": "access"}})
    a, gone, building, b = await space.run(
        "runs_read", [("a",), ("gone",), ("building",), ("b",)], max_bytes=9
    )
    assert (gone, building) == (None, None)
    assert a[:2] == [b"access", b"active"]
    assert a[15:] == [[None, None], b"d", None, b"5", None, None, b"w", b"why", None, None, None]
    assert (b[1], b[9], b[15:]) == (b"failed", b"x: why", [[]])


async def test_results_are_read_with_runs_until_they_are_too_large(space: Space) -> None:
    more = {"stages": '["check"]', "attributes": '["user"]', "a:user": "62", "r:check": "x" * 8}
    await space.seed({f"run:{one}": run_hash("active", more=more) for one in "ab"})
    a, b = await space.run("runs_read", [("a",), ("b",)], max_bytes=15)
    assert (a[15], b[15], len(b)) == ([b"62", b"x" * 8], [], 21)


async def test_reading_stops_after_250_stages(space: Space) -> None:
    many = {n: json.dumps([f"s{i}" for i in range(n)]) for n in (150, 251)}
    runs: State = {f"run:{n}": run_hash("active", more={"stages": many[150]}) for n in range(3)}
    await space.seed(runs | {"run:larger": run_hash("active", more={"stages": many[251]})})
    larger, first, second, third = await space.run(
        "runs_read", [(n,) for n in ("larger", 0, 1, 2)], max_bytes=0
    )
    assert (len(larger), len(first), len(second), third) == (16, 766, 766, 0)


async def test_fields_are_read_until_they_are_too_large(space: Space) -> None:
    await space.seed({"run:a": {"r:a": "x" * 90, "r:b": "y" * 90, "r:c": "z"}})
    names = [("r:a",), ("r:none",), ("r:b",), ("r:c",)]
    assert await space.run("run_fields", names, run="a", max_bytes=99) == [b"x" * 90, None]
    assert await space.run("run_fields", names, run="a", max_bytes=1) == [b"x" * 90]
    assert await space.run("run_fields", names[2:], run="a", max_bytes=999) == [b"y" * 90, b"z"]


@pytest.mark.seed("GLD-O14")
async def test_a_run_that_has_ended_is_deleted_without_a_trace(space: Space) -> None:
    before = RUNS | listed(RUNS)
    await space.seed(before | {"result:c": Expiring("{}"), "cancelled": Expiring({"c": NOW + 9.0})})
    assert await space.run("run_delete", run="c", is_last=0) == 1
    assert (await space.send("HGET", space.key("run:c"), "deleting")) == b"1"
    assert await space.run("run_delete", run="c", is_last=1) == 1
    others = {key: runs for key, runs in RUNS.items() if key != "run:c"}
    assert await space.snapshot() == others | listed(others)
    assert await space.run("run_delete", run="c", is_last=1) == 0


async def test_a_run_with_unfinished_stages_is_not_deleted(space: Space) -> None:
    before = RUNS | listed(RUNS)
    await space.seed(before)
    for run in ("a", "e"):
        for is_last in (0, 1):
            assert await space.run("run_delete", run=run, is_last=is_last) == -1
    assert await space.snapshot() == before


async def test_entries_of_runs_that_are_gone_are_dropped(space: Space) -> None:
    gone: State = {"run:z": run_hash("active", at=NOW, lookup={"user_id": ["62"]})}
    await space.seed(listed(gone))
    repairs, sets = await check(space)
    assert (repairs, sorted(sets)) == ([], sorted(listed(gone)))
    dropped = [await check(space, name) for name in (by("user_id", "62"), "runs:active", "runs:ends")]
    assert dropped == [[["lost_run", "z"], []]] * 3
    assert await space.snapshot() == {}


async def test_a_hash_has_a_time_to_live_if_and_only_if_the_run_has_ended(space: Space) -> None:
    wrong: State = {"run:a": Expiring(_contents(RUNS["run:a"])), "run:c": _contents(RUNS["run:c"])}
    right = {key: RUNS[key] for key in wrong}
    await space.seed(wrong | listed(right))
    repairs, _ = await check(space)
    assert sorted(repairs) == sorted(["expiring_run", "a", "no_time_to_live", space.key("run:c")])
    assert await space.snapshot() == right | listed(right)


def _contents(drawn: object) -> dict[str, str]:
    contents = drawn.contents if isinstance(drawn, Expiring) else drawn
    assert isinstance(contents, dict)
    return {field: str(value) for field, value in contents.items()}
