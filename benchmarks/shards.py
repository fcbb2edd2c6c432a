"""Measure a queue with shards: `python -m benchmarks.shards`, for some minutes.

Jobs per second of two worker processes, the CPU time of a job on all nodes and on the busiest one, and
connections: with no, 1, 4 and 16 shards, on one server and on three masters. The busiest node is the limit,
however many cores there are.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, Worker
from tests import servers
from tests.faults.cluster_nodes import joined, port_of
from tests.ports import free_port
from tests.processes import printed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

JOBS, WORKERS, ROUNDS = 20_000, 2, 3


def opened(url: str, shards: int, *, cluster: bool) -> AsyncWorkQueue:
    """Open the queue; 0: without shards."""
    if shards:
        return AsyncWorkQueue.from_url(url, "bench", cluster=cluster, shards=shards)
    return AsyncWorkQueue.from_url(url, "{bench}", cluster=cluster)


async def work(url: str, shards: int, *, cluster: bool) -> None:
    """Run a worker until it is killed."""
    async with opened(url, shards, cluster=cluster) as queue:
        worker = Worker(concurrency=100)

        @worker.handler(queue)
        async def handle(_: bytes) -> None:
            return

        running = asyncio.create_task(worker.run())
        await worker.started()
        print("ready", flush=True)
        await running


@asynccontextmanager
async def workers(url: str, shards: int, *, cluster: bool) -> AsyncIterator[None]:
    """Run worker processes."""
    words = ("-m", "benchmarks.shards", "work", url, str(shards), str(int(cluster)))
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            one = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
            stack.push_async_callback(one.wait)
            stack.callback(one.kill)
            await printed(one, b"ready")
        yield


async def cpu(node: Redis) -> float:
    """Return the CPU time of a server (s)."""
    info = await node.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def measure(nodes: list[Redis], url: str, shards: int, *, cluster: bool) -> None:
    """Print one row."""
    for node in nodes:
        await node.flushall()
    took: list[tuple[float, float, float]] = []
    connections = 0
    async with opened(url, shards, cluster=cluster) as queue, workers(url, shards, cluster=cluster):
        for _ in range(ROUNDS):
            before = [await cpu(node) for node in nodes]
            began = time.perf_counter()
            for _ in range(JOBS // 1000):
                await queue.add_items([Item(b"x" * 100) for _ in range(1000)])
            while (await queue.counts()).total:  # noqa: ASYNC110 - the workers are other processes
                await asyncio.sleep(0.05)
            seconds = time.perf_counter() - began
            used = [await cpu(node) - first for node, first in zip(nodes, before, strict=True)]
            took.append((JOBS / seconds, sum(used) / JOBS, max(used) / JOBS))
            connections = max([len(await node.client_list()) for node in nodes])
    rate, total, busiest = sorted(took)[ROUNDS // 2]
    print(
        f"{len(nodes)} masters | {shards or 'no'} shards | {rate:,.0f} jobs/s | {total * 1e6:.1f} µs of all "
        f"nodes, {busiest * 1e6:.1f} of the busiest: {1 / busiest:,.0f} jobs/s at most | "
        f"{connections} connections",
        flush=True,
    )


async def measure_all(url: str) -> None:
    """Measure on one server, which is emptied, and on a cluster."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(url))
        for shards in (0, 1, 4, 16):
            await measure([client], url, shards, cluster=False)
        nodes = await joined(stack, "embedded", free_port, replicas=0)
        for shards in (0, 1, 4, 16):
            await measure(nodes, f"redis://127.0.0.1:{port_of(nodes[0])}", shards, cluster=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(sys.argv[2], int(sys.argv[3]), cluster=sys.argv[4] == "1"))
    else:
        with servers.running("embedded") as running:
            asyncio.run(measure_all(running.url))
