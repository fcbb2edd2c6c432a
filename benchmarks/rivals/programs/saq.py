"""saq on Redis.

- A job moves to an active list while it runs, and a sweep brings it back when its worker is gone; with more
  than one attempt (`retries`), which is what makes it at-least-once.
- Finished jobs are deleted at once (`ttl=-1`) rather than kept for ten minutes, which is less work for it.
- Its first sweep would take jobs that were just fetched for abandoned ones when a worker starts on a full
  queue, so one sweep is done before; the next is due a minute later.
- It takes one job per coroutine and trip. 10 at once is its default; the best for jobs of no time is below.
- There is no call for many: jobs are added by coroutines side by side, for which its own limit of 20 is
  raised.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from saq import Queue, Worker

from benchmarks.rivals.programs import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONCURRENCY = 20
WIDTH = 50


async def job(_: Any, *, number: int, ms: int) -> None:
    """What is run."""
    began = protocol.now()
    if ms:
        await asyncio.sleep(ms / 1000)
    protocol.ran(number, began)


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[protocol.Producer]:
    """One job each."""
    queue = Queue.from_url(url, name="jobs", max_concurrent_ops=WIDTH)

    async def add(number: int, ms: int) -> None:
        await queue.enqueue("job", number=number, ms=ms, retries=3, ttl=-1)

    async def add_many(numbers: range, ms: int) -> None:
        await protocol.spread(add, numbers, ms, WIDTH)

    yield protocol.Producer(add, add_many)


def working(task: protocol.Task) -> None:
    """One worker."""
    protocol.run(_work(task))


async def _work(task: protocol.Task) -> None:
    queue = Queue.from_url(task.url, name="jobs", max_concurrent_ops=task.concurrency or CONCURRENCY)
    await queue.sweep()
    await Worker(queue, functions=[job], concurrency=task.concurrency or CONCURRENCY).start()


if __name__ == "__main__":
    protocol.main(producing, working)
