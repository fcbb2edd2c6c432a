"""Renewing and releasing: for the current holder only, and released items go to the right place."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from tests.queue.asking import take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core


async def fill(queue: AsyncWorkQueue, count: int) -> None:
    assert all(await queue.add_items([Item(b"x", id=f"{n}") for n in range(count)]))


async def test_renew_many_returns_results_in_order_and_moves_the_deadlines(queue: AsyncWorkQueue) -> None:
    await fill(queue, 1200)
    leases = [*await queue.lease_many(1000, 10), *await queue.lease_many(200, 10)]
    await queue.complete_many(leases[::3])
    assert await queue.renew_many(leases, 1000) == [n % 3 != 0 for n in range(1200)]
    for n, lease in enumerate(leases):
        assert (lease.remaining() > 500) == (n % 3 != 0)
    assert await queue.renew_many([], 10) == []


@pytest.mark.seed("WRQ-O5", "WRQ-B3")
async def test_items_released_to_the_front_keep_their_order(queue: AsyncWorkQueue, redis: Redis) -> None:
    await fill(queue, 6)
    leases = await queue.lease_many(3, 10)
    assert await queue.release_many(leases) == [True] * 3
    assert (await audit(redis, queue.name)).waiting == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert await queue.release(await take(queue, 10)) is True
    assert (await take(queue, 10)).attempt == 1, "a release is no attempt"


async def test_an_item_can_be_released_to_the_end(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await fill(queue, 4)
    leases = await queue.lease_many(2, 10)
    assert await queue.release_many(leases, front=False) == [True] * 2
    assert (await audit(redis, name)).waiting == [b"2", b"3", b"0", b"1"]
    assert await queue.release_many([]) == []


async def test_an_item_can_be_released_with_a_delay(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await fill(queue, 2)
    lease = await take(queue, 10)
    assert await queue.release(lease, delay=timedelta(seconds=10)) is True
    assert (await audit(redis, name)).scheduled == [b"0"]
    assert (await take(queue, 60)).id == "1"
    assert await queue.lease(10, block=False) is None
    clock.now += 10
    assert (await take(queue, 10)).id == "0"


async def test_concurrent_release_and_complete_agree(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await fill(queue, 100)
    leases = await queue.lease_many(100, 10)
    calls = [call(lease) for lease in leases for call in (queue.release, queue.complete)]
    answers = await asyncio.gather(*calls)
    # A release does not prevent the completion by its holder; a completion prevents the release.
    assert all(answers[1::2])
    assert not await left_over(redis, name)


async def test_many_released_and_expired_items_are_all_completed(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    await fill(queue, 200)
    done = 0
    for turn in range(200):
        leases = await queue.lease_many(7, 8, block=False)
        match turn % 5:
            case 0:
                await queue.release_many(leases, front=turn % 2 == 0)
            case 1:
                await queue.release_many(leases, delay=3)
            case 2:
                pass  # expires
            case _:
                done += sum(await queue.complete_many(leases))
        clock.now += 1
        if done == 200:
            break
        if turn % 10 == 0:
            found = await audit(redis, name)
            assert len(found.all) == 200 - done
            assert (await queue.counts()).total == 200 - done
    assert done == 200
    assert not await left_over(redis, name)


async def test_many_trips_to_the_front_keep_their_order(queue: AsyncWorkQueue) -> None:
    """They do not fit into one trip: the trip with the last of them has to go first."""
    await queue.add_items(Item(b"x", id=f"{number}") for number in range(1200))
    leases = [*await queue.lease_many(1000, 30), *await queue.lease_many(200, 30)]
    answers = await queue.release_many(leases[:1100])
    assert answers == [True] * 1100
    assert await queue.release_many(leases[:1100]) == [False] * 1100
    again = [*await queue.lease_many(1000, 30), *await queue.lease_many(200, 30)]
    assert [lease.id for lease in again] == [lease.id for lease in leases[:1100]]
