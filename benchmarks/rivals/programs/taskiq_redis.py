"""taskiq with the stream broker of taskiq-redis.

- `RedisStreamBroker` is its broker that loses nothing: an entry stays pending until it is acknowledged,
  which happens after the run (`when_saved`, its default).
- It reads 100 entries at a time (its default), runs 100 at once (the default of `taskiq worker`) and
  prefetches as many as it reads. Results are not kept (its default).
- Parameters are not parsed by annotation (`--no-parse`), which is faster.
- `taskiq worker` runs this receiver in processes, on uvloop as well.
- It cannot add many at once: coroutines add jobs concurrently.
"""

from __future__ import annotations

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.rivals.programs import protocol

CONCURRENCY = 100
PREFETCH = 100


async def open_broker(url: str, *, worker: bool = False) -> RedisStreamBroker:
    """Start a broker with one task; a new group reads the stream from its beginning."""
    broker = RedisStreamBroker(url, queue_name="jobs", consumer_id="0", xread_count=100)
    broker.register_task(protocol.job, task_name="job")
    broker.is_worker_process = worker
    await broker.startup()
    return broker


async def produce(url: str) -> None:
    """Add messages."""
    job = (await open_broker(url)).find_task("job")
    await protocol.produce(job.kiq)


async def work(task: protocol.Task) -> None:
    """Run a receiver, as each process of `taskiq worker` does."""
    await run_receiver_task(
        await open_broker(task.url, worker=True),
        max_async_tasks=task.concurrency or CONCURRENCY,
        max_prefetch=PREFETCH,
        validate_params=False,
    )
