"""A worker of two queues with shards, which holds its items until the key `go` is there.

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
        worker = Worker(concurrency=20)

        async def handle(_: bytes) -> None:
            while not await redis.exists(f"{old}:go"):  # noqa: ASYNC110 - the test is another process
                await asyncio.sleep(0.05)

        for queue in (first, second):
            worker.handler(queue, lease_time=1)(handle)
        running = asyncio.create_task(worker.run())
        await worker.started()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
