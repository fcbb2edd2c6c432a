"""Leasequeue with its defaults: a task with typed arguments.

Leases are renewed, and a task is completed after its run, so that a crash at any moment loses nothing.
Results are kept only where the caller waits for them, as with the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.rivals.programs import protocol
from leasequeue import TaskQueue, Worker

if TYPE_CHECKING:
    from leasequeue.tasks import AsyncTask

#: The default of `Worker`.
CONCURRENCY = 100
#: Calls of one `add_many`.
CHUNK = 1_000
#: How long results are kept, where the caller waits for them: the default of a task (s).
KEEP_SECONDS = 3600


def job_of(tasks: TaskQueue, *, results: bool) -> AsyncTask[[int, int], int]:
    """Return the one task."""

    @tasks.task(keep_result=KEEP_SECONDS if results else None)
    async def job(number: int, ms: int) -> int:
        return await protocol.job(number, ms)

    return job


async def produce(url: str, *, results: bool = False) -> None:
    """Add tasks."""
    async with TaskQueue.from_url(url, "jobs") as tasks:
        job = job_of(tasks, results=results)

        async def add_many(numbers: range, ms: int) -> None:
            for some in protocol.chunks(numbers, CHUNK):
                await tasks.add_many([job.call(number, ms) for number in some])

        async def ask(number: int) -> int:
            return await (await job.add(number, 0)).result()

        await protocol.produce(job.add, add_many, ask if results else None)


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    async with TaskQueue.from_url(task.url, "jobs") as tasks:
        job_of(tasks, results=task.results)
        await Worker(tasks, concurrency=task.concurrency or CONCURRENCY).run()
