"""What waiting costs, and how soon a waiter gets an item: added, or held by a worker that was killed."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.bench import STEP_TIMEOUT, Child
from benchmarks.measure import Row, Sample, Setting, metered, number_row, time_row
from benchmarks.targets import Raw
from leasequeue import AsyncWorkQueue, Item
from leasequeue.wire.scripts import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench


async def latency(bench: Bench) -> list[Row]:
    """Measure from add_item to the lease of a waiter on another connection, on an idle queue."""
    name = bench.name()
    producer, worker = await bench.queue(name), await bench.queue(name)
    raw = await Raw.open(bench, 1)
    waking: list[float] = []
    calling: list[float] = []
    await producer.counts()
    for _ in range(bench.scaled(400, 30)):
        waking.append(await _wake(bench, producer, worker))
        await raw.prepare(1, 100)
        started = time.perf_counter()
        await raw.add()
        await raw.lease()
        calling.append(time.perf_counter() - started)
        await raw.prepare_complete()
        await raw.complete()
    return [time_row("add to leased", waking), time_row("add, then lease", calling, who="bare")]


async def _wake(bench: Bench, producer: AsyncWorkQueue, worker: AsyncWorkQueue) -> float:
    """Return the seconds from the call of add_item until the waiting worker has its lease."""
    waiting = asyncio.create_task(_work_once(worker, time.perf_counter))
    await bench.blocked(1)
    item = Item(bytes(100))
    started = time.perf_counter()
    await producer.add_item(item)
    item_id, leased = await waiting
    assert item_id == item.id
    return leased - started


async def _work_once(queue: AsyncWorkQueue, clock: Callable[[], float]) -> tuple[str, float]:
    """Wait for an item, and complete it; return its id and when it was leased."""
    lease = await queue.lease(60)
    assert lease is not None
    leased = clock()
    assert await queue.complete(lease)
    return lease.id, leased


#: Marks the end of the commands that MONITOR reports.
END = "leasequeue benchmark end"


async def idle(bench: Bench) -> list[Row]:
    """Measure the commands of idle waiters, and how many waiters one added item wakes.

    A waiter is woken when its connection asks for a lease after an item was added, according to MONITOR.
    """
    rows: list[Row] = []
    # Waiters in this process, further processes, waiters in each of those.
    crowds = bench.scaled(((1, 0, 0), (200, 0, 0), (0, 4, 50)), ((1, 0, 0), (20, 0, 0), (0, 2, 10)))
    for here, processes, each in crowds:
        waiters = here + processes * each
        setting: Setting = {"waiters": waiters, "processes": processes or 1}
        name = bench.name()
        async with _waiting(bench, name, here, processes, each):
            await bench.registered(name, waiters)
            sample = await idle_sample(bench, bench.scaled(12, 2))
            woken = await _wakes(bench, name, waiters)
        rate = commands_per_second(sample) / waiters
        rows += [
            number_row("commands per idle waiter", "1/s", [rate], setting=setting),
            number_row("wakes per item", "wakes", woken, setting=setting),
        ]
        await bench.blocked(0)
        await bench.reset()
    return rows


@asynccontextmanager
async def _waiting(bench: Bench, name: str, here: int, processes: int, each: int) -> AsyncIterator[None]:
    """Keep so many waiters while the block runs."""
    async with AsyncExitStack() as stack:
        for _ in range(processes):
            stack.callback(Child(_crowd, bench.url(), name, each).kill)
        tasks = [asyncio.create_task(_serve(bench.url(), name)) for _ in range(here)]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _crowd(_: Connection, url: str, name: str, waiters: int) -> None:
    await asyncio.gather(*(_serve(url, name) for _ in range(waiters)))


async def _serve(url: str, name: str) -> None:
    """Lease and complete items on a separate connection until cancelled."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        while True:
            lease = await queue.lease(30)
            assert lease is not None
            assert await queue.complete(lease)


