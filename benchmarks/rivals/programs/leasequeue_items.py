"""Leasequeue with its defaults and plain items, one handler for a queue: what is below its tasks.

The handler takes its payload as JSON. Leases are renewed, and an item is completed
after its run, so that a crash at any moment loses nothing.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.rivals.programs import protocol
from leasequeue import AsyncWorkQueue, Item, Worker

#: The default of `Worker`.
CONCURRENCY = 100
#: Items per call of `add_items`.
CHUNK = 1_000
#: How long results are kept, where the caller waits for them (s).
KEEP_SECONDS = 3600


async def produce(url: str, *, results: bool = False) -> None:
    """Add items with JSON data."""
    async with AsyncWorkQueue.from_url(url, "jobs") as queue:

        async def add(number: int, ms: int) -> None:
            await queue.add_item(Item.from_json_data([number, ms]))

        async def add_many(numbers: range, ms: int) -> None:
            for some in protocol.chunks(numbers, CHUNK):
                await queue.add_items([Item.from_json_data([number, ms]) for number in some])

        async def ask(number: int) -> Any:
            item = Item.from_json_data([number, 0])
            await queue.add_item(item)
            return json.loads(await queue.results.wait(item.id) or b"")

        await protocol.produce(add, add_many, ask if results else None)


async def work(task: protocol.Task) -> None:
    """Run a worker."""
    async with AsyncWorkQueue.from_url(task.url, "jobs") as queue:
        worker = Worker(concurrency=task.concurrency or CONCURRENCY)

        @worker.handler(queue, keep_result=KEEP_SECONDS if task.results else None)
        async def job(payload: Any) -> int:
            return await protocol.job(*payload)

        await worker.run()
