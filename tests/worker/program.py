"""A worker in a process of its own.

python -m tests.worker.program URL QUEUE CONCURRENCY

It runs the items of two queues. Those of the first say how many seconds they take, or `kill`: end this
process without a word. For each it writes a line when it begins: its id, its attempt and the time. Those
of the second, `QUEUE-stuck`, are run in threads that never end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from leasehold import AsyncWorkQueue
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasehold.worker import RetryPolicy, Worker


def say(*words: object) -> None:
    """Write a line, at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def handle(payload: str, lease: Lease) -> None:
    """Do what the payload says."""
    say(lease.id, lease.attempt, time.time())
    if payload == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(float(payload))


def stuck(payload: str) -> None:
    """Never end, in a thread."""
    say(payload)
    threading.Event().wait()


async def main(url: str, name: str, concurrency: str) -> int:
    """Work until told to stop. The queues are left as a program leaves them that ends: not closed."""
    worker = Worker(
        concurrency=int(concurrency), lease_time=2, grace=0.5, retry=RetryPolicy(attempts=3, first=0)
    )
    worker.handler(AsyncWorkQueue.from_url(url, name))(handle)
    worker.handler(AsyncWorkQueue.from_url(url, f"{name}-stuck"))(stuck)
    say("ready")
    return await worker.serve()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
