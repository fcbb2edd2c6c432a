"""Leasehold with its defaults.

The handler takes its payload as JSON, as those of the others do. Leases are renewed, and an item is completed
after its run, so that a crash at any moment loses nothing.
"""

from __future__ import annotations

from typing import Any

from benchmarks.rivals.programs import protocol
from leasehold import AsyncWorkQueue, Item, Worker

#: The default of `Worker`.
CONCURRENCY = 100
#: Items per call of `add_items`.
CHUNK = 1_000


async def produce(url: str) -> None:
    """Add items with JSON data."""
    async with AsyncWorkQueue.from_url(url, "jobs") as queue:

        async def add(number: int, ms: int) -> None:
            await queue.add_item(Item.from_json_data([number, ms]))

        async def add_many(numbers: range, ms: int) -> None:
            for some in protocol.chunks(numbers, CHUNK):
                await queue.add_items([Item.from_json_data([number, ms]) for number in some])

        await protocol.produce(add, add_many)


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    async with AsyncWorkQueue.from_url(task.url, "jobs") as queue:
        worker = Worker(concurrency=task.concurrency or CONCURRENCY)

        @worker.handler(queue)
        async def job(payload: Any) -> None:
            await protocol.job(*payload)

        await worker.run()
