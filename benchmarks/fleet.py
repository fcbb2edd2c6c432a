"""Measure large fleets: `python -m benchmarks.fleet`, for 10 minutes; `--shards 16`: with shards.

What workers that wait, and jobs, cost the server, with 1 to 1,000 workers: those of `tests.alive.crowd`,
which are the library's, many in a process; `--real 30` has so many worker processes beside as many of these.
Then one half of 1,000 workers is killed, and the server is restarted under them. CPU is that of the server,
of one core. What workers that wait cost is measured before and after the jobs, without what the server does
alone, and taken off the cost of jobs. The processes of the workers need more than the server, so they may be
late: `calls/s` says how often a worker calls the server, which is 18 if it is on time. Compare within a run.

`make bench-fleet` (`--saturated`) measures only, and in two minutes, what a job of a backlog costs the server
with 1, 10 and 100 workers: they begin at once, and all lease until it is done. What workers take that wait,
as measured just before, is taken off here, too.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from redis.asyncio import Redis

from benchmarks.goals import SATURATED
from leasequeue import AsyncWorkQueue, Item
from leasequeue.embedded import EmbeddedServer
from tests import servers
from tests.alive.crowd import MOST, crowd, go, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

WORKERS = (1, 10, 100, 1000)
#: For how long the server is watched while nothing is to do, and how long it has to settle before (s).
IDLE, SETTLE = 12.0, 5.0
#: How many jobs are added at once, one by one over so many connections, and one by one with a delay (s).
BACKLOG, SINGLE, SENDERS, DELAYED, DELAY = 20_000, 2_000, 4, 200, 0.5
#: How often it is seen how many connections are opened (s).
TICK = 0.1


class Used(NamedTuple):
    """What the server has used since it has started."""

    at: float
    cpu: float
    calls: int
    connections: int
    memory: int
    accepted: int


async def used(redis: Redis) -> Used:
    """Ask the server."""
    info = await redis.info()
    return Used(
        time.perf_counter(),
        info["used_cpu_user"] + info["used_cpu_sys"],
        info["total_commands_processed"],
        info["connected_clients"] - 1,
        info["used_memory"],
        info["total_connections_received"],
    )


async def empty(queue: AsyncWorkQueue) -> None:
    """Wait until no job is left; the workers are other processes."""
    while (await queue.counts()).total:  # noqa: ASYNC110 - as said
        await asyncio.sleep(0.05)


async def add_many(queues: list[AsyncWorkQueue]) -> int:
    """Add a backlog."""
    for _ in range(BACKLOG // 1000):
        await queues[0].add_items([Item(b"x" * 100) for _ in range(1000)])
    return BACKLOG


async def add_single(queues: list[AsyncWorkQueue]) -> int:
    """Add one job after the other, of each sender."""

    async def send(queue: AsyncWorkQueue) -> None:
        for _ in range(SINGLE // SENDERS):
            await queue.add_item(Item(b"x" * 100))

    await asyncio.gather(*map(send, queues))
    return SINGLE


async def add_delayed(queues: list[AsyncWorkQueue]) -> int:
    """Add jobs that fall due one after the other."""
    for _ in range(DELAYED):
        await queues[0].add_item(Item(b"x" * 100), delay=DELAY)
    return DELAYED


class Measured:
    """The fleets of one server, each beside what the server does alone."""

    def __init__(self, redis: Redis, url: str, shards: int) -> None:
        self._redis, self._url, self._shards = redis, url, shards

    async def begin(self) -> None:
        """See what the server does without workers."""
        self._alone = await self._idle()
        self._empty = await used(self._redis)

    async def _idle(self) -> tuple[float, float]:
        """Return the CPU and the calls of each second."""
        before = await used(self._redis)
        await asyncio.sleep(IDLE)
        after = await used(self._redis)
        took = after.at - before.at
        return (after.cpu - before.cpu) / took, (after.calls - before.calls) / took

    async def row(self, count: int, each: int, kind: str) -> None:
        """Print what so many workers cost."""
        fleet = crowd(self._url, "q", count, shards=self._shards, concurrency=10, each=each)
        async with fleet, senders(self._url, self._shards) as queues:
            await add_single(queues)  # so that all scripts are loaded
            await empty(queues[0])
            await asyncio.sleep(SETTLE)
            idle = [await self._idle()]
            now = await used(self._redis)
            spent = [await self._jobs(queues, add) for add in (add_single, add_delayed, add_many)]
            await asyncio.sleep(SETTLE)
            idle.append(await self._idle())
        cpu = statistics.mean(one[0] for one in idle)
        calls = statistics.mean(one[1] for one in idle)
        jobs = " | ".join(f"{(each_cpu - cpu * took) / n * 1e6:.0f}" for each_cpu, took, n in spent)
        load = os.getloadavg()[0]
        print(
            f"| {count:,} {kind} | {now.connections - SENDERS:,} | "
            f"{(now.memory - self._empty.memory) / 1e6:.1f} | {cpu:.1%} | "
            f"{(cpu - self._alone[0]) / count * 1e6:.0f} | {(calls - self._alone[1]) / count:.1f} | {jobs} | "
            f"{load:.0f} |",
            flush=True,
        )
        await self._redis.flushall()

    async def _jobs(
        self, queues: list[AsyncWorkQueue], add: Callable[[list[AsyncWorkQueue]], Awaitable[int]]
    ) -> tuple[float, float, int]:
        """Return the CPU and the time of jobs, and how many they were."""
        before = await used(self._redis)
        count = await add(queues)
        await empty(queues[0])
        after = await used(self._redis)
        await asyncio.sleep(SETTLE)
        return after.cpu - before.cpu, after.at - before.at, count


@asynccontextmanager
async def senders(url: str, shards: int) -> AsyncIterator[list[AsyncWorkQueue]]:
    """Open queue objects, each with its session."""
    queues = [opened(url, "q", shards) for _ in range(SENDERS)]
    try:
        for one in queues:
            await one.counts()
        yield queues
    finally:
        for one in queues:
            await one.close()


async def held(queue: AsyncWorkQueue, count: int) -> None:
    """Wait until so many jobs run at once."""
    while True:
        counts = await queue.counts()
        if counts.leased == counts.total == count:
            return
        await asyncio.sleep(0.05)


async def kill_half(server: EmbeddedServer, count: int, shards: int) -> None:
    """Kill one half, which holds jobs, and print how soon the other one runs them."""
    fleet = crowd(server.url, "q", count, shards=shards, concurrency=2, each=min(MOST, (count + 3) // 4))
    async with (
        Redis.from_url(server.url) as redis,
        opened(server.url, "q", shards) as queue,
        fleet as processes,
    ):
        await queue.add_items([Item(b"hold") for _ in range(count)])
        await held(queue, count)
        await asyncio.sleep(2 * SETTLE)
        name, before = queue.shards[0].name, await used(redis)
        for one in processes[: len(processes) // 2]:
            one.kill()
        while await redis.hlen(f"{name}:workers") > count // 2:  # noqa: ASYNC110 - they are other processes
            await asyncio.sleep(0.05)
        noticed = await used(redis)
        await held(queue, count)
        after = await used(redis)
        await go(processes[len(processes) // 2 :])
        await empty(queue)
        took, share = after.at - before.at, (after.cpu - before.cpu) / (after.at - before.at)
        print(
            f"{count // 2} of {count:,} workers killed: the last is failed after "
            f"{noticed.at - before.at:.1f} s, and all {count:,} jobs run again after {took:.1f} s, with "
            f"{share:.0%} of a core (load {os.getloadavg()[0]:.0f})",
            flush=True,
        )


async def restart(server: EmbeddedServer, folder: Path, count: int, shards: int) -> None:
    """Restart the server, and print how soon each worker runs a job, and how connections come back."""
    async with (
        opened(server.url, "q", shards) as queue,
        crowd(server.url, "q", count, shards=shards) as processes,
    ):
        await asyncio.sleep(2 * SETTLE)
        await server.stop()
        await asyncio.sleep(1)
        again = await EmbeddedServer.start(port=server.port, password="", dir=folder)
        async with again, Redis.from_url(again.url) as redis:
            opened_at: list[tuple[float, int]] = []

            async def count_connections() -> None:
                while True:
                    now = await used(redis)
                    opened_at.append((now.at, now.accepted))
                    await asyncio.sleep(TICK)

            counting = asyncio.create_task(count_connections())
            before = await used(redis)
            await queue.add_items([Item(b"hold") for _ in range(count)])
            await held(queue, count)
            after = await used(redis)
            counting.cancel()
            most = max((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(opened_at))
            await go(processes)
            await empty(queue)
            took, share = after.at - before.at, (after.cpu - before.cpu) / (after.at - before.at)
            print(
                f"a restart under {count:,} workers: the last one runs a job after {took:.1f} s, with "
                f"{share:.0%} of a core; {after.accepted:,} connections, at most {most:,.0f}/s (load "
                f"{os.getloadavg()[0]:.0f})",
                flush=True,
            )


async def measure(sizes: list[int], shards: int, real: int) -> None:
    """Measure on new servers."""
    servers.program("embedded")  # so that the tests' rules hold for it
    async with await EmbeddedServer.start(port=0, password="") as server, Redis.from_url(server.url) as redis:
        measured = Measured(redis, server.url, shards)
        await measured.begin()
        print(f"{shards or 'no'} shards, {server.program.version}, {os.cpu_count()} cores")
        print(
            "| workers | connections | MB | CPU idle | µs for each worker and second | calls/s of each | "
            "µs for each job: one by one | delayed | of a backlog | load |"
        )
        print("|---|---|---|---|---|---|---|---|---|---|")
        for count in sizes:
            await measured.row(count, MOST, "")
        if real:
            await measured.row(real, MOST, "of these")
            await measured.row(real, 1, "processes")
    for scenario in (kill_half, restart) if max(sizes) > 1 else ():
        with tempfile.TemporaryDirectory() as folder:
            async with await EmbeddedServer.start(port=0, password="", dir=folder) as server:
                if scenario is kill_half:
                    await kill_half(server, max(sizes), shards)
                else:
                    await restart(server, Path(folder), max(sizes), shards)


async def saturated(count: int, each: int) -> tuple[float, float]:
    """Return what a job of a backlog costs the server (µs of CPU), and how many scripts."""
    async with (
        await EmbeddedServer.start(port=0, password="") as server,
        Redis.from_url(server.url) as redis,
        opened(server.url, "q", 0) as queue,
        crowd(server.url, "q", count, concurrency=10, each=each),
    ):
        await add_many([queue])
        await empty(queue)  # so that all scripts are loaded
        await queue.pause()
        await add_many([queue])
        idle = await used(redis)
        await asyncio.sleep(SETTLE)
        await redis.config_resetstat()
        before = await used(redis)
        await queue.resume()
        await empty(queue)
        after, stats = await used(redis), await redis.info("commandstats")
        waiting = (before.cpu - idle.cpu) / (before.at - idle.at) * (after.at - before.at)
        cpu = after.cpu - before.cpu - waiting
        return cpu / BACKLOG * 1e6, stats["cmdstat_evalsha"]["calls"] / BACKLOG


async def saturate(sizes: list[int], real: int, rounds: int) -> None:
    """Print the medians of some rounds, in each of which all sizes are measured."""
    servers.program("embedded")
    fleets = [(count, (count + 3) // 4, "") for count in sizes] + [(real, 1, " processes")] * (real > 0)
    found: list[list[tuple[float, float]]] = [[] for _ in fleets]
    for _ in range(rounds):
        for fleet, its in zip(fleets, found, strict=True):
            its.append(await saturated(*fleet[:2]))
    of_hundred: float | None = None
    print("| workers | µs of the server for each job | times that of the first | scripts for each job |")
    print("|---|---|---|---|")
    for (count, _, kind), its in zip(fleets, found, strict=True):
        cpu, scripts = (statistics.median(one) for one in zip(*its, strict=True))
        times = statistics.median(one[0] / first[0] for one, first in zip(its, found[0], strict=True))
        print(f"| {count}{kind} | {cpu:.0f} | {times:.1f} | {scripts:.3f} |", flush=True)
        if (count, kind, sizes[0]) == (100, "", 1):
            of_hundred = times
    print(f"median of {rounds} rounds; load {os.getloadavg()[0]:.0f}")
    if of_hundred is not None:
        print(f"goal {SATURATED.line(of_hundred)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="how many workers there are")
    parser.add_argument("--shards", type=int, default=0, help="0: none")
    parser.add_argument("--real", type=int, default=0, help="how many worker processes there are")
    parser.add_argument("--saturated", action="store_true", help="measure only jobs of a backlog")
    parser.add_argument("--rounds", type=int, default=3, help="how often, with --saturated")
    given = parser.parse_args()
    if given.saturated:
        sizes = [one for one in given.workers if one <= MOST]
        asyncio.run(saturate(sizes, given.real, given.rounds))
    else:
        asyncio.run(measure([*given.workers], given.shards, given.real))
