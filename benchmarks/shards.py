"""Measure a queue with shards, beside BullMQ with queues split by hand: `python -m benchmarks.shards`.

Two worker processes, with no, 1, 4 and 16 shards, on one server and on a cluster of three masters: jobs per
second when 1,000 at once are added, the CPU time of a job on each node, the commands of a job on all nodes,
the time from an add to the run at RATE jobs a second, and the connections. The busiest node is the limit,
however many cores there are. BullMQ is measured if `make bench-rivals` has installed it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from statistics import median, quantiles
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.rivals.targets import HERE, PLACES
from leasequeue import AsyncWorkQueue, Item, Worker
from tests.eventually import eventually
from tests.faults.cluster_nodes import joined, port_of
from tests.ports import free_port
from tests.processes import answering, printed

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from redis.asyncio import Redis

WORKERS, ROUNDS, CONCURRENCY, CHUNK = 2, 3, 100, 1000
#: How many jobs each of them gets in a round.
JOBS = {"leasequeue": 5_000, "bullmq": 2_000}
#: How many jobs are added one at a time, and how many a second.
SINGLE, RATE = 300, 200
#: How often a worker says how many jobs it has run (s).
REPORT_SECONDS = 0.05
#: How long a round may take (s).
ROUND_SECONDS = 300.0
#: The commands of this program.
OBSERVING = ("cmdstat_info", "cmdstat_config", "cmdstat_client")


def opened(url: str, shards: int, *, cluster: bool) -> AsyncWorkQueue:
    """Open the queue; 0: without shards."""
    if shards:
        return AsyncWorkQueue.from_url(url, "bench", cluster=cluster, shards=shards)
    return AsyncWorkQueue.from_url(url, "{bench}", cluster=cluster)


async def work(queue: AsyncWorkQueue) -> None:
    """Run a worker until it is killed; say how many jobs it has run, and how late single ones were."""
    worker, ran, reported = Worker(concurrency=CONCURRENCY), 0, 0

    @worker.handler(queue)
    async def handle(data: bytes) -> None:
        nonlocal ran
        ran += 1
        if data[:1] != b"x":
            say("late", time.monotonic() - float(data))

    running = asyncio.create_task(worker.run())
    await worker.started()
    say("ready")
    while not running.done():
        await asyncio.sleep(REPORT_SECONDS)
        if reported < ran:
            reported = ran
            say("ran", reported)
    await running


async def produce(queue: AsyncWorkQueue) -> None:
    """Add as many jobs as each line says, and so many a second: none are added many at once."""
    adding: set[asyncio.Task[bool]] = set()
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say("ready")
    async for line in reader:
        count, rate = map(int, line.split())
        for _ in range(count if rate else 0):
            await asyncio.sleep(random.uniform(0, 2 / rate))
            adding.add(asyncio.create_task(queue.add_item(Item(str(time.monotonic())))))
        for _ in range(0 if rate else count // CHUNK):
            await queue.add_items([Item(b"x" * 100) for _ in range(CHUNK)])


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)


class Figures(NamedTuple):
    """The figures of one round."""

    rate: float  #: jobs per second
    cpu: list[float]  #: of a job on each node (s)
    commands: float  #: of a job on all nodes
    late: float  #: the 99th percentile of the time from an add to the run (s)


class Bench:
    """One library on one server or cluster.

    Args:
        nodes: The servers.
        name: The library.
        shards: How many shards, or parts; 0: none.
    """

    def __init__(self, nodes: list[Redis], name: str, shards: int) -> None:
        self._nodes, self._name, self._shards = nodes, name, shards
        self._ran = [0] * WORKERS
        self._late: list[float] = []

    async def _start(self, stack: AsyncExitStack, part: str) -> Process:
        words = [sys.executable, "-m", "benchmarks.shards"]
        if self._name == "bullmq":
            words = ["node", str(HERE / "programs" / "bullmq_shards.cjs")]
        url = f"redis://127.0.0.1:{port_of(self._nodes[0])}"
        pipe, modules = asyncio.subprocess.PIPE, str(PLACES / "bullmq" / "node_modules")
        one = await asyncio.create_subprocess_exec(
            *(*words, part, url, str(self._shards), str(int(len(self._nodes) > 1))),
            env={**os.environ, "NODE_PATH": modules},
            stdin=pipe,
            stdout=pipe,
        )
        stack.push_async_callback(one.wait)
        stack.callback(one.kill)
        await printed(one, b"ready")
        return one

    async def _read(self, worker: int, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            what, value = line.split()
            if what == b"ran":
                self._ran[worker] = int(value)
            else:
                self._late.append(float(value))

    async def _add(self, producer: Process, count: int, rate: int = 0) -> float:
        """Have jobs added, and return when they have run, and how long it took."""
        assert producer.stdin is not None
        began, before = time.perf_counter(), sum(self._ran)
        producer.stdin.write(f"{count} {rate}\n".encode())
        await eventually("all jobs have run", lambda: sum(self._ran) == before + count, within=ROUND_SECONDS)
        return time.perf_counter() - began

    async def _round(self, producer: Process) -> Figures:
        jobs = JOBS[self._name]
        before = [await cpu(node) for node in self._nodes]
        for node in self._nodes:
            await node.config_resetstat()
        seconds = await self._add(producer, jobs)
        used = [(await cpu(node) - first) / jobs for node, first in zip(self._nodes, before, strict=True)]
        commands = 0
        for node in self._nodes:
            stats = await node.info("commandstats")
            commands += sum(one["calls"] for name, one in stats.items() if not name.startswith(OBSERVING))
        self._late.clear()
        await self._add(producer, SINGLE, RATE)
        late = quantiles(self._late, n=100)[98]
        return Figures(jobs / seconds, used, commands / jobs, late)

    async def _connections(self) -> list[int]:
        return [len(await node.client_list()) for node in self._nodes]

    async def row(self) -> str:
        """Measure, and return a row of the table."""
        for node in self._nodes:
            await node.flushall()
        async with AsyncExitStack() as stack:
            async with AsyncExitStack() as inner:
                producer, *started = await asyncio.gather(
                    self._start(stack, "produce"), *(self._start(inner, "work") for _ in range(WORKERS))
                )
                for number, process in enumerate(started):
                    inner.callback(asyncio.create_task(self._read(number, process)).cancel)
                await self._add(producer, 2 * CHUNK)  # so that all is connected and compiled
                found = [await self._round(producer) for _ in range(ROUNDS)]
                with_workers = await self._connections()
            without = await self._connections()
        each = [max(0, a - b) / WORKERS for a, b in zip(with_workers, without, strict=True)]
        of_node = [median(one.cpu[place] for one in found) * 1e6 for place in range(len(self._nodes))]
        total, busiest = (median(how(one.cpu) for one in found) * 1e6 for how in (sum, max))
        return " | ".join(
            (
                f"| {self._name}, {self._shards or 'no'} shards, {len(self._nodes)} masters",
                f"{median(one.rate for one in found):,.0f}",
                f"{total:.1f} = {' + '.join(f'{one:.1f}' for one in of_node)} µs",
                f"{busiest:.1f} µs",
                f"{1e6 / busiest:,.0f}",
                f"{total / busiest / len(self._nodes):.0%}",
                f"{median(one.commands for one in found):.2f}",
                f"{median(one.late for one in found) * 1e3:.0f} ms",
                f"{max(each):g} |",
            )
        )


async def cpu(node: Redis) -> float:
    """Return the CPU time of a server (s)."""
    info = await node.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def measure_all() -> None:
    """Measure on one server and on a cluster."""
    names = [name for name in JOBS if name == "leasequeue" or (PLACES / name).is_dir()]
    say("| | jobs/s | CPU of a job | of the busiest | so at most | even | commands | p99 | connections |")
    say("|--|--|--|--|--|--|--|--|--|")
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(
            answering("embedded", port := free_port(), "--port", port, "--save", "")
        )
        several = await joined(stack, "embedded", replicas=0)
        for nodes in ([one], several):
            for name in names:
                for shards in (0, 1, 4, 16) if name == "leasequeue" else (1, 4, 16):
                    say(await Bench(nodes, name, shards).row(), f"load {os.getloadavg()[0]:.0f}")


async def main(part: str, url: str, shards: str, cluster: str) -> None:
    """Run a part."""
    async with opened(url, int(shards), cluster=cluster == "1") as queue:
        await (work if part == "work" else produce)(queue)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]) if sys.argv[1:] else measure_all())
