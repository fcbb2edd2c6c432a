"""saq on Redis.

- It is at-least-once with more than one attempt (`retries`): a job moves to an active list while it runs, and
  a sweep requeues it when its worker has died.
- Finished jobs are deleted at once (`ttl=-1`) instead of after ten minutes, which is less work.
- When a worker starts on a full queue, its first sweep would requeue jobs that it has just fetched, so one
  sweep runs before; the next is due a minute later.
- It fetches one job per coroutine and round trip. Its default is 10 at once; the best number for jobs that do
  nothing is below.
- It cannot add many at once: coroutines add jobs concurrently, for which its limit of 20 is raised.
"""

from __future__ import annotations

from typing import Any

from saq import Queue, Worker

from benchmarks.rivals.programs import protocol

CONCURRENCY = 20


async def job(_: Any, *, number: int, ms: int) -> None:
    """Run a job."""
    await protocol.job(number, ms)


async def produce(url: str) -> None:
    """Add jobs."""
    queue = Queue.from_url(url, name="jobs", max_concurrent_ops=protocol.WIDTH)
    await protocol.produce(lambda number, ms: queue.enqueue("job", number=number, ms=ms, retries=3, ttl=-1))


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    queue = Queue.from_url(task.url, name="jobs", max_concurrent_ops=task.concurrency or CONCURRENCY)
    await queue.sweep()
    await Worker(queue, functions=[job], concurrency=task.concurrency or CONCURRENCY).start()
