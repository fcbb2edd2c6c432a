"""Leasequeue's chains, and groups with a join, of the tasks of a queue; leasequeue.py says how they run.

A stage is completed and its successor is added in one script, so that a crash at any moment gives neither two
successors nor none. A run is not kept after its end, as with the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from benchmarks.rivals.programs import protocol
from leasequeue import TaskQueue, Worker, group

if TYPE_CHECKING:
    from leasequeue import FlowRun

#: The default of `Worker`.
CONCURRENCY = 100
#: How many runs are started concurrently.
WIDTH = 500


class Stages:
    """The tasks of the stages."""

    def __init__(self, tasks: TaskQueue, flow: protocol.Flow) -> None:
        @tasks.task
        async def job(number: int, ms: int) -> int:
            return await protocol.job(number, ms)

        @tasks.task
        async def step(before: int, number: int, ms: int) -> int:
            flow.check(before, number)
            return await protocol.job(number, ms)

        @tasks.task
        async def join(before: list[int], number: int, ms: int) -> int:
            flow.check(before, number)
            return await protocol.job(number, ms)

        self._flow, self._job, self._step, self._join = flow, job, step, join

    async def start(self, numbers: range) -> FlowRun[int]:
        """Start a run of the stages with these numbers."""
        first, *others = numbers
        if self._flow.joins:
            children = group([self._job.call(number, 0) for number in numbers[:-1]])
            return await children.then(self._join, numbers[-1], 0).add(keep=0)
        chain = self._job.call(first, 0).then(self._step, others.pop(0), 0)
        for number in others:
            chain = chain.then(self._step, number, 0)
        return await chain.add(keep=0)


async def produce(url: str, flow: dict[str, Any]) -> None:
    """Start runs."""
    shape = protocol.Flow(**flow)
    async with TaskQueue.from_url(url, "jobs") as tasks:
        stages = Stages(tasks, shape)

        async def start_many(numbers: range, _: int) -> None:
            runs = list(protocol.chunks(numbers, shape.size))
            for first in range(0, len(runs), WIDTH):
                await asyncio.gather(*map(stages.start, runs[first : first + WIDTH]))

        await protocol.produce(protocol.refused, start_many)


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    async with TaskQueue.from_url(task.url, "jobs") as tasks:
        Stages(tasks, protocol.Flow(**task.flow))
        await Worker(tasks, concurrency=task.concurrency or CONCURRENCY).run()
