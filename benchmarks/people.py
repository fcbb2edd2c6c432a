"""Workers in processes of their own, for what one process cannot show: kills, and waiting side by side."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from typing import TYPE_CHECKING

from leasehold import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

#: Fork from a process that has imported everything and holds no connection: fast, and clean.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["benchmarks.people"])


class Person:
    """A process that was started here, and the pipe to it. It ends with us."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe

    async def told(self) -> tuple[str, float]:
        """Wait for what it has to say.

        Raises:
            EOFError: If it has ended.
        """
        said: tuple[str, float] = await asyncio.to_thread(self.pipe.recv)
        return said

    def kill(self) -> None:
        """SIGKILL: it can do nothing about it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def victim(url: str, name: str, lease_seconds: float) -> Person:
    """Start a worker that waits for an item, tells its id and the end of its lease, and works for ever."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_be_victim, args=(url, name, lease_seconds, theirs), daemon=True)
    process.start()
    theirs.close()
    return Person(process, ours)


def crowd(url: str, name: str, queues: int) -> Person:
    """Start a process with so many queue objects, each of which completes whatever it gets, for ever."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_be_crowd, args=(url, name, queues), daemon=True)
    process.start()
    theirs.close()
    return Person(process, ours)


def producer(url: str, name: str, items: int) -> Person:
    """Start a process that adds items one at a time; each holds the time when it was about to be added."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_be_producer, args=(url, name, items), daemon=True)
    process.start()
    theirs.close()
    return Person(process, ours)


def _be_victim(url: str, name: str, lease_seconds: float, pipe: Connection) -> None:
    async def work() -> None:
        async with AsyncWorkQueue.from_url(url, name) as queue:
            lease = await queue.lease(lease_seconds)
            assert lease is not None
            pipe.send((lease.id, lease.deadline))
            await asyncio.Event().wait()

    asyncio.run(work())


def _be_crowd(url: str, name: str, queues: int) -> None:
    async def everybody() -> None:
        await asyncio.gather(*(serve(url, name) for _ in range(queues)))

    asyncio.run(everybody())


async def serve(url: str, name: str) -> None:
    """Wait for items on a connection of one's own, and complete them, for ever."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        while True:
            lease = await queue.lease(30)
            assert lease is not None
            assert await queue.complete(lease)


def _be_producer(url: str, name: str, items: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        # Wherever there is room: not always on the core of the worker that it wakes.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    asyncio.run(produce(url, name, items))


async def produce(url: str, name: str, items: int) -> None:
    """Add items with pauses between them, which keep no beat."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.counts()
        for _ in range(items):
            await asyncio.sleep(random.uniform(0.005, 0.015))
            await queue.add_item(Item(str(time.monotonic())))