async def idle_sample(bench: Bench, seconds: float) -> Sample:
    """Measure while nothing happens."""
    async with metered(bench.redis, 1) as sample:
        await asyncio.sleep(seconds)
    return sample


def commands_per_second(sample: Sample) -> float:
    """Return how many commands per second all waiters sent."""
    return sample.trips / sample.seconds


async def _wakes(bench: Bench, name: str, waiters: int) -> list[int]:
    """Return how many waiters each of some items wakes; each is added when all waiters wait again.

    An idle waiter may happen to ask for a lease at that moment, so use the median.
    """
    queue, client = await bench.queue(name), await bench.client()
    async with client.monitor() as monitor:
        await queue.counts()
        for _ in range(bench.scaled(100, 20)):
            item = Item(b"wake")
            await queue.add_item(item)
            async with asyncio.timeout(STEP_TIMEOUT):
                while await bench.redis.exists(f"{name}:item:{item.id}"):  # noqa: ASYNC110 - no event exists
                    await asyncio.sleep(0.001)
            await bench.registered(name, waiters)
        await bench.redis.echo(END)
        add, lease = (load()[name].sha.decode() for name in ("add_items", "lease_many"))
        woken: list[set[tuple[str, str]]] = []  # per item, the connections that asked for a lease
        async for command in monitor.listen():
            if END in command["command"]:
                break
            if add in command["command"]:
                woken.append(set())
            elif lease in command["command"] and woken:
                woken[-1].add((command["client_address"], command["client_port"]))
    return [len(connections) for connections in woken]


CASES = ("began to wait after the lease", "waited all along")


async def kill(bench: Bench) -> list[Row]:
    """Measure from the expiry of a killed worker's lease to the next lease of its item.

    The waiter either begins to wait after the worker leased its item, or waits all along. The workers are
    processes, several at a time, ended by SIGKILL; their leases expire at different times. With a server on
    another machine, both clocks must agree.
    """
    rows: list[Row] = []
    for case in CASES:
        late: list[float] = []
        for _ in range(bench.scaled(6, 1)):
            late += await _wave(bench, bench.scaled(7, 3), early=case == CASES[1])  # of eight, all block
        rows.append(time_row("lease end to leased again", late, setting={"waiter": case}))
        await bench.reset()
    return rows


async def _wave(bench: Bench, kills: int, *, early: bool) -> list[float]:
    """Kill so many workers; return the seconds from each lease's expiry to the item's next lease."""
    name = bench.name()
    # Leases are long enough to kill all workers and to be idle again, also on a busy machine.
    minimum = bench.scaled(1.2, 4.0)
    producer, waiter = await bench.queue(name), await bench.queue(name)
    seconds = [minimum + random.uniform(0, 0.8) for _ in range(kills)]
    victims = [Child(_victim, bench.url(), name, one) for one in seconds]
    try:
        await bench.blocked(kills)
        # The server serves the longest waiters first: the victims.
        waits = [asyncio.create_task(_work_once(waiter, time.time)) for _ in range(kills if early else 0)]
        await bench.blocked(kills + (1 if early else 0))
        await producer.add_items([Item(b"of a victim") for _ in victims])
        ends: dict[str, float] = dict(await asyncio.gather(*(victim.receive() for victim in victims)))
    finally:
        for victim in victims:
            victim.kill()
    waits += [asyncio.create_task(_work_once(waiter, time.time)) for _ in range(0 if early else kills)]
    await bench.blocked(1)
    assert time.time() < min(ends.values()), "this machine is too slow for leases this short"
    async with asyncio.timeout(STEP_TIMEOUT):
        leased = dict(await asyncio.gather(*waits))
    await bench.stack.aclose()
    return [leased[item_id] - end for item_id, end in ends.items()]


async def _victim(pipe: Connection, url: str, name: str, lease_seconds: float) -> None:
    """Lease an item, send its id and the end of its lease, and hold it until killed."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        lease = await queue.lease(lease_seconds)
        assert lease is not None
        pipe.send((lease.id, lease.deadline))
        await asyncio.Event().wait()
