"""From add_item to the lease in somebody else's hands, on an idle queue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks.contestants import LEASE_SECONDS, Raw
from benchmarks.rows import Row, time_row
from leasehold import Item

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from leasehold import AsyncWorkQueue, Lease


async def run(bench: Bench) -> list[Row]:
    """Measure with a waiter and a producer on connections of their own, in one process."""
    count = bench.some(400, 30)
    waking: list[float] = []
    calling: list[float] = []
    name = bench.name("latency")
    async with bench.queue(name) as producer, bench.queue(name) as worker, bench.client() as client:
        raw = Raw(client, bench.name("latency"), 1)
        await raw.load()
        await producer.counts()
        for _ in range(count):
            waking.append(await woken(bench, producer, worker))
            raw.prepare(1, 100)
            started = time.perf_counter()
            await raw.add()
            await raw.lease()
            calling.append(time.perf_counter() - started)
            raw.between()
            await raw.complete()
    await bench.clear()
    return [
        time_row("latency", "add to leased", "leasehold", {}, waking),
        time_row("latency", "add, then lease", "bare", {}, calling),
    ]


async def woken(bench: Bench, producer: AsyncWorkQueue, worker: AsyncWorkQueue) -> float:
    """Seconds from the call of add_item until the waiting worker has its lease."""

    async def work() -> tuple[Lease, float]:
        lease = await worker.lease(LEASE_SECONDS)
        assert lease is not None
        return lease, time.perf_counter()

    waiting = asyncio.create_task(work())
    await bench.blocked(1)
    item = Item(bytes(100))
    started = time.perf_counter()
    await producer.add_item(item)
    lease, at = await waiting
    assert lease.id == item.id
    assert await worker.complete(lease)
    return at - started
