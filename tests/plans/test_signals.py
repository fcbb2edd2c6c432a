"""Stages that wait for signals and times, in flows and chains, with workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AtLeast, InvalidArgument, JobFailed, JobUnknown, TaskQueue, Worker, group, signal
from leasequeue.errors import FlowRunEnded, InvalidCall, InvalidFlow, UnknownSignal
from leasequeue.flow import Flow
from leasequeue.queue.plans.diagram import draw_run
from tests.plans.flows import ONE_QUEUE, ended, field, states
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from leasequeue import FlowRun


@dataclass
class Approval:
    by: str
    granted: bool = True


def flow_of(tasks: TaskQueue, *, within: float | None = 600, **otherwise: Any) -> Flow[str]:
    """Return a flow: a request, an approval, and what follows from it."""

    @tasks.task
    async def ask(amount: int) -> int:
        return amount

    @tasks.task
    async def pay(ask: int, approval: Approval | None) -> str:
        return f"{ask}: {approval.by if approval else 'nobody'}"

    flow = Flow("requests", tasks, attributes={"amount": int}, returns=str)
    asked = flow.stage(ask)
    approved = flow.signal("approval", type=Approval, after=asked, within=within, **otherwise)
    flow.stage(pay, after=approved)
    return flow


async def waiting(flow: Flow[str], run_id: str = "r") -> FlowRun[str]:
    """Start a run, and work until it waits."""
    run = await flow.start(amount=7, id=run_id)
    await new_worker(flow).drain()
    return run


async def test_a_signal_is_given_before_or_while_the_stage_waits_and_counts_once(tasks: TaskQueue) -> None:
    flow = flow_of(tasks)
    run = await waiting(flow)
    early = await flow.start(amount=8, id="early")
    for one in (run, early):
        answers = await asyncio.gather(*(one.signal("approval", by=f"{n}") for n in range(8)))
        assert sorted(answers) == [False] * 7 + [True]
        assert not await flow.runs.signal(one.id, "approval", Approval("late"))
    await new_worker(flow).drain()
    [first, other] = [await one.result(timeout=60) for one in (run, early)]
    assert (first[:3], other[:3]) == ("7: ", "8: ")
    assert {first[3:], other[3:]} <= {str(n) for n in range(8)}


async def test_while_a_run_waits_no_worker_is_occupied_and_its_view_says_until_when(tasks: TaskQueue) -> None:
    flow = flow_of(tasks)
    before = datetime.now(UTC)
    run = await waiting(flow)
    counts = await tasks.queue.counts()
    assert (counts.scheduled, counts.leased, counts.waiting) == (1, 0, 0)
    view = await flow.runs.get("r")
    until = view.stages["approval"].until
    assert until is not None
    assert timedelta(0) <= until - before - timedelta(seconds=600) < timedelta(seconds=60)
    assert "approval<br/>entered<br/>waits for its signal until" in draw_run(view)
    assert '(["approval<br/>signal, within 10.0 min"])' in flow.mermaid()
    assert await run.signal("approval", by="ann")
    assert (await flow.runs.get("r")).stages["approval"].until is None
    assert await run.cancel()


@pytest.mark.parametrize("otherwise", [{}, {"otherwise": None}, {"otherwise": Approval("the clock")}])
async def test_what_follows_if_no_signal_comes_in_time(tasks: TaskQueue, otherwise: dict[str, Any]) -> None:
    flow = flow_of(tasks, within=0.001, **otherwise)
    run = await flow.start(amount=7, id="r")
    async with working(new_worker(flow)):
        if otherwise:
            wanted = "nobody" if otherwise["otherwise"] is None else "the clock"
            assert await run.result(timeout=60) == f"7: {wanted}"
        else:
            with pytest.raises(JobFailed, match="SignalMissing: the signal 'approval' has not come in time"):
                await run.result(timeout=60)
            await ended(tasks.queue, "failed")
    with pytest.raises(FlowRunEnded):
        await run.signal("approval", by="ann")


@ONE_QUEUE
async def test_of_signals_and_deadlines_at_the_same_time_exactly_one_decides(tasks: TaskQueue) -> None:
    flow = flow_of(tasks, within=0.03, otherwise=None)
    runs = [await flow.start(amount=n, id=f"{n}") for n in range(30)]

    async def late(run: FlowRun[str]) -> bool:
        await asyncio.sleep(0.001 * (10 + 2 * int(run.id)))
        try:
            return await run.signal("approval", by="ann")
        except FlowRunEnded:
            return False

    async with working(new_worker(flow)):
        given = await asyncio.gather(*map(late, runs))
        results = await asyncio.gather(*(run.result(timeout=60) for run in runs))
    assert results == [f"{n}: {'ann' if given[n] else 'nobody'}" for n in range(30)]


async def test_what_is_no_signal_of_the_run_is_refused_before_anything_changes(tasks: TaskQueue) -> None:
    flow = flow_of(tasks)
    run = await waiting(flow)
    before = await states(tasks.queue)
    with pytest.raises(
        UnknownSignal, match="the flow 'requests' waits for no signal 'aproval': its signals are a"
    ):
        await run.signal("aproval", by="ann")
    with pytest.raises(
        UnknownSignal, match="the flow run 'r' waits for no signal 'ask': its signals are approval"
    ):
        await tasks.queue.flow_runs.signal("r", "ask", 1)
    with pytest.raises(JobUnknown):
        await flow.flow_run("other").signal("approval", by="ann")
    wrong: list[tuple[list[Any], dict[str, Any]]] = [
        (["yes"], {}),
        ([Approval("x")], {"by": "ann"}),
        ([object()], {}),
        ([], {"by": "ann", "grantd": True}),
        ([], {"by": 7}),
        ([], {}),
    ]
    for value, values in wrong:
        with pytest.raises(InvalidArgument):
            await run.signal("approval", *value, **values)
    assert await states(tasks.queue) == before
    assert await field(tasks.queue, "g:approval") is None
    await run.cancel()
    with pytest.raises(FlowRunEnded):
        await run.signal("approval", by="ann")


@ONE_QUEUE
async def test_what_cannot_be_declared_is_refused(tasks: TaskQueue) -> None:
    flow = flow_of(tasks)
    declared = flow.stages

    @tasks.task
    async def later(ask: int) -> None: ...

    for settings in (
        {"type": object},
        {"otherwise": 1},
        {"within": 5, "type": int, "otherwise": "x"},
        {"within": 0},
    ):
        with pytest.raises(InvalidArgument):
            flow.signal("other", **settings)
    for name, error in (("approval", InvalidFlow), ("amount", InvalidFlow), ("a.b", InvalidArgument)):
        with pytest.raises(error):
            flow.signal(name)
    with pytest.raises(TypeError, match="signal\\(\\) takes type, otherwise, after"):
        flow.signal("other", delay=3)  # type: ignore[call-overload] # that is to be refused
    wrong: list[dict[str, Any]] = [
        {"at": "amount"},
        {"at": "unknown"},
        {"at": declared[0]},
        {"at": 5, "delay": 5},
        {"at": declared[1].member("by")},
    ]
    for settings in wrong:
        with pytest.raises(InvalidFlow):
            flow.stage(later, after="approval", **settings)
    assert flow.stages == declared
    with pytest.raises(InvalidCall, match="a run begins with a call"):
        await signal("x", type=int).then(later).add()
    with pytest.raises(InvalidCall, match="two parts have this name"):
        await later.call(1).then(signal("x")).then(signal("x")).add()


async def test_a_chain_waits_for_a_signal_and_a_group_for_some_of_its_signals(tasks: TaskQueue) -> None:
    @tasks.task
    async def ask(amount: int) -> None: ...

    @tasks.task
    async def pay(by: list[str], amount: int) -> str:
        return f"{amount}: {'+'.join(by)}"

    votes = group([signal(f"vote-{n}", type=str, within=600) for n in range(3)], join=AtLeast(2))
    chain = ask.call(7).then(signal("ready")).then(votes, drop_result=True).then(pay, amount=7)
    run = await chain.add(id="r")
    assert await run.signal("vote-2", "bob")
    await new_worker(tasks).drain()
    assert await chain.flow_run("r").signal("ready")
    assert await run.signal("vote-0", "ann")
    with pytest.raises(UnknownSignal):
        await run.signal("vote-3", "eve")
    async with working(new_worker(tasks)):
        assert await run.result(timeout=60) == "7: ann+bob"
        await ended(tasks.queue)
    assert (await tasks.queue.counts()).total == 0


@ONE_QUEUE
async def test_a_worker_of_a_flow_ends_a_signal_also_if_its_queue_has_no_task(tasks: TaskQueue) -> None:
    @tasks.task(queue=f"{tasks.name}-other")
    async def after(answer: str) -> str:
        return answer

    flow = Flow("f", tasks)
    flow.stage(after, after=flow.signal("answer", type=str, within=0.001, otherwise="none"))
    run = await flow.start(id="r")
    async with working(Worker(flow)):
        assert await run.result(timeout=60) == "none"


async def test_a_stage_begins_at_the_time_in_an_attribute(tasks: TaskQueue) -> None:
    @tasks.task
    async def remind() -> str:
        return "now"

    flow = Flow("reminders", tasks, attributes={"on": datetime | None}, returns=str)
    flow.stage(remind, at="on")
    with pytest.raises(InvalidArgument, match="a datetime with a time zone"):
        await flow.start(on=datetime(2030, 1, 1))  # noqa: DTZ001 - that is to be refused
    on = datetime.now(UTC) + timedelta(seconds=0.2)
    far = await flow.start(on=on + timedelta(days=4000), id="far")
    runs = [await flow.start(on=on), await flow.start()]
    async with working(new_worker(flow)):
        assert [await run.result(timeout=60) for run in runs] == ["now", "now"]
        view = await runs[0].view()
    assert view.ended is not None
    assert view.ended >= on.replace(microsecond=on.microsecond // 1000 * 1000)
    until = (await far.view()).stages["remind"].until
    assert until is not None
    assert timedelta(0) <= until - on - timedelta(days=4000) < timedelta(milliseconds=1)
    again = await tasks.queue.flow_runs.replay("far")
    assert (await flow.runs.get(again)).stages["remind"].until == until
