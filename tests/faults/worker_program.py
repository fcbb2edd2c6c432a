"""A worker in a separate process, which announces each step and waits before it takes it.

python -m tests.faults.worker_program URL QUEUE LEASE_SECONDS

It prints the name of each step and waits for a line before it takes it, so that a test can kill it there.
"""

from __future__ import annotations

import asyncio
import sys

from leasequeue import AsyncWorkQueue

#: The steps, in order.
STEPS = ("lease", "work", "complete")


async def announce(step: str) -> None:
    """Print the next step, and wait for a line."""
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


async def main(url: str, name: str, lease_seconds: str) -> None:
    """Lease one item, work on it, complete it."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.counts()
        await announce("lease")
        lease = await queue.lease(float(lease_seconds))
        if lease is None:
            raise AssertionError("lease() waits without a limit")
        await announce("work")
        await announce("complete")
        if not await queue.complete(lease):
            raise AssertionError("the lease is held")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
