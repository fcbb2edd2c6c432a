"""Completing: exactly one holder of each incarnation gets True."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item, Lease
from tests.queue.asking import take
from tests.queue.keyspace import audit, left_over, snapshot

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


@pytest.mark.seed("RWQ-O18", "RWQ-G11", "WRQ-B8", "RRQ-G5")
async def test_the_first_holder_to_finish_is_accepted_though_its_lease_expired(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    slow = await take(queue, 10)
    clock.now += 11
    fast = await take(queue, 10)
    assert (fast.id, fast.attempt) == ("x", 2)
    assert await queue.complete(slow) is True
    assert await queue.complete(fast) is False
    assert await queue.renew(fast, 10) is False
    assert not await left_over(redis, name)


@pytest.mark.parametrize("where", ["expired", "waiting", "delayed"])
@pytest.mark.seed("RWQ-G7", "RWQ-B8")
async def test_a_slow_worker_is_accepted_in_whatever_state_its_item_is(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str, where: str
) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(3)])
    slow = await take(queue, 10)
    if where == "expired":
        clock.now += 11
    elif where == "waiting":
        await queue.release(slow, front=False)
    else:
        await queue.release(slow, delay=10)
    assert await queue.complete(slow) is True
    assert (await audit(redis, name)).waiting == [b"1", b"2"]
    assert await queue.counts() == (2, 0, 0, 0)


@pytest.mark.seed("RWQ-G7")
async def test_a_completed_item_deep_in_a_long_queue_is_not_leased_again(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id=f"a{n}") for n in range(300)])
    slow = await take(queue, 10)
    await queue.release(slow, front=False)
    await queue.add_items([Item(b"x", id=f"b{n}") for n in range(300)])
    assert await queue.complete(slow) is True
    ids = [lease.id for lease in await queue.lease_many(1000, 30, block=False)]
    assert ids == [f"a{n}" for n in range(1, 300)] + [f"b{n}" for n in range(300)]
    await audit(redis, name)


@pytest.mark.seed("RWQ-B3", "RRQ-B8")
async def test_a_holder_of_an_earlier_incarnation_is_rejected(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"old", id="x"))
    slow = await take(queue, 10)
    clock.now += 11
    assert await queue.complete(await take(queue, 10))

    await queue.add_item(Item(b"new", id="x"))
    before = await snapshot(redis)
    assert await queue.complete(slow) is False
    assert await queue.complete_many([slow, slow]) == [False, False]
    assert await snapshot(redis) == before

    new = await take(queue, 10)
    assert (new.data, new.attempt) == (b"new", 1)
    before = await snapshot(redis)
    assert await queue.complete(slow) is False
    assert await queue.renew(slow, 10) is False
    assert await queue.release(slow) is False
    assert await snapshot(redis) == before
    assert await queue.complete(new) is True
    assert not await left_over(redis, name)


async def test_an_earlier_holder_is_rejected_after_the_item_was_deleted_and_added_by_hand(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"old", id="x"))
    slow = await take(queue, 10)
    await redis.delete(f"{name}:item:x")  # as a foreign client completes it
    await redis.lrem(f"{name}:processing", 0, "x")
    assert await queue.complete(slow) is False
    await queue.add_item(Item(b"new", id="x"))
    assert await queue.complete(slow) is False
    new = await take(queue, 10)
    assert (new.data, new.attempt) == (b"new", 1)
    assert await queue.complete(new) is True


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


@pytest.mark.parametrize("order", ["oldest first", "youngest first", "random"])
async def test_completing_in_random_order_leaves_the_processing_list_intact(
    queue: AsyncWorkQueue, redis: Redis, name: str, order: str
) -> None:
    """Long lists are not searched; stale entries are bounded, and removed in the end."""
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(1000)])
    leases = await queue.lease_many(1000, 30)
    if order == "youngest first":
        leases.reverse()
    elif order == "random":
        random.Random(5).shuffle(leases)
    for at in range(0, 1000, 10):
        assert await queue.complete_many(leases[at : at + 10]) == [True] * 10
        assert await queue.counts() == (0, 990 - at, 0, 0)
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
