"""A process that only ticks the schedules of queues, until it is ended.

python -m tests.faults.ticking_program URL QUEUE ...

It writes a line when it has ticked for the first time.
"""

from __future__ import annotations

import asyncio
import sys

from leasequeue import AsyncWorkQueue


async def main(url: str, *names: str) -> None:
    """Tick, and sleep until something is due."""
    queues = [AsyncWorkQueue.from_url(url, name) for name in names]
    due_in = min([await queue.schedules.tick() for queue in queues])
    sys.stdout.write("ticking\n")
    sys.stdout.flush()
    while True:
        await asyncio.sleep(min(due_in, 0.05))
        due_in = min([await queue.schedules.tick() for queue in queues])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
