"""A worker whose task emits two chunks, and then waits to be killed.

python -m tests.tasks.streamer URL QUEUE
"""

from __future__ import annotations

import asyncio
import sys

from leasequeue import TaskQueue, Worker, current_run


async def main(url: str, name: str) -> None:
    """Work until killed."""
    async with TaskQueue.from_url(url, name) as tasks:

        @tasks.task(streams=int)
        async def write() -> None:
            for number in range(2):
                await current_run().emit(number)
                sys.stdout.write(f"emitted {number}\n")
                sys.stdout.flush()
            await asyncio.Event().wait()

        await Worker(tasks).serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
