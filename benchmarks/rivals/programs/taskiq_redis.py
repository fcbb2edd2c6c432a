"""taskiq with the stream broker of taskiq-redis.

- `RedisStreamBroker` is its broker that loses nothing: an entry stays pending until it is acknowledged. Its
  default, to acknowledge after the run (`when_saved`), is kept.
- It reads 100 entries at a time (its default), runs 100 at once (the default of `taskiq worker`) and fetches
  as many ahead as it reads. Results are not kept, as by default.
- Parameters are not parsed by annotation (`--no-parse`), which is quicker.
- `taskiq worker` starts processes around the receiver that is run here, and uses uvloop as well.
- There is no call for many: jobs are added by coroutines side by side.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.rivals.programs import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONCURRENCY = 100
PREFETCH = 100
WIDTH = 50


def brokered(url: str) -> RedisStreamBroker:
    """The broker, with its one task; a group that is new reads the stream from its beginning."""
    broker = RedisStreamBroker(url, queue_name="jobs", consumer_id="0", xread_count=100)

    @broker.task(task_name="job")
    async def job(number: int, ms: int) -> None:
        began = protocol.now()
        if ms:
            await asyncio.sleep(ms / 1000)
        protocol.ran(number, began)

    return broker


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[protocol.Producer]:
    """One message each."""
    broker = brokered(url)
    await broker.startup()
    job = broker.find_task("job")

    async def add(number: int, ms: int) -> None:
        await job.kiq(number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        await protocol.spread(add, numbers, ms, WIDTH)

    yield protocol.Producer(add, add_many)


def working(task: protocol.Task) -> None:
    """One receiver, as each process of `taskiq worker` has it."""
    protocol.run(_work(task))


async def _work(task: protocol.Task) -> None:
    broker = brokered(task.url)
    broker.is_worker_process = True
    await broker.startup()
    await run_receiver_task(
        broker,
        max_async_tasks=task.concurrency or CONCURRENCY,
        max_prefetch=PREFETCH,
        validate_params=False,
    )


if __name__ == "__main__":
    protocol.main(producing, working)
