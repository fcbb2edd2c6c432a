"""Completing: exactly one holder of each incarnation gets True."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item, Lease
from tests.queue.asking import take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


@pytest.mark.seed("WRQ-G4", "WRQ-T5", "GLD-B20", "RRQ-B6")
async def test_a_completed_item_is_removed(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.add_item(Item(b"x", id="x"))
    lease = await take(queue, 10)
    assert await queue.complete(lease) is True
    assert await queue.complete(lease) is False
    assert await queue.complete(lease, fenced=True) is False
    assert await queue.counts() == (0, 0, 0, 0)
    assert not await left_over(redis, name)
    assert await redis.get(f"{name}:fence") == b"1"


@pytest.mark.seed("RRQ-O4")
async def test_complete_many_returns_results_in_order_and_false_for_doubles(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(1300)])
    leases = [*await queue.lease_many(1000, 30), *await queue.lease_many(300, 30)]
    assert await queue.complete_many(leases[::2]) == [True] * 650
    await audit(redis, name)
    assert await queue.complete_many(leases) == [False, True] * 650
    assert await queue.complete_many([]) == []
    assert not await left_over(redis, name)

    await queue.add_item(Item(b"x"))
    lease = await take(queue, 10)
    assert await queue.complete_many([lease, lease, lease]) == [True, False, False]


@pytest.mark.seed("WRQ-B8", "GLD-G8", "RRQ-B8")
async def test_fenced_accepts_the_current_holder_alone(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_item(Item(b"x", id="x"))
    slow = await take(queue, 10)
    clock.now += 11
    current = await take(queue, 10)
    assert await queue.complete(slow, fenced=True) is False
    assert await queue.complete_many([slow, current], fenced=True) == [False, True]
    assert await queue.complete(current, fenced=True) is False


@pytest.mark.seed("RWQ-O12", "RWQ-G6", "RRQ-T3")
async def test_of_all_concurrent_completions_one_returns_true(
    make_queue: MakeQueue, clock: Clock, redis: Redis, name: str
) -> None:
    queues = [make_queue(clock=clock) for _ in range(4)]
    await queues[0].add_items([Item(b"x", id=f"{n}") for n in range(50)])
    holders = []
    for queue in queues:
        holders.append(await queue.lease_many(50, 10, block=False))
        clock.now += 11
    calls = [
        queue.complete(lease, fenced=n % 3 == 0)
        for queue, leases in zip(queues, holders, strict=True)
        for n, lease in enumerate(sorted(leases, key=lambda lease: int(lease.id)))
    ]
    answers = await asyncio.gather(*calls)
    # Item n is at n, n + 50, n + 100 and n + 150; the last is the current holder.
    for n in range(50):
        assert answers[n::50].count(True) == 1
    assert not await left_over(redis, name)


async def fail(lease: Lease) -> None:
    async with lease:
        raise ZeroDivisionError


async def test_the_context_manager_completes_on_success_and_leaves_the_item_on_an_error(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id="good"), Item(b"x", id="bad")])
    async with await take(queue, 10) as good:
        assert good.data == b"x"
        before = good.completed
    assert (before, good.completed) == (None, True)
    bad = await take(queue, 10)
    with pytest.raises(ZeroDivisionError):
        await fail(bad)
    assert (await audit(redis, name)).leased == [b"bad"]
    before = bad.completed
    async with bad:
        await queue.complete(bad)
    assert (before, bad.completed) == (None, False)


async def test_a_cancelled_block_leaves_the_item(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x"))
    lease = await take(queue, 10)

    async def work() -> None:
        async with lease:
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert lease.completed is None
    assert await queue.processing() == 1
