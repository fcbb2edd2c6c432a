"""A worker in a separate process.

python -m tests.worker.program URL QUEUE CONCURRENCY

It handles the items of two queues. A payload in the first one is the number of seconds that the run takes, or
`kill`: then the process kills itself. Each run starts with printing a line: the id, the attempt and the time.
Items of the second one, `QUEUE-stuck`, run in threads that never end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from leasequeue import AsyncWorkQueue
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import RetryPolicy, Worker


def say(*words: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def handle(payload: str, lease: Lease) -> None:
    """Do what the payload says."""
    say(lease.id, lease.attempt, time.time())
    if payload == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(float(payload))


def stuck(payload: str) -> None:
    """Run for ever, in a thread."""
    say(payload)
    threading.Event().wait()


async def main(url: str, name: str, concurrency: str) -> int:
    """Work until stopped by a signal. The queues are not closed, as in a program that forgets to."""
    worker = Worker(
        concurrency=int(concurrency), lease_time=30, grace=0.2, retry=RetryPolicy(attempts=2, first=0)
    )
    worker.handler(AsyncWorkQueue.from_url(url, name))(handle)
    worker.handler(AsyncWorkQueue.from_url(url, f"{name}-stuck"))(stuck)
    say("ready")
    return await worker.serve()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
