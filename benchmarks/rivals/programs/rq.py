"""RQ.

- `SimpleWorker` runs jobs in its own process, one at a time. The default worker forks for each job, which is
  slower. The scenarios for no-op jobs and for jobs of 50 ms have a tenth of them: it needs long for all.
- It is at-least-once with `Retry`: without, a job whose worker has died is failed.
- Results are not kept (`result_ttl=0`), except in a round trip, where the caller waits in the server for one.
- `enqueue_many` adds many with a pipeline.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from redis import Redis
from rq import Queue, Retry, SimpleWorker

from benchmarks.rivals.programs import protocol

CHUNK = 1_000
RETRIES = 3
#: How long results are kept, where the caller waits for them, and how long it waits at most (s).
KEEP_SECONDS, WAIT_SECONDS = 3600, 60


def job(number: int, ms: int) -> int:
    """Run a job."""
    began = protocol.now()
    if ms:
        time.sleep(ms / 1000)
    protocol.ran(number, began)
    return number


async def produce(url: str, *, results: bool = False) -> None:
    """Add jobs."""
    queue = Queue("jobs", connection=Redis.from_url(url))
    keep = KEEP_SECONDS if results else 0

    async def add(number: int, ms: int) -> Any:
        return queue.enqueue(job, number, ms, result_ttl=keep, retry=Retry(RETRIES))

    async def add_many(numbers: range, ms: int) -> None:
        for some in protocol.chunks(numbers, CHUNK):
            queue.enqueue_many(
                [
                    Queue.prepare_data(job, (number, ms), result_ttl=keep, retry=Retry(RETRIES))
                    for number in some
                ]
            )

    async def ask(number: int) -> Any:
        return (await add(number, 0)).latest_result(timeout=WAIT_SECONDS).return_value

    await protocol.produce(add, add_many, ask if results else None)


async def work(task: protocol.Task) -> None:
    """Run a worker, in the main thread since it handles signals; the event loop stays idle."""
    connection = Redis.from_url(task.url)
    SimpleWorker([Queue("jobs", connection=connection)], connection=connection).work()
    await asyncio.Event().wait()
