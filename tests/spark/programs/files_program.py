"""A worker of the end-to-end test, which writes a line with the hash of each file.

REDIS_URL and QUEUE say where the work is. What it has done it writes into the file RECORD,
once that is there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

from leasequeue import AsyncWorkQueue, Lease, RetryPolicy, Worker

RECORD = Path(os.environ["RECORD"])
worker = Worker(concurrency=8, lease_time=2, retry=RetryPolicy(attempts=2, first=0.05))


@worker.handler(AsyncWorkQueue.from_url(os.environ["REDIS_URL"], os.environ["QUEUE"]))
async def measure(data: bytes, lease: Lease) -> None:
    """Write the hash of a file; refuse an empty one."""
    if not data:
        raise ValueError("an empty file")
    while not RECORD.exists():  # noqa: ASYNC110, ASYNC240 - another process creates it
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # so that a run is always interrupted
    line = f"{lease.id} {hashlib.sha256(data).hexdigest()}\n"
    with RECORD.open("ab", buffering=0) as file:  # noqa: ASYNC230 - one write, in one piece
        file.write(line.encode())


if __name__ == "__main__":
    sys.exit(asyncio.run(worker.serve()))
