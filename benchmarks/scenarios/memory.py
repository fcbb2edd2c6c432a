"""The server's memory per item: waiting, leased, and beside two plain commands for the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.rows import Row, Setting, number_row
from benchmarks.targets import CEILING_ITEMS, LEASE_SECONDS, Raw

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: Payload -> items.
ITEMS = {0: 100_000, 100: 100_000, 10_000: 5_000}


async def memory(bench: Bench) -> list[Row]:
    """Measure by the server's `used_memory`; ids have 32 characters."""
    rows: list[Row] = []
    for payload, full in ITEMS.items():
        items = bench.scaled(full, full // 10)
        name, bytes_used = bench.name(), {}
        await bench.reset()
        empty = await _used(bench)
        raw, queue = await Raw.open(bench, CEILING_ITEMS, name=name), await bench.queue(name)
        await raw.prepare(items, payload)
        await raw.add()
        bytes_used["waiting item", "leasehold"] = await _used(bench) - empty
        for _ in range(0, items, CEILING_ITEMS):
            await queue.lease_many(CEILING_ITEMS, LEASE_SECONDS)
        bytes_used["leased item", "leasehold"] = await _used(bench) - empty
        await bench.reset()
        bytes_used["SET and LPUSH", "bare"] = await _plain(bench, items, payload)
        await bench.reset()
        setting: Setting = {"payload": payload, "items": items}
        rows += [
            number_row(what, "bytes/item", [size / items], who=who, setting=setting)
            for (what, who), size in bytes_used.items()
        ]
    return rows


async def _plain(bench: Bench, items: int, payload: int) -> int:
    """Store the same ids and bytes in the least space that a queue of the family needs."""
    empty = await _used(bench)
    client = await bench.client()
    for start in range(0, items, 1_000):
        pipeline = client.pipeline(transaction=False)
        ids = [f"{number:032x}" for number in range(start, min(start + 1_000, items))]
        for item_id in ids:
            pipeline.set(f"bench-memory-0:item:{item_id}", bytes(payload))
        pipeline.lpush("bench-memory-0:queue", *ids)
        await pipeline.execute()
    await bench.stack.aclose()
    return await _used(bench) - empty


async def _used(bench: Bench) -> int:
    return int((await bench.info("memory"))["used_memory"])
