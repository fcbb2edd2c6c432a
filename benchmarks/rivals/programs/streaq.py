"""streaq.

- It is at-least-once: an entry of its stream stays pending until the task has ended, and other workers claim
  it when it has been idle for too long.
- Results are not kept (`ttl=0`) and nothing is logged, which is less work.
- It runs 16 at once, and fetches as many ahead (its default); more cost it more per job.
- It reads in a script, because XREADGROUP cannot limit the number over several streams.
- `enqueue_many` adds many with a pipeline.
"""

from __future__ import annotations

from typing import Any

from streaq import Worker

from benchmarks.rivals.programs import protocol

CONCURRENCY = 16
CHUNK = 1_000


def open_worker(url: str, concurrency: int) -> tuple[Any, Any]:
    """Return a worker, which producers use as well, and its one task."""
    worker = Worker(redis_url=url, queue_name="jobs", concurrency=concurrency, handle_signals=False)
    return worker, worker.task(ttl=0, silent=True)(protocol.job)


async def produce(url: str) -> None:
    """Add tasks."""
    worker, job = open_worker(url, CONCURRENCY)

    async def add(number: int, ms: int) -> None:
        await job.enqueue(number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        for some in protocol.chunks(numbers, CHUNK):
            await worker.enqueue_many([job.enqueue(number, ms) for number in some])

    async with worker:
        await protocol.produce(add, add_many)


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    worker, _ = open_worker(task.url, task.concurrency or CONCURRENCY)
    await worker.run_async()
