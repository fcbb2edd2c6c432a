"""Flow runs: what follows what, how the runs end, and runs that are larger than one call."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from tests.lua.runs import RESULT, Runs, contents
from tests.lua.space import NOW, Expiring, Space

if TYPE_CHECKING:
    from tests.lua.runs import Row


@pytest.mark.seed("GLD-O5", "GLD-B21", "GLD-G6", "GLD-L3", "GLD-L5")
async def test_a_finished_stage_completes_its_item_and_adds_its_successor_in_one_step(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"), result="b")
    [row] = await runs.lease()
    assert (row.id, row.path) == ("r/a", "a")
    assert await runs.finish(row.done()) == [1]
    assert await runs.hash() == {"state": "active", "active": "1", "s:a": "d", "r:a": RESULT, "s:b": "w"}
    [row] = await runs.lease()
    assert row.path == "b"
    assert await runs.finish(row.done("[]")) == [1]
    assert await runs.finish(row.done("[]")) == [0]
    assert await runs.states() == {"run": "completed", "a": "d", "b": "d"}
    assert await runs.result() == {"result": []}
    after = await runs.space.snapshot()
    assert isinstance(after["run:r"], Expiring)
    assert after.keys() == {"run:r", "result:r", "runs:completed", "runs:ends", "fence"}


async def test_a_run_is_started_once(runs: Runs) -> None:
    stages = (runs.stage("a"), runs.stage("b", "a"))
    assert await runs.start(*stages, attributes={"user": b"1.10"}) == 1
    before = await runs.space.snapshot()
    assert await runs.start(*stages, attributes={"user": b"2"}) == 0
    assert await runs.space.snapshot() == before
    assert (await runs.fields())["a:user"] == "1.10"


async def test_a_failure_that_nothing_tolerates_fails_the_run_when_the_rest_has_ended(runs: Runs) -> None:
    await runs.start(
        runs.stage("a"), runs.stage("b", "a"), runs.stage("c", "b"), runs.stage("x"), runs.stage("y", "x")
    )
    assert await runs.step(a="failed") == ["a", "x"]
    assert await runs.states() == {"run": "active", "a": "f", "x": "d", "y": "w"}
    assert await runs.step() == ["y"]
    assert await runs.states() == {"run": "failed", "a": "f", "x": "d", "y": "d"}
    found = await runs.hash()
    assert (found["error"], found["e:a"]) == ("a: ValueError: bad", "ValueError: bad")
    assert await runs.result() == {"error": {"type": "FlowFailed", "message": "a: ValueError: bad"}}
    dead = contents(await runs.space.snapshot(), "dead:r/a")
    assert json.loads(dead["options"]) == {"run": f"{runs.home}\0r\0a"}


JOINS = [
    # The join; the outcomes of its three stages; the state of the joining stage; that of the run.
    ("all", "ddd", "d", "completed"),
    ("all", "dfd", None, "failed"),
    ("settled", "dfd", "d", "completed"),
    ("settled", "fff", "d", "completed"),
    ("fail", "ddd", "d", "completed"),
    ("fail", "dfd", None, "failed"),
    ("fail_fast", "ddd", "d", "completed"),
    ("fail_fast", "fdd", None, "failed"),
    ("n:2", "ddf", "d", "completed"),
    ("n:2", "fdd", "d", "completed"),
    ("n:2", "fdf", None, "failed"),
    ("n:3", "fdd", None, "failed"),
    ("n:1", "ffd", "d", "completed"),
]


@pytest.mark.parametrize(("join", "ends", "joined", "state"), JOINS)
async def test_a_join_of_stages(runs: Runs, join: str, ends: str, joined: str | None, state: str) -> None:
    names = [f"s{i}" for i in range(3)]
    end = runs.stage("end", *names, join=join)
    await runs.start(*map(runs.stage, names), end, runs.stage("last", "end"), result="last")
    rows = {row.path: row for row in await runs.lease()}
    for name, letter in zip(names, ends, strict=True):
        await runs.finish(rows[name].failed() if letter == "f" else rows[name].done())
    if joined:
        assert await runs.step() == ["end"]
        assert await runs.step() == ["last"]
    assert await runs.step() == []
    states = await runs.states()
    assert states["run"] == state
    assert [states[name] for name in names] == [*ends]
    assert states.get("end") == states.get("last") == joined
    assert (await runs.hash())["active"] == "0"
    found = await runs.result()
    assert ("error" in found) == (state == "failed")
    assert (await runs.hash())["i:end"].split()[0] == "3"


@pytest.mark.parametrize(("join", "ends", "joined", "state"), JOINS)
async def test_a_join_of_children(runs: Runs, join: str, ends: str, joined: str | None, state: str) -> None:
    await runs.start(runs.stage("a"), runs.stage("end", "a"), result="end")
    [row] = await runs.lease()
    assert await runs.finish(row.fan([runs.child(i) for i in range(3)], join)) == [1]
    rows = {row.path: row for row in await runs.lease()}
    assert sorted(rows) == ["a/0", "a/1", "a/2"]
    for i, letter in enumerate(ends):
        row = rows[f"a/{i}"]
        await runs.finish(row.failed() if letter == "f" else row.done(str(i)))
    states = await runs.states()
    assert states["a"] == ("d" if joined else "f")
    if joined:
        assert await runs.step() == ["end"]
    assert await runs.step() == []
    assert (await runs.states())["run"] == state
    found = await runs.hash()
    assert found["active"] == "0"
    assert found["j:a"] == f"3 3 {ends.count('d')} {ends.count('f')} 0 0"
    left = [name for name in await runs.fields() if name.startswith("k:")]
    assert len(left) == ends.count("f")


@pytest.mark.seed("GLD-O8", "GLD-O9", "GLD-G5")
async def test_the_last_child_opens_the_next_stage(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"))
    [row] = await runs.lease()
    await runs.finish(row.fan([runs.child(i) for i in range(3)]))
    first, *others = await runs.lease()
    await runs.finish(*(row.done() for row in others))
    assert (await runs.states())["a"] == "x"
    await runs.finish(first.done())
    assert (await runs.states())["a"] == "d"
    assert await runs.step() == ["b"]


async def test_children_of_one_call_are_joined_in_it(runs: Runs) -> None:
    """All rows of a run that are in one call change its hash together."""
    await runs.start(runs.stage("a"), runs.stage("b", "a"))
    [row] = await runs.lease()
    await runs.finish(row.fan([runs.child(i) for i in range(9)]))
    assert len(await runs.step()) == 9
    assert (await runs.hash())["j:a"] == "9 9 9 0 0 0"
    assert await runs.step() == ["b"]


@pytest.mark.seed("GLD-G7", "GLD-T4", "GLD-L7")
async def test_children_fan_out_again(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"))
    [row] = await runs.lease()
    await runs.finish(row.fan([runs.child(i) for i in range(2)]))
    first, second = sorted(await runs.lease())
    assert await runs.finish(first.fan([runs.child(i) for i in range(2)]), second.done()) == [1, 1]
    assert await runs.step() == ["a/0/0", "a/0/1"]
    assert (await runs.states())["a/0"] == "d"
    assert await runs.step() == ["b"]
    paths = ["a", "b", "a/0", "a/1", "a/0/0", "a/0/1"]
    assert await runs.states() == {"run": "completed"} | dict.fromkeys(paths, "d")


async def test_a_stage_without_children_is_done_with_an_empty_list(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"), result="a")
    [row] = await runs.lease()
    assert await runs.finish(row.fan([])) == [1]
    assert await runs.step() == ["b"]
    assert await runs.result() == {"result": []}


async def test_a_choice_skips_what_was_not_picked(runs: Runs) -> None:
    await runs.start(
        runs.stage("a", choice=True),
        runs.stage("yes", "a"),
        runs.stage("no", "a"),
        runs.stage("never", "no"),
        runs.stage("end", "yes", "never"),
        runs.stage("nothing", "no", "never"),
    )
    [row] = await runs.lease()
    before = await runs.space.snapshot()
    assert await runs.finish(row.done("1", '["maybe"]')) == [-4]
    assert await runs.space.snapshot() == before
    assert await runs.finish(row.done("1", '["yes"]')) == [1]
    skipped = {"no": "k", "never": "k", "nothing": "k"}
    assert await runs.states() == {"run": "active", "a": "d", "yes": "w"} | skipped
    assert await runs.step() == ["yes"]
    assert await runs.step() == ["end"]
    assert (await runs.states())["run"] == "completed"


async def test_what_can_never_be_entered_keeps_no_join_waiting(runs: Runs) -> None:
    await runs.start(
        runs.stage("check"),
        runs.stage("a", "check"),
        runs.stage("b"),
        runs.stage("end", "a", "b", join="settled"),
    )
    assert await runs.step(check="failed") == ["b", "check"]
    assert await runs.step() == ["end"]
    found = await runs.states()
    assert found == {"run": "completed", "check": "f", "b": "d", "end": "d"}


async def test_a_stage_without_an_item_only_joins(runs: Runs) -> None:
    await runs.start(
        runs.stage("a"),
        runs.stage("b"),
        StagePlan("both", after=("a", "b"), join="settled"),
        runs.stage("c", "both"),
        StagePlan("end", after=("c",)),
        result="end",
    )
    assert await runs.step(b="failed") == ["a", "b"]
    assert await runs.step() == ["c"]
    assert (await runs.states())["run"] == "completed"
    assert await runs.result() == {"result": None}


async def test_children_of_the_plan(runs: Runs) -> None:
    children = tuple(runs.child(i) for i in range(3))
    await runs.start(
        StagePlan("all", children=children),
        runs.stage("b", "all"),
        StagePlan("more", after=("b",), children=children),
    )
    assert await runs.step() == ["all/0", "all/1", "all/2"]
    assert await runs.step() == ["b"]
    assert await runs.step() == ["more/0", "more/1", "more/2"]
    assert (await runs.states())["run"] == "completed"
    assert sum(name.startswith("k:") for name in await runs.fields()) == 6


@pytest.mark.seed("GLD-B4", "GLD-B5")
async def test_a_holder_of_an_earlier_incarnation_changes_nothing(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"))
    [row] = await runs.lease()
    stale = row._replace(token=row.token + 7)
    before = await runs.space.snapshot()
    rows = (stale.done(), stale.failed(), stale.fan([runs.child(1)]), stale.more(), stale.ending("drop"))
    assert await runs.finish(*rows) == [-1, 0, -1, -1, -1]
    assert await runs.space.snapshot() == before
    [late] = await runs.lease(at=1_000_000 + 60_001)
    assert await runs.finish(row.failed(), row.ending("done", "1", fenced=1)) == [0, -1]
    assert (await runs.states())["a"] == "w"
    assert await runs.finish(row.done('"first"')) == [1]
    assert await runs.finish(late.done('"second"')) == [0]
    assert (await runs.hash())["r:a"] == '"first"'
    assert await runs.step() == ["b"]


@pytest.mark.parametrize("name", ["lease", "leased_by_session"])
async def test_a_stage_whose_item_a_foreign_client_has_leased_is_not_ended(runs: Runs, name: str) -> None:
    await runs.start(runs.stage("a"), runs.stage("b"), runs.stage("c", "a", "b"))
    rows = await runs.lease()
    keys = {row.path: f"{runs.home}:{name}:{row.id}" for row in rows}
    await runs.space.redis.set(keys["a"], "a foreign session", px=60_000)
    await runs.space.redis.delete(keys["b"])
    await runs.space.redis.rpush(keys["b"], "no lease")
    answers = await runs.finish(*(row.ending("done", "1", fenced=1) for row in rows))
    assert dict(zip([row.path for row in rows], answers, strict=True)) == {"a": -1, "b": 1}
    assert await runs.states() == {"run": "active", "a": "w", "b": "d"}


async def test_the_settings_of_a_stage_go_with_its_item(runs: Runs) -> None:
    trace = "00-1a-2b-01"
    await runs.start(
        runs.stage("a", level=8, group="g", expires_ms=5000),
        runs.stage("b", foreign=True, level=1),
        runs.stage("c", delay_ms=7000),
        level=3,
        trace=trace,
    )
    after = await runs.space.snapshot()
    found = {key: json.loads(text) for key, text in contents(after, "options").items()}
    reference = f"{runs.home}\0r\0"
    assert found == {
        "r/a": {"level": 9, "group": "g", "expires": 1_005_000, "trace": trace, "run": f"{reference}a"},
        "r/b": {"trace": trace, "run": f"{reference}b"},
        "r/c": {"level": 3, "trace": trace, "run": f"{reference}c"},
    }
    assert after["scheduled"] == {"r/c": 1_007_000.0}


async def test_a_run_spans_queues_of_one_slot(runs: Runs) -> None:
    other = Space(runs.space.redis, f"{runs.home}-other")
    await runs.start(
        runs.stage("a"), StagePlan("b", other.prefix, b"b", ("a",)), runs.stage("c", "b"), result="c"
    )
    assert await runs.step() == ["a"]
    [row] = await runs.lease(of=other)
    assert await runs.finish(row.fan([ChildPlan(other.prefix, b"1"), runs.child(2)]), of=other) == [1]
    [there] = await runs.lease(of=other)
    assert await runs.step() == ["b/1"]
    assert await runs.finish(there.done(), of=other) == [1]
    assert await runs.step() == ["c"]
    assert (await runs.states())["run"] == "completed"
    assert await other.snapshot() == {"fence": "2"}


async def test_a_queue_that_is_being_deleted_refuses_the_start(runs: Runs) -> None:
    other = Space(runs.space.redis, f"{runs.home}-other")
    await other.seed({"control": {"closed": "deleted 1"}})
    before = await runs.space.snapshot()
    with pytest.raises(Exception, match=f"QUEUEDELETED the queue {other.prefix} is being deleted"):
        await runs.space.run_all([runs.starting(FlowPlan((StagePlan("b", other.prefix, b"b"),)))])
    assert await runs.space.snapshot() == before


@pytest.mark.parametrize("join", ["all", "settled"])
async def test_a_stage_whose_queue_is_being_deleted_fails(runs: Runs, join: str) -> None:
    """Another try of the stage before it would be refused, too. What tolerates the failure continues."""
    other = Space(runs.space.redis, f"{runs.home}-other")
    await other.seed({"control": {"closed": "deleted 1"}})
    b = StagePlan("b", other.prefix, b"b", ("a",))
    await runs.start(runs.stage("a"), b, runs.stage("c", "a"), runs.stage("d", "b", "c", join=join))
    assert await runs.step() == ["a"]
    assert (await runs.states())["b"] == "f"
    error = f"it could not be added: the queue {other.prefix} is being deleted"
    assert (await runs.fields())["e:b"] == error
    assert await runs.step() == ["c"]
    assert await runs.step() == (["d"] if join == "settled" else [])
    fields = await runs.hash()
    assert (fields["state"], fields["active"]) == ("completed" if join == "settled" else "failed", "0")
    assert fields.get("error") == (None if join == "settled" else f"b: {error}")
    assert [*await other.snapshot()] == ["control"]


@pytest.mark.parametrize(("policy", "state"), [("all", "failed"), ("settled", "completed")])
async def test_children_whose_queue_is_being_deleted_fail(runs: Runs, policy: str, state: str) -> None:
    """Also those that are added by further calls."""
    other = Space(runs.space.redis, f"{runs.home}-other")
    await other.seed({"control": {"closed": "deleted 1"}})
    await runs.start(runs.stage("a"), result="a")
    [row] = await runs.lease()
    children = [ChildPlan(other.prefix, b"1")] * 119 + [runs.child(2)]
    assert await runs.finish(row.fan(children, policy)) == [2]
    assert await runs.finish(row.more()) == [1]
    assert (await runs.fields())["j:a"] == "120 120 0 119 0 0"
    assert await runs.step() == ["a/119"]
    assert (await runs.states())["run"] == state
    assert [*await other.snapshot()] == ["control"]


async def test_a_run_that_is_not_kept_leaves_nothing(runs: Runs) -> None:
    await runs.start(runs.stage("a"), keep_ms=0, lookup={"user": ["1"]})
    await runs.step()
    assert await runs.space.snapshot() == {"fence": "1"}


async def test_items_of_a_run_that_is_gone_are_completed(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b"))
    first, second = sorted(await runs.lease())
    await runs.space.redis.unlink(f"{runs.home}:run:r")
    assert await runs.finish(first.done(), second.failed()) == [1, 1]


async def test_an_item_whose_handler_was_not_called_is_cancelled(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b", "a"))
    [row] = await runs.lease()
    assert await runs.finish(row.ending("drop")) == [1]
    assert await runs.states() == {"run": "failed", "a": "c"}
    assert (await runs.hash())["error"] == "a: cancelled"


async def test_the_rest_of_a_join_that_needs_no_more_is_reported(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b"), runs.stage("c", "a", "b", join="n:1"))
    first, second = sorted(await runs.lease())
    await runs.finish(first.done())
    assert runs.rest == ["c"]
    assert (await runs.space.snapshot())["unsettled"] == {f"!{runs.home}\0r\0c": "cancel"}
    await runs.finish(second.fan([runs.child(i) for i in range(3)], "fail_fast"))
    rows = {row.path: row for row in await runs.lease()}
    await runs.finish(rows["b/1"].failed())
    assert runs.rest == ["b/"]
    assert (await runs.states())["run"] == "failed"


async def store(space: Space, row: Row, outcome: str, *, at: int = NOW) -> tuple[int, bytes]:
    """Store the outcome of a step."""
    accepted, stored = await space.run(
        "run_once",
        item=row.id,
        lease=row.token,
        of_stage=row.reference,
        step="charge",
        outcome=outcome,
        now_ms=at,
    )
    return accepted, stored


@pytest.mark.seed("GLD-B4")
async def test_the_first_outcome_stays_and_a_stale_holder_stores_none(space: Space) -> None:
    runs = Runs(space)
    await runs.start(runs.stage("a"))
    [row] = await runs.lease()
    later = NOW + 60_001
    [again] = await runs.lease(at=later)
    assert await store(space, row, "9", at=later) == (0, b"")
    assert "o:a\0charge" not in await runs.fields()
    assert await store(space, again, '{"n":1.10}', at=later) == (1, b'{"n":1.10}')
    assert await store(space, again, "2", at=later) == (1, b'{"n":1.10}')
    assert (await runs.fields())["o:a\0charge"] == '{"n":1.10}'
    assert await runs.finish(again.done(), at=later) == [1]
    assert await store(space, again, "3", at=later) == (0, b"")


async def test_no_outcome_is_stored_for_a_run_that_is_gone(space: Space) -> None:
    runs = Runs(space)
    await runs.start(runs.stage("a"))
    [row] = await runs.lease()
    await space.redis.delete(f"{space.prefix}:run:r")
    before = await space.snapshot()
    assert await store(space, row, "1") == (0, b"")
    assert await store(space, row._replace(reference=b"no reference"), "1") == (0, b"")
    assert await space.snapshot() == before


@pytest.mark.seed("GLD-B17")
async def test_more_children_than_one_call_adds(runs: Runs) -> None:
    """The definitions are stored first; a holder that dies between two calls is followed by another."""
    await runs.start(runs.stage("a"), runs.stage("b", "a"), result="a")
    [row] = await runs.lease()
    children = [runs.child(i) for i in range(180)]
    for first in range(0, 180, 60):
        text = b"[" + b",".join(child.json() for child in children[first : first + 60]) + b"]"
        assert await runs.finish(row.ending("stage", text, str(first))) == [2]
    assert await runs.finish(row.ending("fan", "181", "all")) == [-1]
    assert await runs.finish(row.ending("fan", "180", "all")) == [2]
    found = await runs.hash()
    assert (found["j:a"], found["active"], found["s:a"]) == ("180 60 0 0 0 0", "61", "x")
    at = 1_000_000 + 60_001
    leased = {one.path: one for one in await runs.lease(61, at=at)}
    while "a" not in leased:
        leased |= {one.path: one for one in await runs.lease(250, at=at)}
    assert await runs.finish(leased["a"].more(), at=at) == [2]
    assert await runs.finish(leased["a"].more(), at=at) == [1]
    assert (await runs.hash())["j:a"] == "180 180 0 0 0 0"
    del leased["a"]
    while len(leased) < 180:
        leased |= {one.path: one for one in await runs.lease(250, at=at)}
    rows = [row.done(row.path.partition("/")[2]) for row in leased.values()]
    for start in range(0, 180, 60):
        assert await runs.finish(*rows[start : start + 60], at=at) == [1] * 60
    assert (await runs.hash())["j:a"] == "180 180 180 0 0 0"
    [row] = await runs.lease(at=at)
    assert row.path == "b"
    await runs.finish(row.done(), at=at)
    assert await runs.result() == {"stage": "a"}


async def test_many_children_of_the_plan_are_added_by_the_holder_of_an_item(runs: Runs) -> None:
    children = tuple(runs.child(i) for i in range(120))
    await runs.start(StagePlan("all", children=children), runs.stage("b", "all"))
    assert (await runs.hash())["j:all"] == "120 60 0 0 0 1"
    rows = {row.path: row for row in [*await runs.lease(), *await runs.lease()]}
    assert len(rows) == 61
    assert await runs.finish(rows.pop("all").more()) == [1]
    rows |= {row.path: row for row in await runs.lease()}
    assert len(rows) == 120
    for path in sorted(rows):
        await runs.finish(rows[path].done())
    assert await runs.step() == ["b"]
    assert (await runs.states())["run"] == "completed"


async def test_many_first_stages(runs: Runs) -> None:
    names = [f"s{i}" for i in range(120)]
    await runs.start(*map(runs.stage, names), runs.stage("end", *names))
    rows = {row.path: row for row in [*await runs.lease(), *await runs.lease()]}
    assert len(rows) == 61
    assert await runs.finish(*(rows[name].done() for name in names[:50])) == [1] * 50
    assert await runs.finish(rows[""].more()) == [1]
    assert await runs.finish(*(rows[name].done() for name in names[50:60])) == [1] * 10
    assert await runs.step() == sorted(names[60:])
    assert await runs.step() == ["end"]
    assert (await runs.states())["run"] == "completed"


async def test_a_run_of_many_fields_is_stored_in_several_calls(runs: Runs) -> None:
    plan = FlowPlan(tuple(runs.stage(f"s{i}", *([f"s{i - 1}"] if i else [])) for i in range(5)))
    fields = plan.fields()

    async def store(builder: str, start: int, stop: int) -> int:
        part = {
            "of_run": "r",
            "builder": builder,
            "is_first": int(not start),
            "seal": int(stop == len(fields)),
        }
        reply: int = await runs.space.run("run_start", fields[start:stop], **part)
        return reply

    assert await store("one", 0, 5) == 1
    assert isinstance((await runs.space.snapshot())["run:r"], Expiring)
    assert await store("two", 0, 3) == 1
    assert await store("one", 5, len(fields)) == -1
    assert await store("two", 3, 8) == 1
    assert await store("two", 8, len(fields)) == 1
    after = await runs.space.snapshot()
    assert not isinstance(after["run:r"], Expiring)
    assert "building" not in await runs.fields()
    assert await store("one", 0, 5) == 0
    assert await store("one", 0, len(fields)) == 0
    assert await runs.space.snapshot() == after
    for i in range(5):
        assert await runs.step() == [f"s{i}"]
    assert (await runs.states())["run"] == "completed"


async def test_children_that_are_not_added_when_the_run_ends_keep_it_from_nothing(runs: Runs) -> None:
    """The run has failed at once: it expires when the children that were added have ended."""
    children = tuple(runs.child(i) for i in range(120))
    await runs.start(
        runs.stage("a"),
        StagePlan("many", children=children),
        runs.stage("b"),
        runs.stage("c", "a", join="fail"),
    )
    rows = {row.path: row for row in [*await runs.lease(), *await runs.lease()]}
    assert await runs.finish(rows.pop("a").failed(), rows.pop("b").fan(children)) == [1, 1]
    assert (await runs.states())["run"] == "failed"
    assert await runs.finish(rows.pop("many").more()) == [1]
    states = await runs.states()
    assert (states["many"], states["b"]) == ("c", "c")
    ended = [row.done() for row in rows.values()]
    for start in range(0, len(ended), 50):
        await runs.finish(*ended[start : start + 50])
    assert (await runs.hash())["active"] == "0"
    assert isinstance((await runs.space.snapshot())["run:r"], Expiring)


async def test_first_stages_that_are_not_added_when_the_run_ends_keep_it_from_nothing(runs: Runs) -> None:
    names = [f"s{i}" for i in range(120)]
    await runs.start(*map(runs.stage, names), runs.stage("end", *names, join="fail"))
    rows = {row.path: row for row in await runs.lease()}
    assert await runs.finish(rows.pop("s0").failed(), rows.pop("").more()) == [1, 1]
    ended = [row.done() for row in rows.values()]
    for start in range(0, len(ended), 50):
        await runs.finish(*ended[start : start + 50])
    found = await runs.hash()
    assert (found["active"], found["state"], found["error"]) == ("0", "failed", "s0: ValueError: bad")


async def next_of(runs: Runs) -> str:
    """Lease the next item and finish its stage, if it is one; return its id."""
    [row] = await runs.lease(1)
    if row.reference:
        assert await runs.finish(row.done()) == [1]
    return row.id


async def test_what_joins_parts_is_leased_next(runs: Runs) -> None:
    await runs.start(
        runs.stage("group", queue="", children=(runs.child(0), runs.child(1))),
        runs.stage("sum", "group"),
        runs.stage("send", "sum"),
    )
    await runs.start(
        runs.stage("a"),
        runs.stage("b", "a"),
        runs.stage("c", "a"),
        runs.stage("d", "b", "c"),
        runs.stage("children", "d", queue="", children=(runs.child(0), runs.child(1))),
        run="other",
    )
    await runs.space.run("add_items", [("plain", b"{}", 0, 0)])
    order = ["r/group/0", "r/group/1", "r/sum", "other/a", "plain", "r/send", "other/b", "other/c", "other/d"]
    assert [await next_of(runs) for _ in order] == order


async def test_a_join_stays_behind_items_of_a_higher_priority(runs: Runs) -> None:
    await runs.start(runs.stage("a"), runs.stage("b"), runs.stage("low", "a", "b", level=-1))
    await runs.space.run("add_items", [("plain", b"{}", 0, 0), ("lower", b"{}", 0, '0:{"level":-1}')])
    order = ["r/a", "r/b", "plain", "r/low", "lower"]
    assert [await next_of(runs) for _ in order] == order


async def test_runs_that_follow_each_other_for_ever_starve_nothing(runs: Runs) -> None:
    async def begin(number: int) -> None:
        group = runs.stage("group", queue="", children=(runs.child(0), runs.child(1)))
        await runs.start(
            group, runs.stage("more", "group"), runs.stage("join", "group", "more"), run=f"{number}"
        )

    for number in range(3):
        await begin(number)
    await runs.space.run("add_items", [("plain", b"{}", 0, 0)])
    passed = []
    for number in range(3, 100):
        passed.append(await next_of(runs))
        if passed[-1] == "plain":
            break
        await begin(number)
    # Six children were before it, and it is passed by the six joins of these; each new run waits behind it.
    assert len(passed) == 13
    assert passed[-1] == "plain"
