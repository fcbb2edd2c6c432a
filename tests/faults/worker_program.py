"""A worker in a process of its own, that says how far it is and goes on when it is told to.

python -m tests.faults.worker_program URL QUEUE LEASE_SECONDS

It writes the name of each step and waits for a line before it takes it, so that whoever started it can kill
it at any of them.
"""

from __future__ import annotations

import asyncio
import sys

from leasehold import AsyncWorkQueue

#: The steps, in order.
STEPS = ("lease", "work", "complete", "end")


async def say_and_wait(step: str) -> None:
    """Say what comes next, and wait until it may."""
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


async def main(url: str, name: str, lease_seconds: str) -> None:
    """Lease one item, work on it, complete it."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.counts()
        await say_and_wait("lease")
        lease = await queue.lease(float(lease_seconds))
        if lease is None:
            raise AssertionError("it waits for ever")
        await say_and_wait("work")
        await say_and_wait("complete")
        if not await queue.complete(lease):
            raise AssertionError("the item is ours")
        await say_and_wait("end")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
