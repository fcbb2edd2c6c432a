"""What levels, groups and limits cost per item and by step, and what workers ask at a rate limit."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import COSTS, Row, Sample, metered, number_row, speed_row, take_turns, time_row
from benchmarks.scenarios.many import running
from leasequeue import AsyncWorkQueue, Item, Worker

if TYPE_CHECKING:
    from benchmarks.bench import Bench

PAYLOAD = 100
#: How many items one call adds, leases and completes.
CHUNK = 100
STEPS = ("whole cycle", "lease")
MODES = ("plain", "limited", "levels", "groups", "rate", "concurrency")


async def lanes(bench: Bench) -> list[Row]:
    """Measure the cycle by what an item has and the queue permits, then leases with ever more lanes.

    `limited` is a limit of the whole queue that is never reached; `levels` are 10, `groups` 100; `rate` and
    `concurrency` are limits of each group that are never reached.
    """
    items = bench.scaled(10_000, 500)
    samples: dict[tuple[str, str], list[Sample]] = {(what, mode): [] for mode in MODES for what in STEPS}
    await take_turns(bench.scaled(5, 2), [partial(_cycle, bench, mode, items, samples) for mode in MODES])
    rows = [
        speed_row(what, its, costs=COSTS, setting={"lanes": mode}) for (what, mode), its in samples.items()
    ]
    for groups, per_group in bench.scaled(((10, 10), (1_000, 10), (100_000, 10)), ((10, 10), (100, 10))):
        rows += await _flat(bench, groups, per_group)
    for workers in (1, 4):
        rows.append(await _at_a_rate(bench, workers))
    return rows


async def _cycle(bench: Bench, mode: str, items: int, samples: dict[tuple[str, str], list[Sample]]) -> None:
    queue = await bench.queue()
    if mode == "limited":
        await queue.limits.set(concurrency=1_000_000)
    elif mode == "rate":
        await queue.limits.set(rate="1000000/s", burst=1_000_000, group="*")
    elif mode == "concurrency":
        await queue.limits.set(concurrency=1_000_000, group="*")
    async with metered(bench.redis, items) as adding:
        for first in range(0, items, CHUNK):
            await _add(queue, mode, first)
    async with metered(bench.redis, items) as leasing:
        batches = [await queue.lease_many(CHUNK, 60) for _ in range(0, items, CHUNK)]
    async with metered(bench.redis, items) as completing:
        for leases in batches:
            await queue.complete_many(leases)
    cycle = adding + leasing + completing
    cycle.items = items
    for what, sample in zip(STEPS, (cycle, leasing), strict=True):
        samples[what, mode].append(sample)


async def _add(queue: AsyncWorkQueue, mode: str, first: int) -> None:
    part = [Item(bytes(PAYLOAD)) for _ in range(CHUNK)]
    lane = first // CHUNK
    if mode in {"plain", "limited"}:
        await queue.add_items(part)
    elif mode == "levels":
        await queue.add_items(part, priority=lane % 10)
    else:
        await queue.add_items(part, group=f"g{lane % 100}")


async def _flat(bench: Bench, groups: int, per_group: int) -> list[Row]:
    """Measure single leases from a queue with so many groups, each with a limit and so many items."""
    queue = await bench.queue()
    await queue.limits.set(concurrency=per_group, rate="1000/s", burst=1_000, group="*")
    for first in range(0, groups, CHUNK):  # a hundred groups share a few trips
        some = range(first, min(groups, first + CHUNK))
        batches = ([Item(b"") for _ in range(per_group)] for _ in some)
        adding = (queue.add_items(items, group=f"g{n}") for n, items in zip(some, batches, strict=True))
        await asyncio.gather(*adding)
    seconds = []
    async with metered(bench.redis, min(1_000, groups * per_group)) as sample:
        for _ in range(sample.items):
            started = time.perf_counter()
            assert await queue.lease(600, block=False)
            seconds.append(time.perf_counter() - started)
    setting = {"groups": groups, "items": groups * per_group}
    return [
        time_row("lease one", seconds, setting={**setting}),
        speed_row("lease one", [sample], costs=COSTS, setting={**setting}),
    ]


async def _at_a_rate(bench: Bench, workers: int) -> Row:
    """Count the scripts by which workers of ten slots do the items of a group, held up by its rate."""
    queue, items = await bench.queue(), bench.scaled(500, 100)
    await queue.limits.set(rate="50/s", group="*")
    await queue.add_items([Item(b"") for _ in range(items)], group="g")
    done = asyncio.Semaphore(0)

    async def work(_: bytes) -> None:
        done.release()

    async with AsyncExitStack() as stack:
        for _ in range(workers):
            worker = Worker(concurrency=10)
            worker.handler(AsyncWorkQueue.from_url(bench.url(), queue.name))(work)
            await stack.enter_async_context(running(worker))
        for _ in range(items // 5):
            await done.acquire()
        async with metered(bench.redis, 3 * items // 5) as sample:
            for _ in range(sample.items):
                await done.acquire()
    scripts = sample.script_calls / sample.items
    return number_row("scripts at a rate limit", "scripts/item", [scripts], setting={"workers": workers})
