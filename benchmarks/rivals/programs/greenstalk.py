"""beanstalkd with greenstalk, its client for Python. It blocks, so each job has a thread with a connection.

- It is at-least-once: a job is reserved for a time, and deleted after its run.
- It sends one command at a time and waits for its reply. The best number of threads for jobs that do nothing
  is below.
"""

from __future__ import annotations

import asyncio
import json
import time
from threading import Thread

from greenstalk import Client

from benchmarks.rivals.programs import protocol

THREADS = 1
RESERVED_SECONDS = 60


def connect(url: str) -> Client:
    """Open a connection."""
    host, port = url.split(":")
    return Client((host, int(port)))


async def produce(url: str) -> None:
    """Put jobs with JSON data."""
    client = connect(url)

    async def add(number: int, ms: int) -> None:
        client.put(json.dumps([number, ms]), ttr=RESERVED_SECONDS)

    async def add_many(numbers: range, ms: int) -> None:
        for number in numbers:
            await add(number, ms)

    await protocol.produce(add, add_many)


async def work(task: protocol.Task) -> None:
    """Reserve, run and delete jobs in threads; the event loop stays idle."""
    for _ in range(task.concurrency or THREADS):
        Thread(target=serve, args=(task.url,), daemon=True).start()
    await asyncio.Event().wait()


def serve(url: str) -> None:
    """Run one job after the other."""
    client = connect(url)
    while True:
        job = client.reserve()
        number, ms = json.loads(job.body)
        began = protocol.now()
        if ms:
            time.sleep(ms / 1000)
        protocol.ran(number, began)
        client.delete(job)
