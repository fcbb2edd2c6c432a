"""A caller that waits is notified of leases and delays that begin after its wait."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.keys import QueueKeys
from leasequeue.queue.pushes.listener import BLOCK_SECONDS
from leasequeue.wire.runner import BoundScript
from tests.queue.asking import blocked, take, taken
from tests.queue.keyspace import calls

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def test_a_waiter_notices_a_lease_that_began_after_the_wait(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """The item is added and leased in one step, so that the waiter sees neither; then the lease expires."""
    waiter, adder = make_queue(), make_queue()
    waiting = asyncio.create_task(taken(waiter.lease(60)))
    await blocked(redis, 1)
    before, begun = await calls(redis, "blmove"), time.monotonic()
    someone: dict[str, bytes | int] = {
        "prefix": name.encode(),
        "now_ms": b"",
        "session": b"lh:dies",
        "set_many": 0,
        "return_front": 0,
        "max_bytes": 9,
    }
    async with redis.pipeline(transaction=True) as pipe:
        pipe.delete(f"{name}:idle")  # otherwise the item would be delivered to the waiter
        adder.add_item_to_pipeline(pipe, Item(b"", id="a"))
        pipe.execute_command(
            *BoundScript("lease_many", QueueKeys(name, "lh:dies")).command(someone, [b"1", b"300"])
        )
        _, added, leased = await pipe.execute()
    assert (added, leased[3]) == ([1], b"a")
    lease = await waiting
    assert (lease.id, lease.attempt) == ("a", 2)
    # On a machine that is blocked for seconds the waiter would ask again by itself, which proves nothing.
    assert await calls(redis, "blmove") == before or time.monotonic() - begun >= 0.8 * BLOCK_SECONDS


async def test_a_waiter_notices_a_delay_that_began_after_the_wait(
    make_queue: MakeQueue, redis: Redis
) -> None:
    waiter, worker = make_queue(), make_queue()
    await worker.add_item(Item(b"", id="a"))
    held = await take(worker, 60, block=False)
    waiting = asyncio.create_task(taken(waiter.lease(60)))
    await blocked(redis, 1)
    before, begun = await calls(redis, "blmove"), time.monotonic()
    assert await worker.release(held, delay=0.3)
    got = await waiting
    assert (got.id, got.attempt) == ("a", 1)
    assert await calls(redis, "blmove") == before or time.monotonic() - begun >= 0.8 * BLOCK_SECONDS
