"""10,000 add_item calls at once: how many trips they make."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.measure import Sample, metered
from benchmarks.rows import Row, number_row, speed_row
from leasehold import Item

if TYPE_CHECKING:
    from benchmarks.bench import Bench

CALLS = 10_000


async def run(bench: Bench) -> list[Row]:
    """Count the script calls on the server."""
    samples: list[Sample] = []
    for _ in range(bench.some(5, 2)):
        async with bench.queue(bench.name("gather")) as queue:
            await queue.add_item(Item(b"first"))  # the connection is open and the script is loaded
            items = [Item(bytes(100)) for _ in range(CALLS)]
            async with metered(bench, CALLS) as sample:
                assert all(await asyncio.gather(*(queue.add_item(item) for item in items)))
            samples.append(sample)
        await bench.clear()
    setting: dict[str, int | str] = {"calls": CALLS}
    return [
        number_row("gather", "trips", "leasehold", setting, "EVALSHA", [sample.calls for sample in samples]),
        speed_row("gather", "add", "leasehold", setting, samples),
    ]
