"""Celery on Redis.

- It is at-least-once with `task_acks_late`: a message is acknowledged after its run, and is restored after
  `visibility_timeout` if its worker has died.
- Its default pool is one of processes, which run one job each. Here the worker is one process as the others
  are: jobs that do nothing run in its main thread (`solo`, a little faster than its threads), and jobs
  of 50 ms in 100 threads. It fetches 4 messages for each (its default), which is as fast as 100.
- Events, gossip, mingle and heartbeats between workers are off, which is less work.
- Results are not kept (`task_ignore_result`), except in a round trip; the server notifies the caller of one.
- It cannot add many at once: threads add jobs concurrently.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery

from benchmarks.rivals.programs import protocol

PRODUCERS = 8
#: How long the caller waits for a result at most (s).
WAIT_SECONDS = 60


def open_app(url: str, *, results: bool) -> tuple[Any, Any]:
    """Return an app and its one task."""
    app = Celery("jobs", broker=url, backend=url if results else None, set_as_current=True)
    app.conf.update(
        task_default_queue="jobs",
        task_acks_late=True,
        task_ignore_result=not results,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="job")
    def job(number: int, ms: int) -> int:
        began = protocol.now()
        if ms:
            time.sleep(ms / 1000)
        protocol.ran(number, began)
        return number

    return app, job


async def produce(url: str, *, results: bool = False) -> None:
    """Add messages."""
    _, job = open_app(url, results=results)

    async def add(number: int, ms: int) -> None:
        job.delay(number, ms)

    async def add_many(numbers: range, ms: int) -> None:
        def some(numbers: range) -> None:
            for number in numbers:
                job.delay(number, ms)

        with ThreadPoolExecutor(PRODUCERS) as pool:
            shares = [numbers[at::PRODUCERS] for at in range(PRODUCERS)]
            await asyncio.gather(*(asyncio.wrap_future(pool.submit(some, share)) for share in shares))

    async def ask(number: int) -> Any:
        return job.delay(number, 0).get(timeout=WAIT_SECONDS)

    await protocol.produce(add, add_many, ask if results else None)


def start(app: Any, task: protocol.Task) -> None:
    """Run a worker in the main thread until the process ends."""
    app.WorkController(
        pool="threads" if task.concurrency else "solo",
        concurrency=task.concurrency or 1,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()


async def work(task: protocol.Task) -> None:
    """Run a worker; the event loop stays idle."""
    app, _ = open_app(task.url, results=task.results)
    start(app, task)
    await asyncio.Event().wait()
