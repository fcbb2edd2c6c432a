"""What a waiting and a leased item take on the server, beside two bare commands for the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contestants import CEILING_ITEMS, LEASE_SECONDS, Raw
from benchmarks.rows import Row, Setting, number_row

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: Payload -> items.
ITEMS = {0: 100_000, 100: 100_000, 10_000: 5_000}


async def run(bench: Bench) -> list[Row]:
    """Measure by the server's `used_memory`; ids have 32 characters."""
    rows: list[Row] = []
    for payload, full in ITEMS.items():
        items = bench.some(full, full // 10)
        setting: Setting = {"payload": payload, "items": items}
        await bench.clear()
        empty = await used(bench)
        async with bench.client() as client, bench.queue(name := bench.name("memory")) as queue:
            raw = Raw(client, name, CEILING_ITEMS)
            await raw.load()
            raw.prepare(items, payload)
            await raw.add()
            waiting = await used(bench) - empty
            for _ in range(0, items, CEILING_ITEMS):
                await queue.lease_many(CEILING_ITEMS, LEASE_SECONDS)
            leased = await used(bench) - empty
        rows += [
            number_row("memory", what, "leasehold", setting, "bytes/item", [size / items])
            for what, size in (("waiting item", waiting), ("leased item", leased))
        ]
        await bench.clear()
        rows.append(
            number_row(
                "memory", "SET and LPUSH", "bare", setting, "bytes/item", [await plain(bench, items, payload)]
            )
        )
    await bench.clear()
    return rows


async def plain(bench: Bench, items: int, payload: int) -> float:
    """The same ids and bytes, by the least that any queue of the family stores."""
    empty = await used(bench)
    async with bench.client() as client:
        for start in range(0, items, 1_000):
            pipeline = client.pipeline(transaction=False)
            ids = [f"{number:032x}" for number in range(start, min(start + 1_000, items))]
            for item_id in ids:
                pipeline.set(f"bench-memory-0:item:{item_id}", bytes(payload))
            pipeline.lpush("bench-memory-0:queue", *ids)
            await pipeline.execute()
    return (await used(bench) - empty) / items


async def used(bench: Bench) -> int:
    """Bytes that the server holds."""
    return int((await bench.info("memory"))["used_memory"])
