"""One worker process and many queues: the cost of a job, and how soon an idle worker starts one.

The bare path (bare.py) stands beside the idle worker: two processes, and no more trips than the work needs.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import bare
from benchmarks.bench import SERVER_CORE, STEP_TIMEOUT, Child, pin
from benchmarks.measure import COSTS, Row, Sample, Setting, metered, speed_row, take_turns, time_row
from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench

PAYLOAD = 100
ONE, ALL = "work in one queue", "work in all queues"
#: The longest wait for a drained worker (s).
DRAIN_TIMEOUT = 300.0


class Drained:
    """A running worker of many queues, with jobs that do nothing in some of them."""

    def __init__(
        self, bench: Bench, queues: int, filled: int, concurrency: int, jobs: int, *, warm: int | None = None
    ) -> None:
        self._bench = bench
        self._queues, self._filled, self._concurrency = queues, filled, concurrency
        self._warm = max(jobs // 10, filled) if warm is None else warm
        self._jobs = jobs
        self._done = 0
        self._warmed, self._begun, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.samples: list[Sample] = []

    async def round(self) -> None:
        """Start the worker, fill queues, and measure from when it is warm until all jobs are completed."""
        self._done = 0
        for event in (self._warmed, self._begun, self._ended):
            event.clear()
        worker, queues = await self._open()
        filled = queues[: self._filled]
        share = (self._warm + self._jobs) // len(filled)
        self._expected = share * len(filled)
        async with running(worker), asyncio.timeout(DRAIN_TIMEOUT):
            await self._bench.blocked(len(queues))
            for queue in filled:
                await self._fill(queue, share)
            await self._warmed.wait()
            async with metered(self._bench.redis, self._expected - self._warm) as sample:
                self._begun.set()
                await self._ended.wait()
                leased = [QueueKeys(queue.name, "lh:bench")["deadlines"] for queue in filled]
                while await self._bench.redis.exists(*leased):  # noqa: ASYNC110 - no event exists
                    await asyncio.sleep(0.0005)
        assert self._done == self._expected
        self.samples.append(sample)
        await self._bench.reset()

    async def _open(self) -> tuple[Worker, Sequence[AsyncWorkQueue]]:
        """Open the queues, and a worker for them."""
        worker = Worker(concurrency=self._concurrency)
        queues = await open_queues(self._bench, self._queues)
        for queue in queues:
            worker.handler(queue)(self._job)
        return worker, queues

    async def _fill(self, queue: AsyncWorkQueue, count: int) -> None:
        """Add so many jobs."""
        await queue.add_items([Item(bytes(PAYLOAD)) for _ in range(count)])

    async def _job(self, _: bytes) -> None:
        await self._ran()

    async def _ran(self) -> None:
        """Count a job. The first one after those that warm up waits until the measurement has begun."""
        if self._done >= self._warm and not self._begun.is_set():
            self._warmed.set()
            await self._begun.wait()
        self._done += 1
        if self._done == self._expected:
            self._ended.set()


async def open_queues(bench: Bench, count: int) -> Sequence[AsyncWorkQueue]:
    """Open queues on one client, as users with many queues do."""
    client = await bench.client()
    return [
        await bench.stack.enter_async_context(AsyncWorkQueue(f"{bench.name()}-{number}", client))
        for number in range(count)
    ]


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Run a worker during the block."""
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def many(bench: Bench) -> list[Row]:
    """Measure jobs that do nothing, in one of so many queues or spread over all of them."""
    jobs = bench.scaled(20_000, 1_000)
    targets: dict[tuple[str, int, int], Drained] = {}
    for queues in bench.queues:
        for what, filled in ((ONE, 1), (ALL, queues)):
            for concurrency in (100, 1_000):
                if queues > 1 or what == ONE:
                    target = Drained(bench, queues, filled, concurrency, jobs)
                    targets[what, queues, concurrency] = target
    await take_turns(bench.scaled(3, 1), [target.round for target in targets.values()])
    rows = []
    for (what, queues, concurrency), target in targets.items():
        setting: Setting = {"queues": queues, "concurrency": concurrency}
        rows.append(speed_row(what, target.samples, costs=(*COSTS, "trips_per_item"), setting=setting))
    return rows


#: The figures of an idle worker: its CPU time by job, and its trips.
IDLE_COSTS = ("client_cpu_us_per_item", "server_cpu_us_per_item", "trips_per_item")


async def idle_worker(bench: Bench) -> list[Row]:
    """Measure from just before an item is added to its handler, in an idle worker, beside the bare path.

    Another process adds the items, on the core of the server, which is idle as well, to the last queue.
    """
    count = bench.scaled(150, 15)
    found: dict[int, _Late] = {queues: _Late() for queues in (0, *bench.queues)}
    turns = [partial(_idle, bench, queues, count, its) for queues, its in found.items() if queues]
    await take_turns(bench.scaled(3, 1), [partial(_idle_bare, bench, count, found[0]), *turns])
    rows = []
    for queues, its in found.items():
        who, setting = "leasequeue" if queues else "bare", Setting(queues=queues or 1)
        rows.append(time_row("add to handler", its.seconds, who=who, setting=setting))
        rows.append(speed_row("idle job", its.samples, costs=IDLE_COSTS, who=who, setting=setting))
    return rows


@dataclass
class _Late:
    """What was measured of idle workers."""

    seconds: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


async def _idle(bench: Bench, queues: int, count: int, late: _Late) -> None:
    """Let a worker wait on the queues, and add items to the last one."""
    worker, delays = Worker(), asyncio.Queue[float]()

    async def work(since: str) -> None:
        delays.put_nowait(time.monotonic() - float(since))

    opened = await open_queues(bench, queues)
    for queue in opened:
        worker.handler(queue)(work)
    async with running(worker), asyncio.timeout(STEP_TIMEOUT):
        await bench.blocked(queues)
        await _measure(bench, opened[-1].name, count, delays, late)
    await bench.reset()


async def _idle_bare(bench: Bench, count: int, late: _Late) -> None:
    waiting, commands = [await bare.Connection.open(bench.url()) for _ in range(2)]
    delays = asyncio.Queue[float]()
    working = asyncio.create_task(
        bare.work(waiting, commands, lambda since: delays.put_nowait(time.monotonic() - float(since)))
    )
    async with asyncio.timeout(STEP_TIMEOUT):
        await _measure(bench, "", count, delays, late)
    working.cancel()
    waiting.close()
    commands.close()
    await bench.reset()


async def _measure(bench: Bench, name: str, count: int, delays: asyncio.Queue[float], late: _Late) -> None:
    """Let another process add items; measure their delays and costs, without those that warm it up."""
    warm = count // 10
    producer = Child(produce, bench.url(), name, warm + count)
    for _ in range(warm):
        await delays.get()
    async with metered(bench.redis, count) as sample:
        late.seconds += [await delays.get() for _ in range(count)]
    late.samples.append(sample)
    producer.kill()


async def produce(
    _pipe: Connection, url: str, name: str, items: int, clock: Callable[[], float] = time.monotonic
) -> None:
    """Add items that hold the current time, with irregular pauses; without a name, to the bare path."""
    pin(SERVER_CORE)
    if not name:
        connection = await bare.Connection.open(url)
        for number in range(items):
            await asyncio.sleep(random.uniform(0.01, 0.03))
            await connection.add(str(number), str(clock()))
        await asyncio.Event().wait()
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.counts()
        for _ in range(items):
            await asyncio.sleep(random.uniform(0.01, 0.03))
            await queue.add_item(Item(str(clock())))
        await asyncio.Event().wait()
