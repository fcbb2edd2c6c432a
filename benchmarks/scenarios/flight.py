"""Completing while 100 to 100,000 items are in flight: in order, in reverse, and at random.

The number in flight stays: what was completed is leased anew, which is not measured. Before the first
round, half of the items are completed in the order in question and leased anew, so that what an order
leaves behind, if it leaves anything, is there. Each number has a database of its own.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.contestants import CEILING_ITEMS, LEASE_SECONDS, Raw
from benchmarks.measure import Sample, interleaved, metered
from benchmarks.rows import Row, speed_row
from leasehold import Item

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from benchmarks.bench import Bench
    from benchmarks.rows import Who
    from leasehold import AsyncWorkQueue, Lease

FLIGHTS = (100, 1_000, 10_000, 100_000)
QUICK_FLIGHTS = (100, 5_000)
ORDERS = ("in order", "in reverse", "at random")
PAYLOAD = 100
#: What is completed in a round, and the most between two fillings, so that 100 in flight stay about 100.
ROUND_ITEMS = 160
PORTION = 20


class Flight:
    """A queue with so many items in flight, of which some are completed in one order."""

    def __init__(self, queue: AsyncWorkQueue, client: Redis, size: int, order: str) -> None:
        self.queue = queue
        self.size = size
        self.order = order
        self.leases: list[Lease] = []
        self._bare = Raw(client, queue.name, 1)
        self._ceiling = Raw(client, queue.name, CEILING_ITEMS)
        self._random = random.Random(size)
        self.samples: dict[tuple[str, Who], list[Sample]] = {
            ("complete", "leasehold"): [],
            ("complete_many", "leasehold"): [],
            ("complete", "bare"): [],
            ("complete", "ceiling"): [],
        }

    async def fill(self) -> None:
        """Lease until as many as wanted are in flight."""
        while (missing := self.size - len(self.leases)) > 0:
            count = min(missing, 500)
            await self.queue.add_items([Item(bytes(PAYLOAD)) for _ in range(count)])
            self.leases += await self.queue.lease_many(count, LEASE_SECONDS)

    def take(self, count: int) -> list[Lease]:
        """Choose the next to be completed."""
        if self.order == "in order":
            taken, self.leases = self.leases[:count], self.leases[count:]
        elif self.order == "in reverse":
            taken, self.leases = self.leases[: -count - 1 : -1], self.leases[:-count]
        else:
            chosen = set(self._random.sample(range(len(self.leases)), count))
            taken = [self.leases[at] for at in chosen]
            self._random.shuffle(taken)
            self.leases = [lease for at, lease in enumerate(self.leases) if at not in chosen]
        return taken

    async def warm_up(self) -> None:
        """Bring the queue into the state that it has after a while of work in this order."""
        await self._bare.load()
        await self.fill()
        for _ in range(0, self.size // 2, 500):
            await self.queue.complete_many(self.take(min(500, self.size // 2)))
        await self.fill()

    async def round(self, bench: Bench) -> None:
        """Complete some one by one and some together, by the queue and bare."""
        for kind, samples in self.samples.items():
            most = CEILING_ITEMS if kind == ("complete", "ceiling") else ROUND_ITEMS
            portion = min(most, max(PORTION, self.size // 10))
            total = Sample()
            while total.items < most // bench.some(1, 4):
                total += await self._portion(bench, kind, self.take(portion))
                await self.fill()
                if portion < most == CEILING_ITEMS:
                    break  # not so many in flight: one call with what there is
            samples.append(total)

    async def _portion(self, bench: Bench, kind: tuple[str, Who], leases: list[Lease]) -> Sample:
        raw = self._ceiling if kind[1] == "ceiling" else self._bare
        raw.ready(leases)
        async with metered(bench, len(leases)) as sample:
            if kind[1] != "leasehold":
                await raw.complete()
            elif kind[0] == "complete":
                for lease in leases:
                    assert await self.queue.complete(lease)
            else:
                for at in range(0, len(leases), PORTION):
                    assert all(await self.queue.complete_many(leases[at : at + PORTION]))
        return sample


async def run(bench: Bench) -> list[Row]:
    """Measure all numbers and orders in turns."""
    flights: list[Flight] = []
    async with AsyncExitStack() as stack:
        for database, size in enumerate(QUICK_FLIGHTS if bench.quick else FLIGHTS):
            client = await stack.enter_async_context(bench.client(database))
            for order in ORDERS:
                queue = await stack.enter_async_context(bench.queue(bench.name("flight"), database))
                flight = Flight(queue, client, size, order)
                await flight.warm_up()
                flights.append(flight)
        await interleaved(bench.some(5, 2), [partial(one.round, bench) for one in flights])
    await bench.clear()
    return [
        speed_row("flight", what, who, {"in_flight": flight.size, "order": flight.order}, samples)
        for flight in flights
        for (what, who), samples in flight.samples.items()
    ]
