"""Add, lease and complete by themselves: by coroutines, and by payload."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from benchmarks.contestants import Ours
from benchmarks.phases import Trial, measured, references
from benchmarks.scenarios.cycle import PAYLOADS, PLAIN_PAYLOAD, scaled

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.rows import Row

#: Coroutines -> items in a round.
ITEMS = {1: 300, 10: 2_000, 100: 5_000, 1_000: 10_000}


async def run(bench: Bench) -> list[Row]:
    """Measure, with the references in every round."""
    rows: list[Row] = []
    for payload in PAYLOADS:
        plain = payload == PLAIN_PAYLOAD
        async with AsyncExitStack() as stack:
            sizes = (
                scaled(bench, ITEMS[1], payload, least=1),
                scaled(bench, ITEMS[1_000], payload, least=500),
            )
            trials = await references(bench, stack, {"payload": payload}, sizes, payload)
            for coroutines, items in ITEMS.items():
                if plain or coroutines in (1, 1_000):
                    queue = await stack.enter_async_context(bench.queue(bench.name("throughput")))
                    most = scaled(bench, items, payload, least=2 * coroutines)
                    setting = {"payload": payload, "coroutines": coroutines}
                    trials.append(Trial(Ours(queue, coroutines), dict(setting), most, payload))
            rows += await measured(bench, "throughput", trials, bench.some(5, 2))
        await bench.clear()
    return rows
