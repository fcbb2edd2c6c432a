"""Many workers of one queue, in few processes.

python -m tests.alive.crowd URL QUEUE SHARDS COUNT CONCURRENCY

Each is a `Worker` with a queue object, and so with a session, connections, a registration and heartbeats as a
worker in a process of its own has: the server sees no difference. Only their background threads share one
event loop, as a thousand threads would mostly wait for each other. A single worker has its thread: it is a
real one. A run of an item `hold` lasts until the program reads a line.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from leasequeue import AsyncWorkQueue, Worker
from leasequeue.worker.background import BackgroundThread
from tests.processes import printed, program

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

#: How many workers start at once in a process, and how many a process has at most.
AT_ONCE, MOST = 25, 250
#: How long it may take until all have started, on a busy machine (s).
START_SECONDS = 900.0


def opened(url: str, name: str, shards: int) -> AsyncWorkQueue:
    """Open the queue; 0: without shards."""
    return AsyncWorkQueue.from_url(url, name, shards=shards or None)


@asynccontextmanager
async def crowd(
    url: str, name: str, count: int, *, shards: int = 0, concurrency: int = 1, each: int = MOST
) -> AsyncIterator[list[Process]]:
    """Run so many workers inside the block, `each` in a process; they have started."""
    async with AsyncExitStack() as stack:
        sizes = [min(each, count - at) for at in range(0, count, each)]
        words = [(url, name, str(shards), str(size), str(concurrency)) for size in sizes]
        found = [await stack.enter_async_context(program("tests.alive.crowd", *one)) for one in words]
        await asyncio.gather(*(printed(one, b"started", within=START_SECONDS) for one in found))
        yield found


async def go(processes: list[Process]) -> None:
    """End all runs that hold their items, and let no later ones hold any."""
    for one in processes:
        assert one.stdin is not None
        one.stdin.write(b"go\n")
        await one.stdin.drain()


async def work(url: str, name: str, shards: int, count: int, concurrency: int) -> None:
    """Run the workers until the process is killed."""
    going, limit = asyncio.Event(), asyncio.Semaphore(AT_ONCE)
    running: list[asyncio.Task[None]] = []

    async def handle(data: bytes) -> None:
        if data == b"hold":
            await going.wait()

    async def start() -> None:
        async with limit:
            worker = Worker(concurrency=concurrency)
            worker.handler(opened(url, name, shards))(handle)
            task = asyncio.create_task(worker.run())
            running.append(task)
            started = asyncio.create_task(worker.started())
            await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)

    await asyncio.gather(*(start() for _ in range(count)))
    sys.stdout.write("started\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    going.set()
    await asyncio.gather(*running)


def share_one_loop() -> None:
    """Run the background tasks of all workers in one event loop, in one thread."""
    shared = asyncio.new_event_loop()
    threading.Thread(target=shared.run_forever, daemon=True).start()

    def run(self: BackgroundThread) -> None:
        asyncio.run_coroutine_threadsafe(self._main(), shared).result()

    patch.object(BackgroundThread, "_run", run).start()


async def main(url: str, name: str, *numbers: str) -> None:
    """Run the workers that the arguments name."""
    shards, count, concurrency = map(int, numbers)
    if count > 1:
        share_one_loop()
    await work(url, name, shards, count, concurrency)


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)
    asyncio.run(main(*sys.argv[1:]))
