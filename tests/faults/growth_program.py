"""Workers of two queues with shards, which hold their items until the key `go` is there.

python -m tests.faults.growth_program URL OLD NEW
"""

from __future__ import annotations

import asyncio
import sys

from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Worker

OLD_SHARDS, NEW_SHARDS = 2, 4


async def main(url: str, old: str, new: str) -> None:
    """Serve both queues until killed."""
    async with (
        AsyncWorkQueue.from_url(url, old, shards=OLD_SHARDS) as first,
        AsyncWorkQueue.from_url(url, new, shards=NEW_SHARDS) as second,
        Redis.from_url(url) as redis,
    ):
        # One for each queue: items that are held in one take no slot from the other.
        workers = [Worker(concurrency=20) for _ in range(2)]

        async def handle(_: bytes) -> None:
            while not await redis.exists(f"{old}:go"):  # noqa: ASYNC110 - the test is another process
                await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as running:
            for worker, queue in zip(workers, (first, second), strict=True):
                worker.handler(queue, lease_time=1)(handle)
                running.create_task(worker.run())
                await worker.started()
            sys.stdout.write("ready\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
