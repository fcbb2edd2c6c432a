"""A `Worker` in one process: the speed of jobs, how soon it starts them, and recovery after an outage."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import tempfile
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import STEP_TIMEOUT, Child, start_server
from benchmarks.goals import SLEEPING
from benchmarks.measure import COSTS, SCRIPT_COMMANDS, Row, Sample, Setting, number_row, time_row
from benchmarks.scenarios.waiting import commands_per_second, idle_sample
from benchmarks.targets import Ours, Trial, measured
from leasequeue import AsyncWorkQueue, Item, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench

PAYLOAD = 100
CONCURRENCY = 100
COROUTINES = 1_000
NO_OP = "jobs that do nothing"
SLEEP_SECONDS = 0.05


async def worker(bench: Bench) -> list[Row]:
    """Measure jobs that do nothing, where their time goes, and jobs of 50 ms.

    Jobs that do nothing take turns with the same items processed by 1,000 coroutines that call the queue:
    the whole cycle as in the scenario `cycle`, which includes adding them, and without adding.
    """
    jobs = bench.scaled(20_000, 1_000)
    drained = _Drained(await bench.queue(), jobs)
    cycled, leased = [Ours(await bench.queue(), COROUTINES) for _ in range(2)]

    async def add() -> None:
        await leased.prepare(jobs // 2, PAYLOAD)
        await leased.add()

    async def lease_and_complete() -> None:
        await leased.lease()
        await leased.complete()

    ours: Setting = {"payload": PAYLOAD, "concurrency": CONCURRENCY}
    calls: Setting = {"payload": PAYLOAD, "coroutines": COROUTINES}
    trials = [
        Trial("leasequeue", ours, jobs, {NO_OP: (drained.fill, drained.run)}),
        Trial.cycle(cycled, calls, jobs // 2, PAYLOAD, "whole cycle"),
        Trial("leasequeue", calls, jobs // 2, {"lease, complete": (add, lease_and_complete)}),
    ]
    rows = await measured(bench, trials, bench.scaled(7, 2))
    rows += _where_time_goes(trials[0].samples[NO_OP], ours)
    await bench.reset()
    return [*rows, *await _sleepers(bench)]


class _Drained:
    """A queue that a worker drains, with jobs that do nothing or sleep."""

    def __init__(self, queue: AsyncWorkQueue, jobs: int, sleep_seconds: float = 0) -> None:
        self._queue = queue
        self._jobs = jobs
        self._sleep_seconds = sleep_seconds
        self._worker = Worker()
        self._done = 0

    async def fill(self) -> None:
        """Create a worker, and add the jobs."""
        self._worker, self._done = Worker(concurrency=CONCURRENCY), 0

        async def work(_: bytes) -> None:
            if self._sleep_seconds:
                await asyncio.sleep(self._sleep_seconds)
            self._done += 1

        self._worker.handler(self._queue)(work)
        await self._queue.add_items([Item(bytes(PAYLOAD)) for _ in range(self._jobs)])

    async def run(self) -> None:
        """Run all jobs, from the worker's start to its end."""
        await self._worker.drain()
        assert self._done == self._jobs


def _where_time_goes(samples: list[Sample], setting: Setting) -> list[Row]:
    """Return rows of µs per job: in Python, on the server, and by command inside the scripts."""

    def row(what: str, micros: Iterable[float]) -> Row:
        per_job = [one / sample.items for one, sample in zip(micros, samples, strict=True)]
        return number_row(what, "µs/job", per_job, setting=setting)

    names = {name for sample in samples for name in sample.calls} - {"info", *SCRIPT_COMMANDS}
    commands = [row(f"server: {name.upper()}", (sample.micros[name] for sample in samples)) for name in names]
    return [
        row("Python", map(COSTS["client_cpu_us_per_item"], samples)),
        row("server", map(COSTS["server_cpu_us_per_item"], samples)),
        row("server: all scripts", map(COSTS["script_us_per_item"], samples)),
        *sorted((row for row in commands if row.value >= 0.05), key=lambda row: -row.value),
    ]


