"""What levels, groups and limits cost per item, and whether leasing stays flat with many groups and items."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import COSTS, Row, Sample, metered, speed_row, take_turns, time_row
from leasequeue import Item

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from leasequeue import AsyncWorkQueue

PAYLOAD = 100
#: How many items one call adds, leases and completes.
CHUNK = 100
MODES = ("plain", "limited", "levels", "groups", "rate", "concurrency")


async def lanes(bench: Bench) -> list[Row]:
    """Measure the cycle by what an item has and the queue permits, then leases with ever more lanes.

    `limited` is a limit of the whole queue that is never reached; `levels` are 10, `groups` 100; `rate` and
    `concurrency` are limits of each group that are never reached.
    """
    items = bench.scaled(10_000, 500)
    samples: dict[str, list[Sample]] = {mode: [] for mode in MODES}
    await take_turns(
        bench.scaled(5, 2), [partial(_cycle, bench, mode, items, samples[mode]) for mode in MODES]
    )
    rows = [
        speed_row("whole cycle", its, costs=COSTS, setting={"lanes": mode}) for mode, its in samples.items()
    ]
    for groups, per_group in bench.scaled(((10, 10), (1_000, 10), (100_000, 10)), ((10, 10), (100, 10))):
        rows += await _flat(bench, groups, per_group)
    return rows


async def _cycle(bench: Bench, mode: str, items: int, samples: list[Sample]) -> None:
    queue = await bench.queue()
    if mode == "limited":
        await queue.limits.set(concurrency=1_000_000)
    elif mode == "rate":
        await queue.limits.set(rate="1000000/s", burst=1_000_000, group="*")
    elif mode == "concurrency":
        await queue.limits.set(concurrency=1_000_000, group="*")
    async with metered(bench.redis, items) as sample:
        for first in range(0, items, CHUNK):
            await _add(queue, mode, first)
        for _ in range(0, items, CHUNK):
            leases = await queue.lease_many(CHUNK, 60)
            await queue.complete_many(leases)
    samples.append(sample)


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
