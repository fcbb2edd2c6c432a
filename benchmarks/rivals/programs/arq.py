"""arq.

- It is at-least-once by nature: a job stays in the queue until it has ended.
- Results are not kept (`keep_result=0`), nor logged, which is less work for it.
- It polls. The default of 0.5 s would make a slow figure of every idle one, so it is 10 ms here; a poll takes
  as many ids as there may be jobs, five times over (its default).
- 10 at once is its default, and more are no quicker for jobs of no time.
- There is no call for many: jobs are added by coroutines side by side.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.rivals.programs import protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CONCURRENCY = 10
POLL_SECONDS = 0.01
WIDTH = 50


async def job(_: Any, number: int, ms: int) -> None:
    """What is run."""
    began = protocol.now()
    if ms:
        await asyncio.sleep(ms / 1000)
    protocol.ran(number, began)


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[protocol.Producer]:
    """One job each."""
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def add(number: int, ms: int) -> None:
        await pool.enqueue_job("job", number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        await protocol.spread(add, numbers, ms, WIDTH)

    yield protocol.Producer(add, add_many)


def working(task: protocol.Task) -> None:
    """One worker."""
    protocol.run(_work(task))


async def _work(task: protocol.Task) -> None:
    worker = Worker(
        [job],
        redis_settings=RedisSettings.from_dsn(task.url),
        max_jobs=task.concurrency or CONCURRENCY,
        poll_delay=POLL_SECONDS,
        keep_result=0,
        log_results=False,
        handle_signals=False,
    )
    await worker.async_run()


if __name__ == "__main__":
    protocol.main(producing, working)
