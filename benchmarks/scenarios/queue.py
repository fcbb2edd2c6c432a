"""What add, lease and complete cost: by coroutines, payload, backlog and items in flight; and memory."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import Row, Sample, Setting, metered, number_row, speed_row, take_turns
from benchmarks.targets import CEILING_ITEMS, LEASE_SECONDS, Ours, Raw, Trial, measured
from leasequeue import Item

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.bench import Bench
    from leasequeue import AsyncWorkQueue, Lease

PAYLOADS = (0, 100, 10_000)
PAYLOAD = 100
#: Coroutines -> items per round.
ITEMS = {1: 300, 10: 2_000, 100: 5_000, 1_000: 10_000}
#: How many coroutines lease from a backlog at once.
AT_ONCE = 500


async def cycle(bench: Bench) -> list[Row]:
    """Measure the whole cycle of one item, add, lease and complete, by 1 to 1,000 coroutines."""
    return await _by_payload(bench, Trial.cycle, rounds=7)


async def throughput(bench: Bench) -> list[Row]:
    """Measure add, lease and complete separately, by 1 to 1,000 coroutines."""
    return await _by_payload(bench, Trial.phases, rounds=5)


async def _by_payload(
    bench: Bench, trial: Callable[[Ours | Raw, Setting, int, int], Trial], *, rounds: int
) -> list[Row]:
    rows: list[Row] = []
    for payload in PAYLOADS:
        # Fewer items where they are large, or where time is short.
        divisor = (4 if payload > 1_000 else 1) * bench.scaled(1, 10)
        trials: list[Trial] = []
        for per_call, items in ((1, ITEMS[1]), (CEILING_ITEMS, ITEMS[1_000])):
            raw = await Raw.open(bench, per_call)
            trials.append(trial(raw, {"payload": payload}, max(per_call, items // divisor), payload))
        for coroutines, items in ITEMS.items():
            if payload == PAYLOAD or coroutines in (1, 1_000):
                setting: Setting = {"payload": payload, "coroutines": coroutines}
                ours = Ours(await bench.queue(), coroutines)
                trials.append(trial(ours, setting, max(2 * coroutines, items // divisor), payload))
        rows += await measured(bench, trials, bench.scaled(rounds if payload == PAYLOAD else 5, 2))
        await bench.reset()
    return rows


async def lone(bench: Bench) -> list[Row]:
    """Measure add_item, lease and complete awaited one at a time, in turns with one bare EVALSHA each."""
    trials = [
        Trial.phases(await Raw.open(bench, 1), {}, 100, PAYLOAD),
        Trial.phases(Ours(await bench.queue(), 1), {"coroutines": 1}, 100, PAYLOAD),
    ]
    return await measured(bench, trials, bench.scaled(41, 5))


async def gather(bench: Bench) -> list[Row]:
    """Count the script calls of 10,000 concurrent calls of add_item."""
    samples: list[Sample] = []
    for _ in range(bench.scaled(5, 2)):
        queue = await bench.queue()
        await queue.add_item(Item(b"first"))  # opens the connection and loads the script
        items = [Item(bytes(PAYLOAD)) for _ in range(10_000)]
        async with metered(bench.redis, len(items)) as sample:
            assert all(await asyncio.gather(*(queue.add_item(item) for item in items)))
        samples.append(sample)
        await bench.reset()
    setting: Setting = {"calls": 10_000}
    return [
        number_row("trips", "EVALSHA", [sample.script_calls for sample in samples], setting=setting),
        speed_row("add", samples, setting=setting),
    ]


async def backlog(bench: Bench) -> list[Row]:
    """Measure add, lease and complete while other items wait, each backlog in a separate database.

    Each round completes as many items as it adds, so the backlog keeps its size.
    """
    trials: list[Trial] = []
    sizes = bench.scaled((1_000, 10_000, 100_000, 1_000_000), (1_000, 20_000))
    for database, size in enumerate(sizes):
        queue = await bench.queue(database=database)
        bare, ceiling = [
            await Raw.open(bench, per_call, database, queue.name) for per_call in (1, CEILING_ITEMS)
        ]
        for _ in range(0, size, 10_000):
            await ceiling.prepare(min(size, 10_000), PAYLOAD)
            await ceiling.add()
        for coroutines, items in ((1, 200), (AT_ONCE, AT_ONCE)):
            setting: Setting = {"backlog": size, "coroutines": coroutines}
            trials.append(Trial.phases(Ours(queue, coroutines), setting, items, PAYLOAD))
        trials.append(Trial.phases(bare, {"backlog": size}, 200, PAYLOAD))
        trials.append(Trial.phases(ceiling, {"backlog": size}, AT_ONCE, PAYLOAD))
    return await measured(bench, trials, bench.scaled(9, 2))


#: Items completed per round, and at most between two refills, so that 100 in flight stay about 100.
ROUND_ITEMS = 160
PORTION = 20


async def flight(bench: Bench) -> list[Row]:
    """Measure complete with 100 to 100,000 items in flight, each number in a separate database.

    New leases replace the completed ones, which is not measured. Before the first round, half of the items
    are completed in the order in question and replaced, so that the traces of this order are part of the
    measurement.
    """
    flights: list[Flight] = []
    for database, size in enumerate(bench.scaled((100, 1_000, 10_000, 100_000), (100, 5_000))):
        for order in ("in order", "in reverse", "at random"):
            queue = await bench.queue(database=database)
            bare, ceiling = [
                await Raw.open(bench, per_call, database, queue.name) for per_call in (1, CEILING_ITEMS)
            ]
            flights.append(Flight(queue, bare, ceiling, size, order))
            await flights[-1].warm_up()
    await take_turns(bench.scaled(5, 2), [partial(one.round, bench) for one in flights])
    return [
        speed_row(what, samples, who=who, setting={"in_flight": one.size, "order": one.order})
        for one in flights
        for (what, who), samples in one.samples.items()
    ]


class Flight:
    """A queue with so many items in flight, which are completed in one order."""

    def __init__(self, queue: AsyncWorkQueue, bare: Raw, ceiling: Raw, size: int, order: str) -> None:
        self.size = size
        self.order = order
        self._queue = queue
        self._raw = {"bare": bare, "ceiling": ceiling}
        self._leases: list[Lease] = []
        self._random = random.Random(size)
        self.samples: dict[tuple[str, str], list[Sample]] = {
            ("complete", "leasequeue"): [],
            ("complete_many", "leasequeue"): [],
            ("complete", "bare"): [],
            ("complete", "ceiling"): [],
        }

    async def warm_up(self) -> None:
        """Bring the queue into the state that it has after some work in this order."""
        await self._fill()
        for _ in range(0, self.size // 2, 500):
            await self._queue.complete_many(self._take(min(500, self.size // 2)))
        await self._fill()

    async def round(self, bench: Bench) -> None:
        """Complete some items by each of the four kinds of call."""
        for (what, who), samples in self.samples.items():
            maximum = CEILING_ITEMS if who == "ceiling" else ROUND_ITEMS
            portion = min(maximum, max(PORTION, self.size // 10))
            total = Sample()
            while total.items < maximum // bench.scaled(1, 4):
                total += await self._complete(bench, what, who, self._take(portion))
                await self._fill()
                if portion < maximum == CEILING_ITEMS:
                    break  # fewer items are in flight than fit into one call
            samples.append(total)

    async def _fill(self) -> None:
        while (missing := self.size - len(self._leases)) > 0:
            count = min(missing, 500)
            await self._queue.add_items([Item(bytes(PAYLOAD)) for _ in range(count)])
            self._leases += await self._queue.lease_many(count, LEASE_SECONDS)

    def _take(self, count: int) -> list[Lease]:
        """Remove the next leases to complete."""
        leases = self._leases
        if self.order == "in order":
            taken, self._leases = leases[:count], leases[count:]
        elif self.order == "in reverse":
            taken, self._leases = leases[: -count - 1 : -1], leases[:-count]
        else:
            chosen = set(self._random.sample(range(len(leases)), count))
            taken = [leases[at] for at in chosen]
            self._random.shuffle(taken)
            self._leases = [lease for at, lease in enumerate(leases) if at not in chosen]
        return taken

    async def _complete(self, bench: Bench, what: str, who: str, leases: list[Lease]) -> Sample:
        if who != "leasequeue":
            self._raw[who].prepare_leases(leases)
        async with metered(bench.redis, len(leases)) as sample:
            if who != "leasequeue":
                await self._raw[who].complete()
            elif what == "complete":
                for lease in leases:
                    assert await self._queue.complete(lease)
            else:
                for at in range(0, len(leases), PORTION):
                    assert all(await self._queue.complete_many(leases[at : at + PORTION]))
        return sample


#: Payload -> items.
MEMORY_ITEMS = {0: 100_000, 100: 100_000, 10_000: 5_000}


async def memory(bench: Bench) -> list[Row]:
    """Measure by the server's `used_memory`; ids have 32 characters."""
    rows: list[Row] = []
    for payload, full in MEMORY_ITEMS.items():
        items = bench.scaled(full, full // 10)
        name, bytes_used = bench.name(), {}
        await bench.reset()
        empty = await _used(bench)
        raw, queue = await Raw.open(bench, CEILING_ITEMS, name=name), await bench.queue(name)
        await raw.prepare(items, payload)
        await raw.add()
        bytes_used["waiting item", "leasequeue"] = await _used(bench) - empty
        for _ in range(0, items, CEILING_ITEMS):
            await queue.lease_many(CEILING_ITEMS, LEASE_SECONDS)
        bytes_used["leased item", "leasequeue"] = await _used(bench) - empty
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
    return int((await bench.redis.info("memory"))["used_memory"])
