"""An idle worker: how soon it begins with what is added or falls due, and what its waiting costs.

Items are added by another process. Times are by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from benchmarks.bench import PATIENCE_SECONDS
from benchmarks.people import producer
from benchmarks.rows import Row, number_row, time_row
from benchmarks.scenarios.idle import idle_rate
from leasehold import Item, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.bench import Bench
    from leasehold import AsyncWorkQueue

CONCURRENCY = 100
#: Items fall due over so many seconds, the first when all have been added.
DUE_WITHIN = (0.5, 5.5)


class Begun:
    """Notes when each job begins: what it is given is the time that it is to be compared with."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self._wanted = 0
        self._enough = asyncio.Event()

    def note(self, since: float, now: float) -> None:
        """One has begun."""
        self.late.append(now - since)
        if len(self.late) >= self._wanted:
            self._enough.set()

    async def all_of(self, count: int) -> list[float]:
        """Wait until so many have begun.

        Raises:
            TimeoutError: If that takes a minute.
        """
        self._wanted = count
        if len(self.late) < count:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._enough.wait()
        return self.late


async def run(bench: Bench) -> list[Row]:
    """Measure each on a worker of its own."""
    rows = [await added(bench), await due(bench), *await waiting(bench)]
    await bench.clear()
    return rows


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Have it at work while the block runs."""
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def added(bench: Bench) -> Row:
    """From the call of add_item in another process to the beginning of the handler."""
    begun, name = Begun(), bench.name("worker")
    count = bench.some(500, 30)
    async with bench.queue(name) as queue:
        worker = Worker(concurrency=CONCURRENCY)

        @worker.handler(queue)
        async def work(since: str) -> None:
            begun.note(float(since), time.monotonic())

        async with running(worker):
            await bench.blocked(1)
            person = producer(bench.url(), name, count)
            try:
                late = await begun.all_of(count)
            finally:
                person.kill()
    return time_row("worker_idle", "add_item to handler", "leasehold", {"concurrency": CONCURRENCY}, late)


async def due(bench: Bench) -> Row:
    """From the time at which an item falls due to the beginning of the handler."""
    begun, count = Begun(), bench.some(300, 20)
    first, last = DUE_WITHIN if not bench.quick else (0.3, 0.8)
    async with bench.queue(bench.name("worker")) as queue:
        worker = Worker(concurrency=CONCURRENCY)

        @worker.handler(queue)
        async def work(since: str) -> None:
            begun.note(float(since), time.time())

        async with running(worker):
            await bench.blocked(1)
            await delay_all(queue, [time.time() + random.uniform(first, last) for _ in range(count)])
            late = await begun.all_of(count)
    return time_row("worker_idle", "due to handler", "leasehold", {"concurrency": CONCURRENCY}, late)


async def delay_all(queue: AsyncWorkQueue, times: list[float]) -> None:
    """Add an item for each time."""
    # The server keeps whole milliseconds.
    whole = [round(at, 3) for at in times]
    await asyncio.gather(*(queue.add_item(Item(str(at)), at=datetime.fromtimestamp(at, UTC)) for at in whole))


async def waiting(bench: Bench) -> list[Row]:
    """What it costs to wait, by this process's CPU and by what the server is sent."""
    seconds = bench.some(10, 1)
    setting: dict[str, int | str] = {"concurrency": CONCURRENCY, "seconds": seconds}
    async with bench.queue(bench.name("worker")) as queue:
        worker = Worker(concurrency=CONCURRENCY)

        @worker.handler(queue)
        async def work(_: bytes) -> None:
            raise AssertionError("nobody adds an item")

        async with running(worker):
            await bench.blocked(1)
            before = time.process_time()
            rate = await idle_rate(bench, seconds)
            cpu = 100 * (time.process_time() - before) / seconds
    return [
        number_row("worker_idle", "CPU of an idle worker", "leasehold", setting, "% of a core", [cpu]),
        number_row("worker_idle", "commands of an idle worker", "leasehold", setting, "1/s", [rate]),
    ]
