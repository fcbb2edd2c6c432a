"""Joins that wait cost nothing: no slot of a worker, and no command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import FanOut, TaskQueue, fan_out
from tests.plans.flows import ONE_QUEUE
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: How many joins wait, and for how long the commands are counted (s).
JOINS = 200
COUNTED = 15


def declare(tasks: TaskQueue) -> tuple[Any, Any]:
    """Register a parent with two children, one of which is delayed for an hour, and what follows it."""

    @tasks.task
    async def child(number: int) -> int:
        return number

    @tasks.task
    async def parent(number: int, delay: int = 0) -> FanOut[int]:
        return fan_out([child.call(number), child.options(delay=delay).call(number)])

    @tasks.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    return parent, total


@pytest.mark.seed("GLD-B17", "GLD-O9")
async def test_one_slot_runs_parents_and_all_of_their_children(tasks: TaskQueue) -> None:
    parent, total = declare(tasks)
    runs = [await parent.call(number).then(total).add() for number in range(20)]
    await new_worker(tasks, concurrency=1).drain()
    assert [await run.result(timeout=120) for run in runs] == [2 * number for number in range(20)]


@ONE_QUEUE
@pytest.mark.long
@pytest.mark.seed("GLD-K4")
async def test_a_worker_sends_no_command_for_joins_that_wait(tasks: TaskQueue, redis: Redis) -> None:
    parent, total = declare(tasks)

    async def calls() -> int:
        stats = await redis.info("commandstats")
        return sum(stats[f"cmdstat_{name}"]["calls"] for name in ("evalsha", "blmove", "hmget"))

    async def sent() -> int:
        before = await calls()
        await asyncio.sleep(COUNTED)
        return await calls() - before

    async with working(new_worker(tasks, concurrency=1)):
        await parent.call(1).then(total).add()  # so that all scripts are loaded
        await asyncio.sleep(1)
        without = await sent()
        for number in range(JOINS):
            await parent.call(number, delay=3600).then(total).add()

        while (await tasks.queue.counts())[:3] != (0, 0, JOINS):  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        with_joins = await sent()
    print(f"{COUNTED} s: {without} calls without joins, {with_joins} with {JOINS}")  # noqa: T201 - the figure of the docs
    assert with_joins <= without + COUNTED / 2
