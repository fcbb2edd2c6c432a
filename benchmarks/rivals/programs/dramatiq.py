"""dramatiq on Redis. It works in threads; a "job of 50 ms" sleeps in one.

- It is at-least-once by nature: a message stays in a set of its worker until it is acknowledged.
- Only the middleware that tries again is kept (`Retries`); without limits of age and time, callbacks and
  pipelines it is quicker.
- 8 threads are its default, which fetch twice as many messages; the best for jobs of no time is below, and
  fetching 200 in every case is quicker.
- An idle worker polls, less and less often, down to once in `worker_timeout`; 10 ms instead of a second.
- There is no call for many (`group` adds one by one): jobs are added by threads side by side.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dramatiq import Worker, actor
from dramatiq import worker as dramatiq_worker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

from benchmarks.rivals.programs import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

THREADS = 16
PREFETCH = 200
IDLE_MS = 10
WIDTH = 8


def brokered(url: str) -> tuple[Any, Any]:
    """The broker and its one actor."""
    broker = RedisBroker(url=url, middleware=[Retries()])

    @actor(broker=broker)
    def job(number: int, ms: int) -> None:
        began = protocol.now()
        if ms:
            time.sleep(ms / 1000)
        protocol.ran(number, began)

    return broker, job


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[protocol.Producer]:
    """One message each."""
    _, job = brokered(url)

    async def add(number: int, ms: int) -> None:
        job.send(number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        def some(numbers: range) -> None:
            for number in numbers:
                job.send(number, ms)

        with ThreadPoolExecutor(WIDTH) as pool:
            shares = [numbers[at::WIDTH] for at in range(WIDTH)]
            await asyncio.gather(*(asyncio.wrap_future(pool.submit(some, share)) for share in shares))

    yield protocol.Producer(add, add_many)


def working(task: protocol.Task) -> None:
    """One worker, as each process of the `dramatiq` command has it."""
    broker, _ = brokered(task.url)
    dramatiq_worker.QUEUE_PREFETCH = PREFETCH  # what its variable of the environment sets
    Worker(broker, worker_threads=task.concurrency or THREADS, worker_timeout=IDLE_MS).start()
    threading.Event().wait()


if __name__ == "__main__":
    protocol.main(producing, working)
