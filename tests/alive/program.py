"""A worker in a separate process, which is dead after a second.

python -m tests.alive.program URL QUEUE NAME

Each run prints `begun ID`, waits for an item in the queue `QUEUE-go`, and prints `done ID` or `cancelled ID`.
"""

from __future__ import annotations

import asyncio
import sys

from leasequeue import AsyncWorkQueue
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import Worker


def say(*words: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url: str, name: str, worker_name: str) -> int:
    """Work until stopped by a signal."""
    queue, go = (AsyncWorkQueue.from_url(url, one) for one in (name, f"{name}-go"))
    worker = Worker(name=worker_name, lease_time=3600, grace=5, dead_after=1, clean_every=3600)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        say("begun", lease.id)
        try:
            while not await go.queue_len():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            say("cancelled", lease.id, await queue.complete(lease))
            raise
        say("done", lease.id)

    return await worker.serve()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
