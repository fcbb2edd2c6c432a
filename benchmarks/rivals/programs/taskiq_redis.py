"""taskiq with the stream broker of taskiq-redis.

- `RedisStreamBroker` is its broker that loses nothing: an entry stays pending until it is acknowledged,
  which happens after the run (`when_saved`, its default).
- It reads 100 entries at a time (its default), runs 100 at once (the default of `taskiq worker`) and
  prefetches as many as it reads. Results are not kept (its default).
- Parameters are not parsed by annotation (`--no-parse`), which is faster.
- `taskiq worker` runs this receiver in processes, on uvloop as well.
- In a round trip, `RedisAsyncResultBackend` keeps results, and the caller polls for one every 2 ms instead of
  every 0.2 s.
- It cannot add many at once: coroutines add jobs concurrently.
"""

from __future__ import annotations

from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.rivals.programs import protocol

CONCURRENCY = 100
PREFETCH = 100
#: How long results are kept, where the caller waits for them, and how often it asks (s).
KEEP_SECONDS, ASK_SECONDS = 3600, 0.002


async def open_broker(url: str, *, results: bool, worker: bool = False) -> RedisStreamBroker:
    """Start a broker with one task; a new group reads the stream from its beginning."""
    broker = RedisStreamBroker(url, queue_name="jobs", consumer_id="0", xread_count=100)
    if results:
        broker = broker.with_result_backend(RedisAsyncResultBackend(url, result_ex_time=KEEP_SECONDS))
    broker.register_task(protocol.job, task_name="job")
    broker.is_worker_process = worker
    await broker.startup()
    return broker


async def produce(url: str, *, results: bool = False) -> None:
    """Add messages."""
    job = (await open_broker(url, results=results)).find_task("job")

    async def ask(number: int) -> Any:
        added = await job.kiq(number, 0)
        return (await added.wait_result(check_interval=ASK_SECONDS)).return_value

    await protocol.produce(job.kiq, ask=ask if results else None)


async def work(task: protocol.Task) -> None:
    """Run a receiver, as each process of `taskiq worker` does."""
    await run_receiver_task(
        await open_broker(task.url, results=task.results, worker=True),
        max_async_tasks=task.concurrency or CONCURRENCY,
        max_prefetch=PREFETCH,
        validate_params=False,
    )
