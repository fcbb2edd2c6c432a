"""Add, lease and complete while 1,000 to 1,000,000 other items wait, each backlog in its own database."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks.contestants import CEILING_ITEMS, Ours, Raw
from benchmarks.phases import Trial, measured

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.rows import Row

BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
QUICK_BACKLOGS = (1_000, 20_000)
PAYLOAD = 100
#: Items in a round: one at a time, and by as many coroutines.
LONE_ITEMS = 200
SHARED_ITEMS = CEILING_ITEMS


async def run(bench: Bench) -> list[Row]:
    """Measure on queues that are filled once, and left as they were by each round."""
    trials: list[Trial] = []
    async with AsyncExitStack() as stack:
        for database, backlog in enumerate(QUICK_BACKLOGS if bench.quick else BACKLOGS):
            name = bench.name("backlog")
            client = await stack.enter_async_context(bench.client(database))
            queue = await stack.enter_async_context(bench.queue(name, database))
            await fill(Raw(client, name, CEILING_ITEMS), backlog)
            for coroutines, items in ((1, LONE_ITEMS), (SHARED_ITEMS, SHARED_ITEMS)):
                ours = Ours(queue, coroutines)
                trials.append(Trial(ours, {"backlog": backlog, "coroutines": coroutines}, items, PAYLOAD))
            for per_call, items in ((1, LONE_ITEMS), (CEILING_ITEMS, CEILING_ITEMS)):
                trials.append(Trial(Raw(client, name, per_call), {"backlog": backlog}, items, PAYLOAD))
        rows = await measured(bench, "backlog", trials, bench.some(9, 2))
    await bench.clear()
    return rows


async def fill(raw: Raw, items: int) -> None:
    """Put so many items into the queue."""
    await raw.load()
    for _ in range(0, items, 10_000):
        raw.prepare(min(items, 10_000), PAYLOAD)
        await raw.add()
