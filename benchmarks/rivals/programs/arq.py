"""arq.

- It is at-least-once: a job stays in the queue until it has ended.
- Results are neither kept (`keep_result=0`) nor logged, which is less work.
- It polls: every 10 ms here, as its default of 0.5 s would determine every idle figure. A poll takes five
  times as many ids as jobs may run at once (its default).
- It runs 10 at once (its default); more are no faster for jobs that do nothing.
- It cannot add many at once: coroutines add jobs concurrently.
"""

from __future__ import annotations

from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from benchmarks.rivals.programs import protocol

CONCURRENCY = 10
POLL_SECONDS = 0.01


async def job(_: Any, number: int, ms: int) -> None:
    """Run a job."""
    await protocol.job(number, ms)


async def produce(url: str) -> None:
    """Add jobs."""
    pool = await create_pool(RedisSettings.from_dsn(url))
    await protocol.produce(lambda number, ms: pool.enqueue_job("job", number, ms))


async def work(task: protocol.Task) -> None:
    """Run a worker."""
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
