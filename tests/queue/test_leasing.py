"""Leasing: in order, one holder at a time, reclaimed when the lease expires; and callers that wait."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, Item, lease_from
from leasequeue.keys import QueueKeys
from leasequeue.queue import leasing
from leasequeue.queue.leasing import MAX_ITEMS
from leasequeue.queue.pushes.listener import BLOCK_SECONDS
from leasequeue.wire.runner import BoundScript
from tests.eventually import eventually
from tests.queue.asking import blocked, engine_of, take, taken
from tests.queue.keyspace import audit, calls, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def fill(queue: AsyncWorkQueue, count: int) -> list[str]:
    ids = [f"{n}" for n in range(count)]
    assert all(await queue.add_items([Item(b"x", id=item_id) for item_id in ids]))
    return ids


@pytest.mark.seed("RWQ-G9", "WRQ-G8", "RRQ-G2")
async def test_first_in_first_out(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    ids = await fill(queue, 10)
    first = await take(queue)
    rest = await queue.lease_many(20, 30)
    assert [lease.id for lease in (first, *rest)] == ids
    assert await queue.counts() == (0, 10, 0, 0)
    assert (await audit(redis, name)).waiting == []


@pytest.mark.seed("RWQ-O11", "WRQ-O4")
async def test_an_empty_queue_answers_at_once_when_asked_to(queue: AsyncWorkQueue, redis: Redis) -> None:
    assert await queue.lease(30, block=False) is None
    assert await queue.lease_many(10, 30, block=False) == []
    assert not await redis.keys(f"{queue.name}*")


@pytest.mark.seed("RWQ-O11", "RWQ-K3")
async def test_a_wait_ends_with_its_timeout(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    assert await queue.lease(30, timeout=0.001) is None
    assert await queue.lease(30, timeout=timedelta(milliseconds=50)) is None
    assert await queue.lease_many(10, 30, timeout=0.05) == []
    await queue.close()
    assert not await left_over(redis, name)


@pytest.mark.parametrize("timeout", [None, 0, 1, timedelta(days=1)])
async def test_a_timeout_is_not_used_by_a_call_that_does_not_wait(
    queue: AsyncWorkQueue, timeout: float | timedelta | None
) -> None:
    """Programs of the redis-work-queue family pass both."""
    assert await queue.lease(30, block=False, timeout=timeout) is None
    assert await queue.lease_many(5, 30, block=False, timeout=timeout) == []
    assert await lease_from([queue], 5, 30, block=False, timeout=timeout) == []
    await queue.add_item(Item(b"x", id="x"))
    lease = await queue.lease(30, block=False, timeout=timeout)
    assert lease is not None


@pytest.mark.parametrize("zero", [0, 0.0, timedelta(0)])
async def test_a_timeout_of_0_is_refused_with_the_two_things_it_could_mean(
    queue: AsyncWorkQueue, zero: float | timedelta
) -> None:
    for call in (queue.lease(30, timeout=zero), queue.lease_many(5, 30, timeout=zero)):
        with pytest.raises(InvalidArgument, match=r"timeout=None.*block=False"):
            await call


@pytest.mark.seed("WRQ-G5", "GLD-G2", "RRQ-B4")
async def test_no_item_is_leased_twice_by_concurrent_callers(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queues = [make_queue() for _ in range(4)]
    ids = await fill(queues[0], 300)
    asked = [queue.lease_many(1 + n % 5, 30, block=False) for queue in queues for n in range(60)]
    leases = [lease for got in await asyncio.gather(*asked) for lease in got]
    assert sorted(lease.id for lease in leases) == sorted(ids)
    assert len({lease.token for lease in leases}) == 300
    await audit(redis, name)


@pytest.mark.seed("RRQ-T4")
async def test_callers_of_one_trip_get_their_own_lease_times(queue: AsyncWorkQueue) -> None:
    await fill(queue, 6)
    times = [10, 10, 500, 20, 20, 10]
    leases = await asyncio.gather(*(queue.lease(seconds) for seconds in times))
    for seconds, lease in zip(times, leases, strict=True):
        assert lease is not None
        assert seconds - 5 < lease.remaining() <= seconds


async def test_the_longest_lease_is_accepted(queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x"))
    lease = await queue.lease(timedelta(days=30))
    assert lease is not None
    assert lease.remaining() > 30 * 24 * 3600 - 60
    assert await queue.renew(lease, 30 * 24 * 3600)


async def test_deadline_is_by_the_servers_clock_and_remaining_by_this_machines(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    before = time.monotonic()
    lease = await take(queue)
    assert 30 >= lease.remaining() >= before + 29.999 - time.monotonic()
    ends_ms = await redis.zscore(f"{name}:deadlines", "x") or 0
    assert lease.deadline == ends_ms / 1000
    assert [view.due for view in await queue.inspect("leased")] == [ends_ms / 1000]

    assert await queue.renew(lease, 100)
    assert 90 < lease.remaining() <= 100
    ends_ms = await redis.zscore(f"{name}:deadlines", "x") or 0
    assert lease.deadline == ends_ms / 1000


@pytest.mark.seed("RWQ-G10")
async def test_more_waiters_than_one_trip_serves_all_get_items(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch, redis: Redis, name: str
) -> None:
    monkeypatch.setattr(leasing, "MAX_ITEMS", 5)
    waiter, adder = make_queue(), make_queue()
    waiting = [asyncio.create_task(waiter.lease(30, timeout=120)) for _ in range(23)]
    ids = await fill(adder, 23)
    leases = await asyncio.gather(*waiting)
    assert sorted(lease.id for lease in leases if lease) == sorted(ids)
    await audit(redis, name)


async def test_the_caller_that_waits_longest_is_served_first(make_queue: MakeQueue) -> None:
    waiter, adder = make_queue(), make_queue()
    waiting = []
    for _ in range(5):
        waiting.append(asyncio.create_task(waiter.lease(30, timeout=120)))
        await asyncio.sleep(0)
    ids = await fill(adder, 5)
    leases = await asyncio.gather(*waiting)
    assert [lease.id for lease in leases if lease] == ids


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
        "by_level": 0,
        "whole": 0,
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


async def test_a_call_without_wait_is_answered_while_a_large_request_waits(queue: AsyncWorkQueue) -> None:
    greedy = asyncio.create_task(queue.lease_many(1000, 30))
    await callers_wait(queue, 1)
    async with asyncio.timeout(120):
        assert await queue.lease(30, block=False) is None
        assert await queue.lease_many(10, 30, block=False) == []
    await queue.add_item(Item("one"))
    assert [lease.data for lease in await greedy] == [b"one"]


@pytest.mark.parametrize("callers", [MAX_ITEMS - 1, MAX_ITEMS, 2 * MAX_ITEMS + 1])
async def test_a_call_without_wait_is_answered_however_many_wait(queue: AsyncWorkQueue, callers: int) -> None:
    first = [asyncio.create_task(queue.lease(30)) for _ in range(callers)]
    await callers_wait(queue, callers)
    late = asyncio.create_task(queue.lease(30))
    async with asyncio.timeout(120):
        assert await queue.lease(30, block=False) is None
        await callers_wait(queue, callers + 1)
        await queue.add_items([Item(str(number)) for number in range(callers)])
        leases = await asyncio.gather(*first)
    # In the order of their calls: the last one still waits.
    assert [lease.data for lease in leases] == [str(number).encode() for number in range(callers)]
    assert not late.done()
    await queue.add_item(Item("last"))
    assert (await late).data == b"last"


async def test_an_item_that_is_promoted_is_leased_by_who_waits(make_queue: MakeQueue) -> None:
    queue, other = make_queue(), make_queue()
    await queue.add_item(Item(b"x", id="later"), delay=3600)
    waits = asyncio.create_task(queue.lease(30))
    await callers_wait(queue, 1)
    assert [await other.promote("later"), await other.promote("later")] == [True, False]
    async with asyncio.timeout(120):
        assert (await waits).id == "later"


async def callers_wait(queue: AsyncWorkQueue, callers: int) -> None:
    """Wait until `callers` callers have found the queue empty and wait."""
    dispatcher = queue._engine().leasing
    await eventually("they wait", lambda: len(dispatcher._waiting) == callers and not dispatcher._gate.busy)


async def test_of_many_sessions_that_wait_some_ask_when_an_item_falls_due(queue: AsyncWorkQueue) -> None:
    """And of those that have asked, some at the next time, too; one that alone was to ask always does."""
    assert await queue.lease(30, block=False) is None
    dispatcher = engine_of(queue).leasing

    def asks(*, after_asking: bool = False) -> int:
        found = 0
        for _ in range(1000):
            dispatcher._was_due = after_asking
            found += dispatcher._asks_when_due()
        return found

    dispatcher._sessions = 8
    assert asks() == 1000
    dispatcher._sessions = 1000
    assert asks() < 100
    assert 100 < asks(after_asking=True) < 900
    dispatcher._must_ask = True
    assert asks() == 1000
