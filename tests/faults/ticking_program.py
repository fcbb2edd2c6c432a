"""A process that only ticks the schedules of a queue, until it is ended.

python -m tests.faults.ticking_program URL QUEUE

It writes a line when it has ticked for the first time.
"""

from __future__ import annotations

import asyncio
import sys

from leasequeue import AsyncWorkQueue


async def main(url: str, name: str) -> None:
    """Tick, and sleep until something is due."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        due_in = await queue.schedules.tick()
        sys.stdout.write("ticking\n")
        sys.stdout.flush()
        while True:
            await asyncio.sleep(min(due_in, 0.05))
            due_in = await queue.schedules.tick()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
