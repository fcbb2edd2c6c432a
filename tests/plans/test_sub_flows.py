"""Flows as stages of others: one run of the inner flow, which ends the stage, whatever dies in between."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import (
    FanOut,
    HandedOver,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    RetryPolicy,
    TaskQueue,
    fan_out,
)
from leasequeue.errors import FlowRunUnfinished, InvalidFlow
from leasequeue.flow import Flow
from leasequeue.queue.plans.plan import FlowPlan, StagePlan
from tests.plans import sub_flow
from tests.plans.flows import ONE_QUEUE, ended, field, states
from tests.plans.sub_flow import POINTS, Nested
from tests.worker.working import counted, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: The id of the inner run.
INNER = "o1~~payment"


async def is_paying(tasks: TaskQueue) -> None:
    """Wait until the inner run waits for another system, and the stage for the inner run."""
    await counted(tasks.queue, "both are scheduled", lambda counts: counts.scheduled == 2)


@pytest.mark.seed("GLD-T4")
async def test_a_stage_waits_for_the_result_of_another_flow(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    run = await nested.orders.start(item="shirt", id="o1", correlation="request-7", priority=2)
    async with working(new_worker(nested.orders)):
        assert await run.result(timeout=120) == "shirt for 6"
    assert nested.paid == [5]
    outer, inner = await run.view(), await nested.payment.flow_run(INNER).view()
    assert (outer.stages["payment"].run, outer.parent) == (INNER, None)
    assert outer.stages["price"].run is None
    assert (inner.parent, inner.flow, inner.correlation) == ("o1", "payment", "request-7")
    assert await field(tasks.queue, "level", INNER) == "2"
    assert (inner.attributes, inner.results["book"]) == ({"amount": 5, "note": None}, 6)
    assert [one.id for one in await nested.payment.runs.list() if one] == [INNER]
    assert not (await tasks.queue.counts()).total
    replayed = await tasks.queue.flow_runs.replay("o1", new_id="o2")
    async with working(new_worker(nested.orders)):
        assert await nested.orders.flow_run(replayed).result(timeout=120) == "shirt for 6"
    assert await tasks.queue.flow_runs.delete("o1")
    assert await tasks.queue.flow_runs.list([INNER, "o2~~payment"]) != [None, None]
    assert await nested.payment.flow_run(INNER).status() == "gone"


@pytest.mark.parametrize("run_id", [f"night-{n}@2030-01-31T02:00:00Z" for n in range(2)])
async def test_an_inner_run_is_in_the_shard_of_a_run_that_a_schedule_has_started(
    tasks: TaskQueue, run_id: str
) -> None:
    nested = Nested(tasks)
    run = await nested.orders.start(item="shirt", id=run_id)
    homes = {tasks.queue.shard_of(one).name for one in (run_id, f"{run_id}~~payment", f"{run_id}~~a~~b")}
    assert homes == {tasks.queue.shard_of(run_id.partition("@")[0]).name}
    async with working(new_worker(nested.orders)):
        assert await run.result(timeout=120) == "shirt for 6"


async def test_a_flow_in_another_is_drawn(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    assert '    s1(["payment<br/>flow payment"])\n' in nested.orders.mermaid()
    await nested.orders.start(item="shirt", id="o1")
    drawn = await nested.orders.runs.mermaid("o1")
    assert '    s1(["payment<br/>not entered<br/>flow payment"])\n' in drawn


@ONE_QUEUE
async def test_no_worker_and_no_lease_waits_and_nothing_is_lost_meanwhile(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    nested.waits = True
    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders, concurrency=1)):
        await is_paying(tasks)
        assert not (await tasks.queue.counts()).leased
        assert not (await tasks.queue.flow_runs.check()).findings
        assert await tasks.queue.flow_runs.report(INNER, "pay", 7)
        assert await run.result(timeout=120) == "shirt for 8"


@pytest.mark.parametrize("point", ["before", "between"])
async def test_a_stage_that_fails_at_a_point_starts_one_run(tasks: TaskQueue, point: str) -> None:
    nested = Nested(tasks)
    failures: list[str] = []

    async def failing(run: Any, call_next: Any) -> Any:
        if run.handler.name != "orders.payment" or len(failures) == 2:
            return await call_next(run)
        failures.append(point)
        if point == "between":
            with pytest.raises(BaseException, match="handed over"):
                await call_next(run)
        raise ConnectionError(point)

    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders, middleware=[failing])):
        assert await run.result(timeout=120) == "shirt for 6"
    assert nested.paid == [5]


@pytest.mark.slow
async def test_a_worker_that_is_killed_at_any_point_leaves_one_inner_run(redis_url: str, name: str) -> None:
    async def killed_at(point: str) -> None:
        paid = [5] if point in ("before", "between") else []
        async with TaskQueue.from_url(redis_url, f"{name}-{point}") as tasks:
            nested = Nested(tasks, attempts=5)
            run = await nested.orders.start(item="shirt", id="o1")
            program = await asyncio.create_subprocess_exec(
                sys.executable, "-m", sub_flow.__name__, redis_url, tasks.queue.name, point
            )
            assert await program.wait() == -signal.SIGKILL
            async with working(new_worker(nested.orders)):
                assert await run.result(timeout=120) == "shirt for 6"
            assert nested.paid in (paid, [])  # another slot may have paid before the worker died
            assert {one.id for one in await tasks.queue.flow_runs.list() if one} == {"o1", INNER}
            await ended(tasks.queue, run="o1")
            await ended(tasks.queue, run=INNER)
            assert not (await tasks.queue.counts()).total

    await asyncio.gather(*map(killed_at, POINTS))


async def test_an_inner_run_that_fails_fails_the_stage_and_is_retried_with_it(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    nested.broken = {5}
    strict = Flow("strict", tasks, attributes={"amount": int}, returns=int)
    strict.stage(nested.payment)
    runs = [await nested.orders.start(item="shirt"), await strict.start(amount=5, id="s")]
    async with working(new_worker(strict, nested.orders)):
        assert await runs[0].result(timeout=120) == "shirt for None"
        with pytest.raises(JobFailed, match="ValueError: no money") as failed:
            await runs[1].result(timeout=120)
        assert failed.value.stage == "payment"
        nested.broken.clear()
        assert await runs[1].retry()
        assert await runs[1].result(timeout=120) == 6
    assert nested.paid == [5, 5, 5]
    assert await nested.payment.flow_run("s~~payment").status() == "completed"


async def test_a_stage_fails_again_if_nothing_of_the_inner_run_can_be_done_again(tasks: TaskQueue) -> None:
    @tasks.task
    async def when() -> datetime:
        return datetime(2030, 1, 31)  # noqa: DTZ001 - it has no zone, so it names no time

    @tasks.task
    async def late() -> None: ...

    inner, outer = Flow("inner", tasks), Flow("outer", tasks)
    begin = inner.stage(when)
    inner.stage(late, after=begin, at=begin)
    outer.stage(inner)
    run = await outer.start(id="o1")
    async with working(new_worker(outer)):
        for _ in range(2):
            with pytest.raises(JobFailed, match="late: it has no time to begin"):
                await run.result(timeout=120)
            assert await run.retry()
        with pytest.raises(JobFailed, match="late: it has no time to begin"):
            await run.result(timeout=120)
    assert await inner.flow_run("o1~~inner").status() == "failed"


async def test_a_run_is_not_retried_before_what_is_left_of_an_inner_one_has_ended(tasks: TaskQueue) -> None:
    """The end of that would end the stage again, as before."""
    is_broken = True

    @tasks.task(retry=RetryPolicy(attempts=1))
    async def failing() -> None:
        if is_broken:
            raise ValueError("broken")

    @tasks.task
    async def slow() -> int:
        raise HandedOver

    @tasks.task
    async def last(number: int) -> int:
        return number

    inner, outer = Flow("inner", tasks, returns=int), Flow("outer", tasks, returns=int)
    left = inner.stage(slow)
    inner.stage(last, after=[inner.stage(failing), left], takes={"number": left}, join="fail")
    outer.stage(inner)
    run = await outer.start(id="o1")
    async with working(new_worker(outer)):
        with pytest.raises(JobFailed, match="ValueError: broken"):
            await run.result(timeout=120)
        with pytest.raises(FlowRunUnfinished, match="'o1~~inner' has not ended"):
            await run.retry()
        is_broken = False
        assert await tasks.queue.flow_runs.report("o1~~inner", "slow", 7)
        await ended(tasks.queue, "failed", "o1~~inner")
        assert await run.retry()
        assert await run.result(timeout=120) == 7


async def test_an_inner_run_is_cancelled_with_the_outer_one(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    nested.waits = True
    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders)):
        await is_paying(tasks)
        assert await run.cancel()
        await ended(tasks.queue, "cancelled", "o1")
        await ended(tasks.queue, "cancelled", INNER)
    assert not (await tasks.queue.counts()).total
    assert (await states(tasks.queue, "o1"))["payment"] == "c"
    assert nested.paid == []


async def test_the_outer_run_goes_on_if_the_inner_one_is_cancelled(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    nested.waits = True
    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders)):
        await is_paying(tasks)
        assert await nested.payment.flow_run(INNER).cancel()
        assert await run.result(timeout=120) == "shirt for None"
        with pytest.raises(JobCancelled):
            await nested.payment.flow_run(INNER).result(timeout=120)
    assert (await states(tasks.queue, "o1"))["payment"] == "c"


async def test_a_stage_fails_when_the_inner_run_takes_too_long(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    nested.waits = True
    strict = Flow("strict", tasks, attributes={"amount": int}, returns=int)
    strict.stage(nested.payment, timeout=0.2)
    run = await strict.start(amount=5, id="s")
    async with working(new_worker(strict)):
        with pytest.raises(JobFailed, match="'s~~payment' has not ended within 200 ms"):
            await run.result(timeout=120)
        await ended(tasks.queue, "cancelled", "s~~payment")
        assert not (await tasks.queue.counts()).total
        nested.waits = False
        assert await run.retry()  # which starts it anew
        assert await run.result(timeout=120) == 6


async def test_an_end_that_the_outer_run_has_not_noted_is_found(tasks: TaskQueue, redis: Redis) -> None:
    """As an interrupted script leaves it, whose caller is gone, and whose last item as well."""
    nested = Nested(tasks)
    nested.waits = True
    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders)):
        await is_paying(tasks)
        home = tasks.queue.shard_of("o1").name
        await redis.hset(f"{home}:run:{INNER}", mapping={"r:book": "9", "state": "completed", "active": "0"})
        await redis.set(f"{home}:result:{INNER}", '{"result":9}', px=60_000)
        await tasks.queue.shard_of("o1").promote("o1/payment")
        assert await run.result(timeout=120) == "shirt for 9"


async def test_a_run_of_that_id_is_not_taken_for_its_own(tasks: TaskQueue) -> None:
    nested = Nested(tasks)
    nested.waits = True
    await nested.payment.start(amount=9, id=INNER)
    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders)):
        assert await run.result(timeout=120) == "shirt for None"
        stage = (await run.view()).stages["payment"]
        assert stage.error is not None
        assert f"there is a run '{INNER}' that this stage has not started" in stage.error
        await nested.payment.flow_run(INNER).cancel()
        await ended(tasks.queue, "cancelled", INNER)
        nested.waits = False
        assert await tasks.queue.flow_runs.replay("o1", new_id="o2")
        await nested.orders.flow_run("o2").result(timeout=120)
        assert await tasks.queue.flow_runs.delete("o1")
        run = await nested.orders.start(item="coat", id="o1")
        assert await run.result(timeout=120) == "coat for 5"


async def test_a_run_is_not_deleted_before_an_inner_one(tasks: TaskQueue, redis: Redis) -> None:
    nested = Nested(tasks)
    run = await nested.orders.start(item="shirt", id="o1")
    async with working(new_worker(nested.orders)):
        await run.result(timeout=120)
    home = tasks.queue.shard_of("o1")
    stage = StagePlan("a", home.name, b"{}")
    parent = f"{home.name}\0o1\0payment".encode()
    await tasks.queue.flow_runs.delete(INNER)
    assert await home.flow_runs.start(FlowPlan((stage,)), INNER)
    await redis.hset(f"{home.name}:run:{INNER}", "parent", parent)
    with pytest.raises(FlowRunUnfinished):
        await tasks.queue.flow_runs.delete("o1")


async def test_what_cannot_be_a_stage_is_refused(tasks: TaskQueue, redis_url: str, name: str) -> None:
    nested = Nested(tasks)

    @tasks.task
    async def text(payment: str) -> str:
        return payment

    @tasks.task
    async def split(amount: int) -> FanOut[str]:
        return fan_out([text.call(str(amount))])

    fans = Flow("fans", tasks, attributes={"amount": int})
    fans.stage(split)
    flow = Flow("flow", tasks, attributes={"amount": str})
    with pytest.raises(InvalidFlow, match="'amount' takes int, and the attribute 'amount' is str"):
        flow.stage(nested.payment)
    with pytest.raises(InvalidFlow, match="'split', which fans out"):
        flow.stage(fans, takes={"amount": "amount"})
    with pytest.raises(InvalidFlow, match="the flow 'orders' is this one, or has it as a stage"):
        nested.payment.stage(nested.orders)
    with pytest.raises(InvalidFlow, match="has no stages"):
        flow.stage(Flow("empty", tasks))
    with pytest.raises(TypeError, match="queue"):
        flow.stage(nested.payment, queue="other")  # type: ignore[call-overload]
    async with TaskQueue.from_url(redis_url, f"{name}-other") as other:
        with pytest.raises(InvalidFlow, match=r"is on the queue .*-other.* Flow\.then_start"):
            Flow("away", other).stage(nested.payment, args={"amount": 5})
    deep = nested.payment
    for number in range(7):
        inner, deep = deep, Flow(f"deep-{number}", tasks, attributes={"amount": int})
        deep.stage(inner)
    with pytest.raises(InvalidFlow, match=r"8 deep at most.*deeper: flow → deep-6 → .* → payment"):
        flow.stage(deep, args={"amount": 1})
    numbers = Flow("numbers", tasks, attributes={"amount": int})
    paid = numbers.stage(nested.payment)
    with pytest.raises(InvalidFlow, match="'payment' takes str, and what stage 'payment' returns is int"):
        numbers.stage(text, after=paid)
    with pytest.raises(InvalidArgument):
        await nested.orders.start(item="shirt", id="x" * 195)  # the id of the inner run would be too long
    await numbers.start(amount=5)
    later = Flow("later", tasks, attributes={"amount": int})
    later.stage(nested.payment)
    nested.payment.stage(text, args={"payment": "x"}, name="later", result=True)
    for flow in (numbers, later):  # one was checked before
        with pytest.raises(InvalidFlow, match="result"):
            await flow.start(amount=5)
