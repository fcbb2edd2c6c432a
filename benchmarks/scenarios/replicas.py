"""What it costs that an add and a completion wait for a replica, beside a bare `SET` and `WAIT`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from benchmarks.bench import STEP_TIMEOUT, start_server
from benchmarks.measure import Row, Sample, metered, speed_row, take_turns
from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.bench import Bench

PAYLOAD = 100


async def replicated(bench: Bench) -> list[Row]:
    """Measure adds and completions with `replicas=0` and `replicas=1`, and redis-py's `SET` and `WAIT`.

    The replica runs on the core of the server. Each coroutine with redis-py has a connection of its own, and
    sends both commands in one trip.
    """
    await _start_replica(bench)
    queues = {n: AsyncWorkQueue.from_url(bench.url(), bench.name(), replicas=n) for n in (0, 1)}
    samples: dict[tuple[str, str, int], list[Sample]] = {}

    async def step(
        what: str, who: str, coroutines: int, calls: list[Callable[[], Awaitable[object]]]
    ) -> None:
        async def run(some: list[Callable[[], Awaitable[object]]]) -> None:
            for call in some:
                await call()

        async with metered(bench.redis, len(calls)) as sample:
            await asyncio.gather(*(run(calls[at::coroutines]) for at in range(coroutines)))
        samples.setdefault((what, who, coroutines), []).append(sample)

    async def ours(replicas: int, coroutines: int, count: int) -> None:
        queue, who = queues[replicas], f"replicas={replicas}"
        items = [Item(bytes(PAYLOAD)) for _ in range(count)]
        await step("add", who, coroutines, [partial(queue.add_item, item) for item in items])
        leases = [lease for _ in range(count // 100) for lease in await queue.lease_many(100, 60)]
        await step("complete", who, coroutines, [partial(queue.complete, lease) for lease in leases])

    async def bare(coroutines: int, count: int) -> None:
        clients = [await bench.client() for _ in range(coroutines)]

        async def set_and_wait(number: int) -> None:
            async with clients[number % coroutines].pipeline(transaction=False) as pipe:
                pipe.set(f"bare-{number}", bytes(PAYLOAD))
                pipe.wait(1, 2000)
                await pipe.execute()

        await step("SET", "SET + WAIT", coroutines, [partial(set_and_wait, n) for n in range(count)])

    for coroutines, count in ((1, bench.scaled(2_000, 200)), (100, bench.scaled(10_000, 200))):
        turns = [partial(ours, n, coroutines, count) for n in queues]
        await take_turns(bench.scaled(3, 1), [*turns, partial(bare, coroutines, count)])
    await asyncio.gather(*(queue.close() for queue in queues.values()))
    return [
        speed_row(what, its, who=who, setting={"coroutines": coroutines})
        for (what, who, coroutines), its in samples.items()
    ]


async def _start_replica(bench: Bench) -> None:
    """Start a replica of the server, which `reset` ends, and return when it has its link."""
    replica = await bench.stack.enter_async_context(await start_server())
    await bench.redis.config_set("repl-diskless-sync-delay", 0)
    host, port = bench.server_url.removeprefix("redis://").split("/")[0].split(":")
    async with Redis.from_url(replica.url) as redis, asyncio.timeout(STEP_TIMEOUT):
        await redis.replicaof(host, int(port))
        while (await redis.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0.01)