async def _sleepers(bench: Bench) -> list[Row]:
    """Measure jobs of 50 ms, over the time without any overhead; beside them, the event loop alone."""
    jobs = bench.scaled(2_000, 2 * CONCURRENCY)
    drained = _Drained(await bench.queue(), jobs, SLEEP_SECONDS)
    setting: Setting = {"jobs": jobs, "concurrency": CONCURRENCY}

    async def sleep() -> None:
        for _ in range(jobs // CONCURRENCY):
            await asyncio.sleep(SLEEP_SECONDS)

    async def sleep_alone() -> None:
        await asyncio.gather(*(sleep() for _ in range(CONCURRENCY)))

    trials = [
        Trial("leasequeue", setting, jobs, {SLEEPING: (drained.fill, drained.run)}),
        Trial("bare", setting, jobs, {SLEEPING: (None, sleep_alone)}),
    ]
    await measured(bench, trials, bench.scaled(5, 1))
    ideal = jobs * SLEEP_SECONDS / CONCURRENCY
    return [
        number_row(
            SLEEPING,
            "x",
            [sample.seconds / ideal for sample in trial.samples[SLEEPING]],
            who=trial.who,
            setting=setting,
        )
        for trial in trials
    ]


async def worker_idle(bench: Bench) -> list[Row]:
    """Measure how soon an idle worker starts jobs that are added or fall due, and what its waiting costs.

    Another process adds the items. Times are by the clock that all processes share.
    """
    setting: Setting = {"concurrency": CONCURRENCY}
    count = bench.scaled(500, 30)
    async with _idle_worker(bench, time.monotonic) as (queue, started):
        producer = Child(_produce, bench.url(), queue.name, count)
        added = [await started.get() for _ in range(count)]
        producer.kill()

    count = bench.scaled(300, 20)
    first, last = bench.scaled(0.5, 0.3), bench.scaled(5.5, 0.8)
    async with _idle_worker(bench, time.time) as (queue, started):
        # The server keeps whole milliseconds. The first falls due when all have been added.
        times = [round(time.time() + random.uniform(first, last), 3) for _ in range(count)]
        items = [queue.add_item(Item(str(at)), at=datetime.fromtimestamp(at, UTC)) for at in times]
        await asyncio.gather(*items)
        due = [await started.get() for _ in range(count)]

    async with _idle_worker(bench, time.time):
        sample = await idle_sample(bench, bench.scaled(10, 1))
    cpu = 100 * sample.client_cpu / sample.seconds
    waiting: Setting = {**setting, "seconds": bench.scaled(10, 1)}
    return [
        time_row("add_item to handler", added, setting=setting),
        time_row("due to handler", due, setting=setting),
        number_row("CPU of an idle worker", "% of a core", [cpu], setting=waiting),
        number_row("commands of an idle worker", "1/s", [commands_per_second(sample)], setting=waiting),
    ]


Delays = asyncio.Queue[float]


@asynccontextmanager
async def _idle_worker(
    bench: Bench, clock: Callable[[], float]
) -> AsyncIterator[tuple[AsyncWorkQueue, Delays]]:
    """Run a worker whose jobs hold a time; the delay of each job since then goes to the queue."""
    queue, delays = await bench.queue(), Delays()
    worker = Worker(concurrency=CONCURRENCY)

    @worker.handler(queue)
    async def work(since: str) -> None:
        delays.put_nowait(clock() - float(since))

    async with asyncio.timeout(STEP_TIMEOUT), _running(worker):
        await bench.blocked(1)
        yield queue, delays
    await bench.stack.aclose()


@asynccontextmanager
async def _running(worker: Worker) -> AsyncIterator[None]:
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def _produce(_pipe: Connection, url: str, name: str, items: int) -> None:
    """Add items that hold the current time, with irregular pauses."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # not always on the worker's core
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await queue.counts()
        for _ in range(items):
            await asyncio.sleep(random.uniform(0.005, 0.015))
            await queue.add_item(Item(str(time.monotonic())))


async def worker_restart(bench: Bench) -> list[Row]:
    """Measure how soon a worker continues after the server was killed and started again.

    A separate server keeps its data. When it answers again, an item is added; the time ends when the handler
    starts.
    """
    rows: list[Row] = []
    logging.getLogger("leasequeue").setLevel(logging.CRITICAL)  # the outages are intended
    with tempfile.TemporaryDirectory(prefix="leasequeue-bench-") as folder:
        # Seconds without a server -> how often.
        for away, times in bench.scaled({0.2: 5, 3.0: 5}, {0.2: 1}).items():
            late = await _outages(Path(folder), away, times)
            setting: Setting = {"away": f"{away:g} s"}
            rows.append(time_row("server back to handler", late, setting=setting, rounds=times))
    return rows


async def _outages(folder: Path, away: float, times: int) -> list[float]:
    """Kill the server under an idle worker and start it again, so many times."""
    late: list[float] = []
    server = await start_server(dir=folder)
    try:
        async with AsyncWorkQueue.from_url(server.url, "bench-worker") as queue:
            started: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
            worker = Worker()

            @worker.handler(queue)
            async def work(number: str) -> None:
                started.put_nowait((number, time.perf_counter()))

            async with _running(worker), asyncio.timeout(STEP_TIMEOUT * times):
                while not worker.health().ok:  # noqa: ASYNC110 - no event exists
                    await asyncio.sleep(0.01)
                for number in map(str, range(times)):
                    os.kill(server.pid, signal.SIGKILL)
                    await server.stop()
                    await asyncio.sleep(away)
                    server = await start_server(dir=folder, port=server.port)
                    back = time.perf_counter()
                    async with AsyncWorkQueue.from_url(server.url, "bench-worker") as new_client:
                        await new_client.add_item(Item(number))
                    # An item whose completion the killed server had not saved may run again.
                    while (run := await started.get())[0] != number:
                        pass
                    late.append(run[1] - back)
    finally:
        await server.stop()
    return late
