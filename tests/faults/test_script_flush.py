"""Callers do not notice that the server's script cache was flushed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.queue.asking import take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def test_scripts_are_reloaded_after_a_flush_while_a_caller_waits(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    waiter, adder = make_queue(), make_queue()
    for number in range(5):
        waiting = asyncio.create_task(waiter.lease(30))
        await redis.script_flush()
        await adder.add_item(Item(b"x", id=f"{number}"))
        await redis.script_flush()
        async with asyncio.timeout(120):
            lease = await waiting
        assert lease is not None
        assert lease.id == f"{number}"
        await redis.script_flush()
    await waiter.close()
    assert len((await audit(redis, name)).leased) == 5


async def test_scripts_are_reloaded_after_a_flush_among_concurrent_calls(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """Calls in flight are sent again, once: every answer is true, and nothing is applied twice."""
    total, queues = 900, [make_queue() for _ in range(3)]
    done = asyncio.Event()

    async def flush() -> None:
        while not done.is_set():
            await redis.script_flush()

    async def work(number: int) -> int:
        queue = queues[number % 3]
        assert await queue.add_item(Item(b"x", id=f"{number}"))
        lease = await take(queue, 60)
        assert await queue.renew(lease, 60)
        if number % 2:
            assert await queue.release(lease, front=False)
            lease = await take(queue, 60)
        assert await queue.complete(lease)
        return lease.token

    flushing = asyncio.create_task(flush())
    tokens = await asyncio.gather(*(work(number) for number in range(total)))
    done.set()
    await flushing
    for queue in queues:
        await queue.close()
    assert len(set(tokens)) == total
    assert await redis.get(f"{name}:fence") == b"%d" % (total * 3 // 2)
    assert not await left_over(redis, name)
