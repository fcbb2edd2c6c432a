"""What the workload of the matrix counts as not done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Item
from tests.failover.topologies import Single
from tests.failover.workload import Workload
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def test_items_of_each_queue_and_state_are_left_until_they_are_done(redis: Redis, name: str) -> None:
    workload = Workload(Single(aof=False))
    async with (
        AsyncWorkQueue(f"{name}:jobs", redis) as workload._jobs,
        AsyncWorkQueue(f"{name}:waits", redis) as workload._waits,
        AsyncWorkQueue(f"{name}:limited", redis) as workload._limited,
    ):
        await workload._jobs.add_item(Item(b"x", id="leased"))
        lease = await take(workload._jobs, 600)
        await workload._waits.add_item(Item(b"x", id="scheduled"), delay=600)
        await workload._limited.add_item(Item(b"x", id="waiting"))
        assert await workload._left() == {"leased", "scheduled", "waiting"}
        assert await workload._jobs.complete(lease)
        assert await workload._left() == {"scheduled", "waiting"}
