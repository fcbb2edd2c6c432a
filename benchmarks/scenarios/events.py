"""What events cost: off, kept and published, by the cycle and by the event, and how fast they are read."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.bench import STEP_TIMEOUT, Child
from benchmarks.measure import STEP_COSTS, Row, Sample, Setting, metered, number_row, speed_row, take_turns
from benchmarks.targets import Ours
from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench

PAYLOAD = 100
COROUTINES = 1_000
#: The events of an item that is added, leased and completed.
EVENTS = 3
MODES = ("off", "kept", "published", "published, 1 reader", "published, 10 readers", "kept and published")


async def events(bench: Bench) -> list[Row]:
    """Measure a cycle with events off, kept and published, without readers and with readers in a process.

    The last rows are the server's time for an event more than with events off, and what one reader takes.
    """
    items = bench.scaled(10_000, 500)
    samples: dict[str, list[Sample]] = {mode: [] for mode in MODES}
    await take_turns(
        bench.scaled(5, 2), [partial(_cycle, bench, mode, items, samples[mode]) for mode in MODES]
    )
    rows = [
        speed_row("whole cycle", its, costs=STEP_COSTS, setting={"events": mode})
        for mode, its in samples.items()
    ]
    off = median(sample.server_cpu / items for sample in samples["off"])
    for mode in MODES[1:]:
        setting: Setting = {"events": mode}
        more = [(sample.server_cpu / items - off) * 1e6 / EVENTS for sample in samples[mode]]
        rows.append(number_row("server for an event", "µs", more, setting=setting))
    return [*rows, await _read(bench, items)]


async def _cycle(bench: Bench, mode: str, items: int, samples: list[Sample]) -> None:
    queue = await bench.queue()
    if "kept" in mode:
        await queue.events.keep(count=1_000_000)
    if "published" in mode:
        await queue.events.publish()
    count = next((int(word) for word in mode.split() if word.isdigit()), 0)
    readers = [Child(_count, bench.url(), queue.name) for _ in range(count)]
    for reader in readers:
        await reader.receive()
    ours = Ours(queue, COROUTINES)
    await ours.prepare_cycle(items, PAYLOAD)
    async with metered(bench.redis, items) as sample:
        await ours.cycle()
    samples.append(sample)
    for reader in readers:
        reader.kill()
    await bench.reset()


async def _count(pipe: Connection, url: str, name: str) -> None:
    """Read published events, in its own process, until it is killed."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        pipe.send("reads")
        async for _ in queue.events(live=True):
            pass


async def _read(bench: Bench, items: int) -> Row:
    """Measure how many published events one reader reads a second, while another process adds items."""
    queue = await bench.queue()
    await queue.events.publish()
    first, got = asyncio.get_running_loop().create_future(), 0
    producer = Child(_add, bench.url(), queue.name, items)
    try:
        async with asyncio.timeout(STEP_TIMEOUT):
            async for _ in queue.events(live=True, kinds={"added"}):
                got += 1
                if got == 1:
                    first.set_result(time.perf_counter())
                if got == items:
                    break
    finally:
        producer.kill()
    rate = (got - 1) / (time.perf_counter() - await first)
    return number_row("one reader", "events/s", [rate], setting={"events": "published"})


async def _add(_pipe: Connection, url: str, name: str, items: int) -> None:
    """Add items, as soon as there is a reader."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        await asyncio.sleep(1)
        for _ in range(0, items, 500):
            await queue.add_items([Item(bytes(PAYLOAD)) for _ in range(500)])
