"""A program whose workers are units: each run is recorded, and may hold until a file exists.

QUEUE names the queue, and RECORD the file of the record.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from leasequeue import AsyncWorkQueue, Lease, RetryPolicy, Worker

RECORD = Path(os.environ["RECORD"])
RELEASE = RECORD.with_name("release")

worker = Worker(concurrency=1, lease_time=10, dead_after=10, retry=RetryPolicy(attempts=10, first=0.05))


def write(*words: object) -> None:
    """Append a line to the record in one write."""
    with RECORD.open("ab", buffering=0) as file:
        file.write((" ".join(map(str, words)) + "\n").encode())


@worker.handler(AsyncWorkQueue.from_url(os.environ["LEASEQUEUE_URL"], os.environ["QUEUE"]))
async def do(order: str, lease: Lease) -> None:
    """Sleep for some seconds, or hold. The second word of an order is the time when it was added."""
    what, _, added = order.partition(" ")
    write("began", lease.id, os.getpid(), time.time() - float(added or 0), time.time())
    if what == "hold":
        while not RELEASE.exists():  # noqa: ASYNC110 - the test creates the file
            await asyncio.sleep(0.01)
    else:
        await asyncio.sleep(float(what))
    write("ended", lease.id, os.getpid())
