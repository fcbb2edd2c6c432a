"""One lone call beside one bare EVALSHA: small blocks of either take turns."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks.contestants import Ours, Raw
from benchmarks.phases import Trial, measured

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.rows import Row

PAYLOAD = 100
BLOCK = 100


async def run(bench: Bench) -> list[Row]:
    """Measure add_item, lease and complete, awaited one at a time on an otherwise empty queue."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(bench.client())
        raw = Raw(client, bench.name("lone"), 1)
        await raw.load()
        queue = await stack.enter_async_context(bench.queue(bench.name("lone")))
        trials = [Trial(raw, {}, BLOCK, PAYLOAD), Trial(Ours(queue, 1), {"coroutines": 1}, BLOCK, PAYLOAD)]
        rows = await measured(bench, "lone", trials, bench.some(41, 5))
    await bench.clear()
    return rows
