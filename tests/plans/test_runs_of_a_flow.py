"""Tests of seeing and steering the runs of a flow: those of its name, by the types of its attributes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from leasequeue import FanOut, Reject, TaskQueue, fan_out
from leasequeue.errors import JobCancelled, JobFailed, JobUnknown, UnknownAttribute
from leasequeue.flow import Flow
from leasequeue.queue.plans.diagram import draw_run
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue.queue.plans.reading import FlowRunView


class Plan(StrEnum):
    FREE = "free"


ID = UUID(int=7)
NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)


@pytest.fixture
def flow(tasks: TaskQueue) -> Flow:
    types = {"user": UUID, "at": datetime, "plan": Plan, "guilds": list[int], "note": str | None}
    flow = Flow("access", tasks, attributes=types, lookup=["user", "at", "plan", "guilds", "note"])

    @tasks.task
    async def check(user: UUID, plan: Plan) -> str:
        return f"{user} {plan}"

    flow.stage(check)
    return flow


def ids(views: list[FlowRunView]) -> set[str]:
    return {view.id for view in views}


@pytest.mark.seed("GLD-O13", "GLD-L4")
async def test_runs_are_found_by_values_of_any_declared_type(tasks: TaskQueue, flow: Flow) -> None:
    other = Flow("other", tasks, attributes={"user": UUID}, lookup=["user"])
    other.stage(tasks.tasks[0], args={"plan": Plan.FREE})
    await other.start(user=ID, id="o")
    await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[1985, 7], id="a")
    await flow.start(user=UUID(int=8), at=NOW, plan=Plan.FREE, guilds=[7], note="x", id="b")
    assert ids(await flow.runs.find(user=ID)) == {"a"}
    assert ids(await flow.runs.find(at=NOW)) == ids(await flow.runs.find(plan=Plan.FREE)) == {"a", "b"}
    assert ids(await flow.runs.find(guilds=1985)) == ids(await flow.runs.find(guilds=[7, 1985])) == {"a"}
    assert ids(await flow.runs.find(note="x")) == {"b"}
    assert ids(await flow.runs.find(guilds=7, note=None)) == {"a"}
    with pytest.raises(UnknownAttribute, match="no runs by 'guild': its lookup= has user, at, plan"):
        await flow.runs.find(guild=7)


@pytest.mark.seed("GLD-B15")
async def test_the_runs_of_a_flow_are_those_of_its_name(tasks: TaskQueue, flow: Flow) -> None:
    other = Flow("other", tasks, attributes={"user": UUID})
    other.stage(tasks.tasks[0], args={"plan": Plan.FREE})
    await other.start(user=ID, id="o")
    await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[], id="a")
    assert [view and view.id for view in await flow.runs.list()] == ["a"]
    assert [view and view.id for view in await flow.runs.list(["o", "a", "?"])] == [None, "a", None]
    with pytest.raises(JobUnknown):
        await flow.runs.get("o")
    assert (await flow.runs.get("a")).attributes["guilds"] == []


async def test_a_run_is_cancelled_replayed_and_deleted(tasks: TaskQueue, flow: Flow) -> None:
    run = await flow.start(user=ID, at=NOW, plan=Plan.FREE, guilds=[], id="a")
    assert await flow.runs.cancel("a")
    with pytest.raises(JobCancelled):
        await run.result(timeout=120)
    again = await flow.runs.replay("a")
    async with working(new_worker(tasks)):
        assert await flow.runs.result(again, timeout=120) == f"{ID} free"
    assert await flow.runs.delete("a")
    with pytest.raises(JobUnknown):
        await flow.runs.get("a")


async def test_a_failed_run_is_retried_from_the_stage_that_failed(tasks: TaskQueue) -> None:
    calls: list[str] = []
    flow = Flow("access", tasks, attributes={"number": int})

    @tasks.task
    async def check(number: int) -> int:
        calls.append("check")
        return number

    @tasks.task
    async def flaky(check: int) -> int:
        calls.append("flaky")
        if calls.count("flaky") == 1:
            raise Reject("down")
        return check

    flow.stage(flaky, after=flow.stage(check))
    run = await flow.start(number=4)
    async with working(new_worker(tasks)):
        with pytest.raises(JobFailed, match="down"):
            await run.result(timeout=120)
        assert await flow.runs.retry(run.id)
        assert await run.result(timeout=120) == 4
    assert calls == ["check", "flaky", "flaky"]


@pytest.mark.seed("GLD-O20")
async def test_a_run_is_drawn_with_states_and_counts(tasks: TaskQueue) -> None:
    flow = Flow("access", tasks, attributes={"number": int})
    held = asyncio.Event()

    @tasks.task
    async def check(number: int) -> int:
        return number

    @tasks.task
    async def child(number: int) -> int:
        if number == 1:
            await held.wait()
        return number

    @tasks.task
    async def fan(check: int) -> FanOut[int]:
        return fan_out([child.call(number) for number in range(check)])

    @tasks.task
    async def end(fan: list[int]) -> None:
        raise Reject(f"{fan}")

    first = flow.stage(check)
    flow.stage(end, after=flow.stage(fan, after=first))
    run = await flow.start(number=3)
    async with working(new_worker(tasks)):
        async with asyncio.timeout(120):
            while (await flow.runs.get(run.id)).progress[0] < 3:  # noqa: ASYNC110 - the state of the server
                await asyncio.sleep(0.005)
        assert (await flow.runs.mermaid(run.id)).splitlines()[:6] == [
            "flowchart LR",
            '    s0["check<br/>done"]',
            '    s1[["fan<br/>fanned out<br/>3 children, 1 unfinished, 2 done"]]',
            '    s2["end<br/>not entered"]',
            "    s0 --> s1",
            "    s1 --> s2",
        ]
        held.set()
        with pytest.raises(JobFailed):
            await run.result(timeout=120)
    drawn = draw_run(await tasks.queue.flow_runs.get(run.id))
    assert '    s2["end<br/>failed<br/>' in drawn
    assert "    class s0,s1 done\n" in drawn
    assert "    class s2 failed\n" in drawn
