"""Leasehold, as it comes.

The handler takes its payload as JSON, as those of the others do. A lease is renewed from a thread of its own
and an item is completed after its run, so that a crash at any moment loses nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.rivals.programs import protocol
from leasehold import AsyncWorkQueue, Item, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: 100 is what a worker does at once if nothing is said.
CONCURRENCY = 100
#: Items of one call of `add_items`.
CHUNK = 1_000


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[protocol.Producer]:
    """Items with JSON in them."""
    async with AsyncWorkQueue.from_url(url, "jobs") as queue:

        async def add(number: int, ms: int) -> None:
            await queue.add_item(Item.from_json_data([number, ms]))

        async def add_many(numbers: range, ms: int) -> None:
            for some in protocol.chunks(numbers, CHUNK):
                await queue.add_items([Item.from_json_data([number, ms]) for number in some])

        yield protocol.Producer(add, add_many)


def working(task: protocol.Task) -> None:
    """One worker."""
    protocol.run(_work(task))


async def _work(task: protocol.Task) -> None:
    async with AsyncWorkQueue.from_url(task.url, "jobs") as queue:
        worker = Worker(concurrency=task.concurrency or CONCURRENCY)

        @worker.handler(queue)
        async def job(payload: Any) -> None:
            began = protocol.now()
            number, ms = payload
            if ms:
                await asyncio.sleep(ms / 1000)
            protocol.ran(number, began)

        await worker.run()


if __name__ == "__main__":
    protocol.main(producing, working)
