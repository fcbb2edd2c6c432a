"""dramatiq on Redis. It runs jobs in threads, so a job of 50 ms sleeps in one.

- It is at-least-once: a message stays in a set of its worker until it is acknowledged.
- Only the middleware for retries is kept; it is faster without age and time limits, callbacks and pipelines.
- It fetches 200 messages ahead, which is faster with any number of threads; its default is 8 threads and 16
  messages. The best number of threads for jobs that do nothing is below.
- An idle worker polls, up to every `worker_timeout`: 10 ms instead of one second.
- It cannot add many at once (`group` adds one by one): threads add jobs concurrently.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dramatiq import Worker, actor
from dramatiq import worker as dramatiq_worker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Retries

from benchmarks.rivals.programs import protocol

THREADS = 16
PREFETCH = 200
IDLE_MS = 10
PRODUCERS = 8


def open_broker(url: str) -> tuple[Any, Any]:
    """Return a broker and its one actor."""
    broker = RedisBroker(url=url, middleware=[Retries()])

    @actor(broker=broker)
    def job(number: int, ms: int) -> None:
        began = protocol.now()
        if ms:
            time.sleep(ms / 1000)
        protocol.ran(number, began)

    return broker, job


async def produce(url: str) -> None:
    """Add messages."""
    _, job = open_broker(url)

    async def add(number: int, ms: int) -> None:
        job.send(number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        def some(numbers: range) -> None:
            for number in numbers:
                job.send(number, ms)

        with ThreadPoolExecutor(PRODUCERS) as pool:
            shares = [numbers[at::PRODUCERS] for at in range(PRODUCERS)]
            await asyncio.gather(*(asyncio.wrap_future(pool.submit(some, share)) for share in shares))

    await protocol.produce(add, add_many)


async def work(task: protocol.Task) -> None:
    """Run a worker, as each process of the `dramatiq` command does; the event loop stays idle."""
    broker, _ = open_broker(task.url)
    dramatiq_worker.QUEUE_PREFETCH = PREFETCH  # what its environment variable sets
    Worker(broker, worker_threads=task.concurrency or THREADS, worker_timeout=IDLE_MS).start()
    await asyncio.Event().wait()
