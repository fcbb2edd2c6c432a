"""How soon an idle waiter gets the item of a worker that was killed, counted from the end of its lease.

Two cases: the waiter begins to wait after the worker took its item, or it waits all along. Workers are
real processes, ended by SIGKILL, several at a time; their leases end at different times. With a server
elsewhere, its clock and ours must agree.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from benchmarks.people import Person, victim
from benchmarks.rows import Row, time_row
from leasehold import Item

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from leasehold import AsyncWorkQueue

CASES = ("began to wait after the lease", "waited all along")
#: A lease lasts this long at least, which is enough to kill everybody and to be idle again (s).
LEASE_SECONDS = 1.2
#: And on a machine that does something else besides, where the figures say nothing.
QUICK_LEASE_SECONDS = 4.0
SPREAD_SECONDS = 0.8
#: When a waiter did not get the item by then, it never will (s).
GIVE_UP_SECONDS = 30.0


async def run(bench: Bench) -> list[Row]:
    """Kill in waves."""
    rows: list[Row] = []
    for case in CASES:
        late: list[float] = []
        for _ in range(bench.some(4, 1)):
            late += await wave(bench, bench.some(10, 3), early=case == CASES[1])
        rows.append(time_row("kill", "lease end to leased again", "leasehold", {"waiter": case}, late))
        await bench.clear()
    return rows


async def wave(bench: Bench, kills: int, *, early: bool) -> list[float]:
    """Kill so many workers at a time; return how many seconds after its lease each item was leased again."""
    name = bench.name("kill")
    least = bench.some(LEASE_SECONDS, QUICK_LEASE_SECONDS)
    victims = [victim(bench.url(), name, least + random.uniform(0, SPREAD_SECONDS)) for _ in range(kills)]
    try:
        async with bench.queue(name) as producer, bench.queue(name) as heir:
            await bench.blocked(kills)
            # The server serves those first who have waited longest: the victims.
            heirs = [asyncio.create_task(inherit(heir)) for _ in range(kills if early else 0)]
            await bench.blocked(kills + (1 if early else 0))
            ends = await hand_out(producer, victims)
            for person in victims:
                person.kill()
            heirs += [asyncio.create_task(inherit(heir)) for _ in range(0 if early else kills)]
            await bench.blocked(1)
            first = min(ends.values())
            assert time.time() < first, "this machine is too slow for leases so short"
            async with asyncio.timeout(GIVE_UP_SECONDS):
                inherited = dict(await asyncio.gather(*heirs))
            return [inherited[item_id] - end for item_id, end in ends.items()]
    finally:
        for person in victims:
            person.process.kill()


async def hand_out(producer: AsyncWorkQueue, victims: list[Person]) -> dict[str, float]:
    """Give each victim an item; return when its lease ends, by the server's clock."""
    await producer.add_items([Item(b"doomed") for _ in victims])
    return dict(await asyncio.gather(*(person.told() for person in victims)))


async def inherit(queue: AsyncWorkQueue) -> tuple[str, float]:
    """Wait for an item; return its id and when it came."""
    lease = await queue.lease(60)
    assert lease is not None
    at = time.time()
    assert await queue.complete(lease)
    return lease.id, at
