"""Flow runs with more stages, children or fields than one call takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from tests.lua.space import Expiring

if TYPE_CHECKING:
    from tests.lua.runs import Runs


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
