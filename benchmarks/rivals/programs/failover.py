"""taskiq and Leasequeue under Sentinel or on a cluster: `python -m tests.failover.rivals` runs this.

- taskiq has its brokers that acknowledge after a run, and `taskiq worker`, which starts dead processes again.
- All clients wait a second for a reply; the reads of taskiq's worker block for one, and wait three.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.rivals.programs.protocol import write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PAUSE, REPLY_SECONDS, LEASE_SECONDS = 0.05, 1.0, 2.0


async def produce(add: Callable[[int], Awaitable[object]]) -> None:
    """Add a job after the other, each until the server has acknowledged it."""
    for number in range(1_000_000):
        called, done = time.monotonic(), False
        while not done:
            with contextlib.suppress(Exception):
                await add(number)
                done = True
                write({"number": number, "called": called, "added": time.monotonic()})
            await asyncio.sleep(PAUSE)


async def job(number: int) -> None:
    """Run a job."""
    write({"number": number, "ran": time.monotonic()})


def taskiq_broker() -> Any:
    """Return the broker, for `taskiq worker` too."""
    from taskiq_redis import RedisStreamClusterBroker, RedisStreamSentinelBroker

    where = json.loads(os.environ["WHERE"])
    reply = REPLY_SECONDS if where["part"] == "produce" else 3 * REPLY_SECONDS
    more: dict[str, Any] = {
        "socket_timeout": reply,
        "socket_connect_timeout": REPLY_SECONDS,
        "xread_block": 1000,
    }
    more |= {"queue_name": f"{where['tag']}:taskiq", "consumer_id": "0"}
    if where["cluster"]:
        broker = RedisStreamClusterBroker("redis://{}:{}".format(*where["places"][0]), **more)
    else:
        broker = RedisStreamSentinelBroker([*map(tuple, where["places"])], "main", **where["login"], **more)
    broker.register_task(job, task_name="job")
    return broker


async def taskiq(_: dict[str, Any]) -> None:
    """Add jobs of taskiq."""
    broker = taskiq_broker()
    await broker.startup()
    await produce(broker.find_task("job").kiq)


async def leasequeue(where: dict[str, Any]) -> None:
    """Play a part with Leasequeue."""
    from redis.asyncio import RedisCluster
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.sentinel import Sentinel

    from leasequeue import AsyncWorkQueue, Item, Worker

    if where["cluster"]:
        client: Any = RedisCluster(startup_nodes=[ClusterNode(*one) for one in where["places"]])
    else:
        sentinel = Sentinel([*map(tuple, where["places"])], **where["login"])  # type: ignore[no-untyped-call]  # theirs has no types
        client = sentinel.master_for("main")
    async with AsyncWorkQueue(f"{where['tag']}:ours", client, reply_timeout=REPLY_SECONDS) as queue:
        if where["part"] == "produce":
            await produce(lambda number: queue.add_item(Item(str(number), id=f"job-{number}")))
        worker = Worker(lease_time=LEASE_SECONDS)

        @worker.handler(queue)
        async def run(data: bytes) -> None:
            await job(int(data))

        await worker.run()


if __name__ == "__main__":
    asyncio.run({"taskiq": taskiq, "leasequeue": leasequeue}[sys.argv[1]](json.loads(os.environ["WHERE"])))
