"""A run of another flow, for which a stage waits: its end ends the stage, also if a call is interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.plans.plan import FlowPlan
from tests.lua.runs import Row, Runs
from tests.lua.space import NOW, Call, Space
from tests.queue.keyspace import glob
from tests.stateful.interruption import Interrupter
from tests.stateful.leftovers import Drawn, dumped, restore

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: The id of the run for which the stage `a` of the run `r` waits.
SUB = "r~~a"
MINUTE = 60_001


async def started(runs: Runs, result: str | None = "s", **options: Any) -> tuple[Row, Row]:
    """Start a run, and that for which its stage waits, as its holder does; return the items of both."""
    waiting = runs.stage("a", flow="other", **options)
    await runs.start(waiting, runs.stage("b", "a", join="settled"), run="r", result="b")
    [parent] = await runs.lease()
    await start_sub(runs, parent.reference, result)
    [sub] = await runs.lease()
    return parent, sub


async def start_sub(runs: Runs, parent: bytes, result: str | None = "s", reply: int = 1) -> None:
    plan = FlowPlan((runs.stage("s"),), result, parent=parent)
    assert await runs.space.run_all([runs.starting(plan, SUB)]) == [reply]


async def ends(runs: Runs) -> tuple[dict[str, str], dict[str, str]]:
    return await runs.states(), await runs.states(SUB)


async def items(runs: Runs) -> set[str]:
    return {key.removeprefix("item:") for key in await runs.space.snapshot() if key.startswith("item:")}


async def test_the_end_of_a_run_ends_the_stage_that_waits_for_it(runs: Runs) -> None:
    _, sub = await started(runs)
    assert await runs.finish(sub.done('"five"')) == [1]
    assert await ends(runs) == (
        {"run": "active", "a": "d", "b": "w"},
        {"run": "completed", "s": "d"},
    )
    assert (await runs.hash())["r:a"] == '"five"'
    assert await items(runs) == {"r/b"}
    assert await runs.step() == ["b"]
    assert await runs.result() == {"result": "b"}


@pytest.mark.parametrize(
    ("how", "state", "error"),
    [
        ("failed", "f", "s: ValueError: bad"),
        ("cancelled", "c", None),
        ("late", "f", "too late"),
        ("fanned", "f", "the result of the run r~~a is that of children: add a stage that takes it"),
        ("none", "d", None),
    ],
)
async def test_a_run_that_ends_otherwise(runs: Runs, how: str, state: str, error: str | None) -> None:
    _, sub = await started(runs, result=None if how == "none" else "s")
    if how in ("cancelled", "late"):
        as_failed = "too late" if how == "late" else ""
        assert await runs.space.run("run_cancel", of_run=SUB, as_failed=as_failed) == 1
    elif how == "fanned":
        assert await runs.finish(sub.fan([runs.child(0)])) == [1]
        [child] = await runs.lease()
        assert await runs.finish(child.done()) == [1]
    else:
        assert await runs.finish(sub.failed() if how == "failed" else sub.done()) == [1]
    fields = await runs.hash()
    result = "null" if state == "d" else None
    assert (fields["s:a"], fields.get("e:a"), fields.get("r:a")) == (state, error, result)
    assert fields["s:b"] == "w"
    assert "r/a" not in await items(runs)


async def test_runs_that_wait_for_each_other_end_in_one_step(runs: Runs) -> None:
    """Also if the outer one has a row before the inner one, and one that nothing waits for."""
    await runs.start(runs.stage("a", flow="x"), runs.stage("z"), run="r", result="a", keep_ms=0)
    a, z = await runs.lease()
    inner = FlowPlan((runs.stage("a", flow="y"),), "a", parent=a.reference)
    await runs.space.run_all([runs.starting(inner, SUB)])
    [b] = await runs.lease()
    last = FlowPlan((runs.stage("s"),), "s", parent=b.reference, keep_ms=0)
    await runs.space.run_all([runs.starting(last, SUB + "~~a")])
    [s] = await runs.lease()
    assert await runs.finish(z.done(), s.done("5")) == [1, 1]
    assert await runs.states() == {"run": "gone"}
    assert await runs.states(SUB) == {"run": "completed", "a": "d"}
    assert await runs.result(SUB) == {"result": 5}
    assert await items(runs) == set()


async def test_only_the_stage_that_waits_for_a_run_is_ended_by_it(runs: Runs) -> None:
    await runs.start(runs.stage("a", flow="x"), runs.stage("b"), run="r")
    [a, _] = await runs.lease()
    elsewhere = Runs(Space(runs.space.redis, f"{runs.home}-other"))
    await elsewhere.start(elsewhere.stage("a", flow="x"))
    [other] = await elsewhere.lease()
    before = await runs.fields(), await elsewhere.fields()
    home, run, _ = a.reference.split(b"\0")
    for parent in (b"", b"nothing", b"\0".join([home, run, b"b"]), other.reference):
        await start_sub(runs, parent)
        [sub] = [row for row in await runs.lease() if row.path == "s"]
        assert await runs.finish(sub.done()) == [1]
        assert (await runs.fields(), await elsewhere.fields()) == before
        assert await runs.space.run("run_delete", run=SUB, is_last=1) == 1


async def test_no_run_is_started_for_a_stage_that_does_not_wait(runs: Runs) -> None:
    await runs.start(runs.stage("a", flow="x"), runs.stage("b"), run="r")
    [a, b] = await runs.lease()
    home, run, _ = a.reference.split(b"\0")
    parts = ([b"gone", b"a"], [run, b"a", b"another mark"], [SUB.encode(), b"s"], [run, b"no stage"])
    for one in parts:
        await start_sub(runs, b"\0".join([home, *one]), reply=-2)
    assert await runs.finish(b.done()) == [1]
    await start_sub(runs, b.reference, reply=-2)
    assert await runs.space.run("run_cancel", of_run="r") == 1
    await start_sub(runs, a.reference, reply=-2)
    assert await runs.fields(SUB) == {}
    assert await items(runs) == {"r/a"}


@pytest.mark.parametrize("how", ["repeated", "by another"])
@pytest.mark.parametrize("step", ["finish", "cancel"])
async def test_a_step_that_ends_both_and_is_interrupted_is_completed(
    redis: Redis, name: str, how: str, step: str
) -> None:
    runs = Runs(Space(redis, name))
    space = runs.space
    interrupter, pattern = Interrupter(space), glob(space.prefix) + b":*"
    _, sub = await started(runs)
    call = Call("run_cancel", (), {"of_run": SUB, "as_failed": ""})
    if step == "finish":
        call = Call("run_finish", [sub.done("5")])
    begun = Drawn(NOW, False, await dumped(space, pattern), [])
    writes = (await interrupter.run(call)).writes
    assert writes > 5
    expected = ("d", "completed") if step == "finish" else ("c", "cancelled")
    for allowed in range(1, writes):
        await restore(space, pattern, begun)
        shown = (await interrupter.run(call, allowed)).commands
        if how == "repeated":
            await space.run_all([call])
        elif step == "finish":  # the lease of the last item of the inner run expires
            await space.run("light_clean", now_ms=NOW + MINUTE)
            for row in await runs.lease(at=NOW + MINUTE):
                await runs.finish(row.done("5"), at=NOW + MINUTE)
        elif (await runs.states(SUB))["run"] == "active":
            continue  # the caller has changed nothing
        else:  # the caller has died, and a worker does what was noted
            await space.run("cancel_many", [(f"{SUB}/s", 60_000)])
            await space.run("run_settle", [(f"={runs.home}\0{SUB}\0s",)], cursor="0")
        states = await runs.states()
        assert (states["a"], (await runs.states(SUB))["run"]) == expected, shown
        assert "r/a" not in await items(runs), shown
        assert states["b"] in "wd", shown
