"""arq.

- It is at-least-once: a job stays in the queue until it has ended.
- Results are neither kept (`keep_result=0`) nor logged, which is less work.
- It polls: every 10 ms here, as its default of 0.5 s would determine every idle figure. A poll takes five
  times as many ids as jobs may run at once (its default).
- It runs 10 at once (its default); more are no faster for jobs that do nothing.
- In a round trip, results are kept, and the caller polls for one every 5 ms instead of every 0.5 s.
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
#: How long results are kept, where the caller waits for them, and how often it asks (s).
KEEP_SECONDS, ASK_SECONDS = 3600, 0.005


async def job(_: Any, number: int, ms: int) -> int:
    """Run a job."""
    return await protocol.job(number, ms)


async def produce(url: str, *, results: bool = False) -> None:
    """Add jobs."""
    pool = await create_pool(RedisSettings.from_dsn(url))

    async def ask(number: int) -> Any:
        added = await pool.enqueue_job("job", number, 0)
        return await added.result(poll_delay=ASK_SECONDS)

    await protocol.produce(
        lambda number, ms: pool.enqueue_job("job", number, ms), ask=ask if results else None
    )


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    worker = Worker(
        [job],
        redis_settings=RedisSettings.from_dsn(task.url),
        max_jobs=task.concurrency or CONCURRENCY,
        poll_delay=POLL_SECONDS,
        keep_result=KEEP_SECONDS if task.results else 0,
        log_results=False,
        handle_signals=False,
    )
    await worker.async_run()
