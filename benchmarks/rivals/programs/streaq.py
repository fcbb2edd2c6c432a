"""streaq.

- It is at-least-once by nature: an entry of its stream stays pending until the task has ended, and is claimed
  by others when it is idle for too long.
- Results are not kept (`ttl=0`) and nothing is logged, which is less work for it.
- 16 at once, and as many ahead, is its default; more at once cost it more per job.
- It reads in a script of its own, as the server's XREADGROUP has no limit over several streams.
- Many are added by `enqueue_many`, which is a pipeline.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from streaq import Worker

from benchmarks.rivals.programs import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONCURRENCY = 16
CHUNK = 1_000


def hired(url: str, concurrency: int) -> tuple[Any, Any]:
    """The worker, which producers use as well, and its one task."""
    worker = Worker(redis_url=url, queue_name="jobs", concurrency=concurrency, handle_signals=False)

    @worker.task(ttl=0, silent=True)
    async def job(number: int, ms: int) -> None:
        began = protocol.now()
        if ms:
            await asyncio.sleep(ms / 1000)
        protocol.ran(number, began)

    return worker, job


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[protocol.Producer]:
    """One task each."""
    worker, job = hired(url, CONCURRENCY)

    async def add(number: int, ms: int) -> None:
        await job.enqueue(number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        for some in protocol.chunks(numbers, CHUNK):
            await worker.enqueue_many([job.enqueue(number, ms) for number in some])

    async with worker:
        yield protocol.Producer(add, add_many)


def working(task: protocol.Task) -> None:
    """One worker."""
    worker, _ = hired(task.url, task.concurrency or CONCURRENCY)
    protocol.run(worker.run_async())


if __name__ == "__main__":
    protocol.main(producing, working)
