"""Jobs through a `Worker` in one process: those that do nothing, and those that take 50 ms.

Jobs that do nothing take turns with the same items leased and completed by hand, by 1,000 coroutines: the
whole cycle of the scenario `cycle`, which adds them as well, and without adding.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.contestants import Ours
from benchmarks.measure import SCRIPT_COMMANDS, Sample, interleaved, metered
from benchmarks.rows import Row, Setting, number_row, speed_row
from leasehold import Item, Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from leasehold import AsyncWorkQueue

PAYLOAD = 100
CONCURRENCY = 100
COROUTINES = 1_000
JOBS = 20_000
SLEEPERS = 2_000
SLEEP_SECONDS = 0.05
#: Commands that take less than this of a job are not told (µs).
WORTH_TELLING = 0.05


async def run(bench: Bench) -> list[Row]:
    """Measure jobs that do nothing, where their time goes, and jobs that sleep."""
    rows = await nothing(bench)
    await bench.clear()
    rows.append(await sleepers(bench))
    await bench.clear()
    return rows


async def nothing(bench: Bench) -> list[Row]:
    """Let the worker and the calls by hand take turns."""
    jobs = bench.some(JOBS, 1_000)
    found: dict[str, list[Sample]] = {"jobs that do nothing": [], "whole cycle": [], "lease, complete": []}
    async with AsyncExitStack() as stack:
        drained, cycled, leased = [
            await stack.enter_async_context(bench.queue(bench.name("worker"))) for _ in range(3)
        ]
        turns = (
            partial(drain, bench, drained, jobs, found["jobs that do nothing"]),
            partial(cycle, bench, Ours(cycled, COROUTINES), jobs // 2, found["whole cycle"]),
            partial(lease_and_complete, bench, Ours(leased, COROUTINES), jobs // 2, found["lease, complete"]),
        )
        await interleaved(bench.some(7, 2), turns)
    ours: Setting = {"payload": PAYLOAD, "concurrency": CONCURRENCY}
    by_hand: Setting = {"payload": PAYLOAD, "coroutines": COROUTINES}
    rows = [
        speed_row("worker", what, "leasehold", ours if what == "jobs that do nothing" else by_hand, samples)
        for what, samples in found.items()
    ]
    return rows + where_time_goes(found["jobs that do nothing"], ours)


async def drain(bench: Bench, queue: AsyncWorkQueue, jobs: int, samples: list[Sample]) -> None:
    """One round of the worker, from its start to its end, on a queue that was filled before."""
    done = 0
    worker = Worker(concurrency=CONCURRENCY)

    @worker.handler(queue)
    async def work(_: bytes) -> None:
        nonlocal done
        done += 1

    await queue.add_items([Item(bytes(PAYLOAD)) for _ in range(jobs)])
    async with metered(bench, jobs) as sample:
        await worker.drain()
    assert done == jobs
    samples.append(sample)


async def cycle(bench: Bench, ours: Ours, jobs: int, samples: list[Sample]) -> None:
    """One round of whole cycles by hand."""
    async with metered(bench, jobs) as sample:
        await ours.cycle(jobs, PAYLOAD)
    samples.append(sample)


async def lease_and_complete(bench: Bench, ours: Ours, jobs: int, samples: list[Sample]) -> None:
    """One round of leasing everything and completing it, by hand; adding it is not measured."""
    ours.prepare(jobs, PAYLOAD)
    await ours.add()
    async with metered(bench, jobs) as sample:
        await ours.lease()
        await ours.complete()
    samples.append(sample)


def where_time_goes(samples: list[Sample], setting: Setting) -> list[Row]:
    """µs per job: of Python here, and on the server by command, those inside the scripts."""
    names = {name for sample in samples for name in sample.commands} - {"info"}
    rows = [
        micros("Python", setting, [1e6 * sample.client_cpu / sample.items for sample in samples]),
        micros("server", setting, [1e6 * sample.server_cpu / sample.items for sample in samples]),
        micros("server: all scripts", setting, [sample.script_us / sample.items for sample in samples]),
    ]
    inside = [
        micros(
            f"server: {name.upper()}",
            setting,
            [sample.commands.get(name, (0, 0.0))[1] / sample.items for sample in samples],
        )
        for name in names.difference(SCRIPT_COMMANDS)
    ]
    inside.sort(key=lambda row: -row.value)
    return rows + [row for row in inside if row.value >= WORTH_TELLING]


def micros(what: str, setting: Setting, values: list[float]) -> Row:
    """A row of µs per job."""
    return number_row("worker", what, "leasehold", setting, "µs/job", values)


async def sleepers(bench: Bench) -> Row:
    """Measure jobs that sleep, over the time that they would take if nothing else took any."""
    jobs = bench.some(SLEEPERS, 2 * CONCURRENCY)
    ideal = jobs * SLEEP_SECONDS / CONCURRENCY
    ratios: list[float] = []
    async with bench.queue(bench.name("worker")) as queue:
        worker = Worker(concurrency=CONCURRENCY)

        @worker.handler(queue)
        async def work(_: bytes) -> None:
            await asyncio.sleep(SLEEP_SECONDS)

        for _ in range(bench.some(5, 1)):
            await queue.add_items([Item(bytes(PAYLOAD)) for _ in range(jobs)])
            async with metered(bench, jobs) as sample:
                await worker.drain()
            ratios.append(sample.seconds / ideal)
    setting: Setting = {"jobs": jobs, "concurrency": CONCURRENCY}
    return number_row("worker", "jobs of 50 ms, time over ideal", "leasehold", setting, "x", ratios)
