"""What it costs that payloads are compressed and encrypted: adding, leasing and completing 10 kB of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import random
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import Row, Sample, metered, speed_row, take_turns
from leasequeue import AsyncWorkQueue, Item
from leasequeue.codecs import AesGcm, Zstd

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from leasequeue.codecs import Codecs

PAYLOAD = 10_000


async def codecs(bench: Bench) -> list[Row]:
    """Measure items of 10 kB, plain, compressed, encrypted, and both, added, leased and completed alone."""
    encrypted = AesGcm({"bench": os.urandom(32)})
    kinds: dict[str, Codecs] = {
        "plain": None,
        "zstd": Zstd(),
        "AES-GCM": encrypted,
        "zstd + AES-GCM": [Zstd(), encrypted],
    }
    chosen = random.Random(7)
    orders = [{"id": chosen.getrandbits(48), "name": f"Ann {at}", "paid": at % 3 == 0} for at in range(200)]
    data = json.dumps(orders).encode()[:PAYLOAD]
    samples: dict[str, list[Sample]] = {kind: [] for kind in kinds}
    count = bench.scaled(2_000, 100)

    async def cycle(kind: str, queue: AsyncWorkQueue) -> None:
        async with metered(bench.redis, count) as sample:
            for _ in range(count):
                await queue.add_item(Item(data))
                lease = await queue.lease(60)
                assert len(lease.data) == PAYLOAD
                await queue.complete(lease)
        samples[kind].append(sample)

    queues = {
        kind: AsyncWorkQueue.from_url(bench.url(), bench.name(), codec=codec) for kind, codec in kinds.items()
    }
    await take_turns(bench.scaled(3, 1), [partial(cycle, *one) for one in queues.items()])
    await asyncio.gather(*(queue.close() for queue in queues.values()))
    return [
        speed_row("add, lease, complete", its, who=kind, setting={"bytes": PAYLOAD})
        for kind, its in samples.items()
    ]
