"""Which workers are registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Fleet
from tests.queue.asking import until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.views import WorkerView


async def the_worker(*queues: AsyncWorkQueue) -> WorkerView:
    """Wait until one worker is registered, and return it."""
    fleet = Fleet(*queues)

    async def is_there() -> bool:
        found = await fleet.workers()
        return len(found) == 1 and len(found[0].sessions) == len(queues)

    await until("a worker is registered", is_there)
    (one,) = await fleet.workers()
    return one


async def no_keys(redis: Redis, queue: AsyncWorkQueue) -> bool:
    """Return whether no worker is registered."""
    return not await redis.exists(f"{queue.name}:workers", f"{queue.name}:heartbeats")
