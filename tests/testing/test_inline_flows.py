"""Chains and groups run as soon as a test starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import (
    FanOut,
    Flow,
    HandedOver,
    JobFailed,
    Provided,
    RetryPolicy,
    TaskQueue,
    Worker,
    fan_out,
    group,
)

if TYPE_CHECKING:
    from leasequeue.testing import Clock, Inline
    from leasequeue.testing.plugin import Workers

#: As in a module of a program: a server that no test may use.
tasks = TaskQueue.from_url("redis://localhost:1", "flows")


@tasks.task(retry=RetryPolicy(attempts=2, first=3600, jitter=False))
async def look_up(name: str, *, table: dict[str, int] = Provided()) -> int:
    return table[name]


@tasks.task(run_in="process", queue="flows-slow")
def double(number: int) -> int:
    return number * 2


@tasks.task
async def total(numbers: list[int]) -> int:
    return sum(numbers)


@tasks.task
async def total_of(number: int) -> int:
    return number


@tasks.task
async def split(names: list[str]) -> FanOut[int]:
    return fan_out([look_up.call(name) for name in names])


@tasks.task
async def split_twice(names: list[str]) -> FanOut[int]:
    return fan_out([look_up.call(name).then(double) for name in names])


priced = Flow("priced", tasks, attributes={"name": str}, returns=int)
priced.stage(look_up)
orders = Flow("orders", tasks, attributes={"name": str}, returns=int)
orders.stage(double, after=orders.stage(priced), takes={"number": "priced"})
approved = Flow("approved", tasks, returns=int)
approved.stage(double, after=approved.signal("number", type=int, within=600))


@tasks.task
async def hand_over() -> int:
    raise HandedOver


@tasks.task
async def close() -> str:
    return "closed"


handed = Flow("handed", tasks, returns=str)
handed.stage(close, after=handed.stage(hand_over), join="settled")


async def test_a_run_has_ended_when_the_call_that_starts_it_returns(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, provide={"table": {"a": 1, "b": 2}})
    run = await look_up.call("a").then(double).add()
    assert await run.status() == "completed"
    assert await run.result() == 2
    assert [one.task for one in inline.runs] == ["look_up", "double"]
    group_of_two = group([look_up.call("a").then(double), look_up.call("b")])
    assert await (await group_of_two.then(total).add()).result() == 4
    assert await (await split.call(["b", "a"]).then(total).add(id="7")).result() == 3
    assert await split.call(["b", "a"]).then(total).flow_run("7").result() == 3


async def test_a_stage_that_is_a_flow_and_a_child_that_is_a_chain(leasequeue_inline: Inline) -> None:
    inline = leasequeue_inline(tasks, provide={"table": {"a": 1, "b": 2}})
    run = await orders.start(name="b", id="7")
    assert await run.result() == 4
    assert await priced.flow_run("7~~priced").result() == 2
    assert [one.task for one in inline.runs] == ["orders.priced", "look_up", "double"]
    assert await (await split_twice.add(["a", "b"])).result() == [2, 4]


async def test_what_follows_a_signal_and_a_report_has_run_when_these_return(
    leasequeue_inline: Inline,
) -> None:
    inline = leasequeue_inline(tasks)
    run = await approved.start()
    assert (await run.status(), inline.runs) == ("active", [])
    assert await run.signal("number", 4)
    assert await run.status() == "completed"
    assert await run.result(timeout=120) == 8
    for run_id in ("reported", "failed"):
        await handed.start(id=run_id)
    assert await handed.runs.report("reported", "hand_over", 5)
    assert await handed.runs.report_failed("failed", "hand_over", "no answer")
    assert [await handed.flow_run(one).status() for one in ("reported", "failed")] == ["completed"] * 2


async def test_what_a_stage_raises_is_raised_where_the_run_is_started(leasequeue_inline: Inline) -> None:
    table = {"a": 1}
    inline = leasequeue_inline(tasks, provide={"table": table})
    with pytest.raises(KeyError, match="b"):
        await look_up.call("b").then(double).add(id="7")
    assert [one.attempt for one in inline.runs] == [1, 2]
    run = look_up.call("b").then(double).flow_run("7")
    with pytest.raises(JobFailed, match="KeyError"):
        await run.result()
    table["b"] = 4
    assert await run.retry()
    assert await run.result() == 8


async def test_a_delayed_stage_waits_for_the_clock(
    leasequeue_inline: Inline, leasequeue_clock: Clock
) -> None:
    inline = leasequeue_inline(tasks, provide={"table": {"a": 1}})
    run = await look_up.call("a").then(double.options(delay=3600)).add()
    assert await run.status() == "active"
    leasequeue_clock.advance(3601)
    await inline.run()
    assert await run.result() == 2


async def test_a_worker_like_that_of_a_program_runs_its_chains(leasequeue_worker: Workers) -> None:
    worker = leasequeue_worker.like(Worker(tasks), provide={"table": {"a": 1}})
    chain = look_up.call("a").then(total_of)
    run = await chain.add(id="7")
    await worker.drain()
    assert await run.result(timeout=120) == 1
    assert [view.id for view in await tasks.queue.flow_runs.list() if view is not None] == ["7"]
    assert not await run.cancel()
