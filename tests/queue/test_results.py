"""Results: stored for a time by the accepted completion."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.queue.asking import take
from tests.queue.keyspace import left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core

RESULTS = [b"done", b"", b"0", b"1", b":", b"1:2:3", b"\x00\xff\r\n", bytes(2 << 20)]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: repr(result[:9]))
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.seed("RWQ-T4", "WRQ-O6")
async def test_a_result_is_returned_as_it_was_stored(
    queue: AsyncWorkQueue, result: bytes, *, fenced: bool
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    assert await queue.results.get("a") is None
    assert await queue.complete(lease, fenced=fenced, result=result) is True
    assert await queue.results.get("a") == result


@pytest.mark.parametrize(
    ("keep", "ms"), [(None, 3_600_000), (5, 5_000), (0.2, 200), (timedelta(days=1), 86_400_000)]
)
async def test_a_result_expires_after_keep_result(
    queue: AsyncWorkQueue, redis: Redis, name: str, keep: float | None, ms: int
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    lease = await take(queue)
    if keep is None:
        await queue.complete(lease, result=b"r")
    else:
        await queue.complete(lease, result=b"r", keep_result=keep)
    assert ms - 60_000 < await redis.pttl(f"{name}:result:a") <= ms


async def test_a_completion_without_a_result_stores_none(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x", id="a"))
    await queue.complete(await take(queue), keep_result=5)
    assert await queue.results.get("a") is None
    await queue.close()
    assert not await left_over(redis, queue.name)


@pytest.mark.seed("GLD-B4", "GLD-B5")
async def test_only_the_accepted_completion_stores_a_result(queue: AsyncWorkQueue, clock: Clock) -> None:
    await queue.add_item(Item(b"x", id="a"))
    slow = await take(queue, 10)
    clock.now += 11
    quick = await take(queue, 10)
    assert await queue.complete(slow, fenced=True, result=b"fenced") is False
    assert await queue.results.get("a") is None
    assert await queue.complete(quick, result=b"quick") is True
    assert await queue.complete(slow, result=b"slow") is False
    assert await queue.complete(quick, result=b"again") is False
    assert await queue.results.get("a") == b"quick"


async def test_the_last_of_several_results_is_returned(queue: AsyncWorkQueue) -> None:
    for result in (b"first", None, b"second"):
        await queue.add_item(Item(b"x", id="a"))
        await queue.complete(await take(queue), result=result)
    assert await queue.results.get("a") == b"second"


async def test_many_results_take_few_trips(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(1000)])
    held = await queue.lease_many(1000, 60)
    results = [None if n % 3 == 0 else b"%d" % n for n in range(1000)]
    assert await queue.complete_many(held, results=results, keep_result=60) == [True] * 1000
    assert await asyncio.gather(*(queue.results.get(f"{n}") for n in range(1000))) == results
    assert await queue.complete_many([], results=[]) == []


async def test_results_of_many_coroutines_and_of_any_size(queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(20)])
    held = await queue.lease_many(20, 60)
    large = [bytes([n]) * (300_000 * (n % 3)) for n in range(20)]
    done = await asyncio.gather(
        *(queue.complete(lease, result=result) for lease, result in zip(held, large, strict=True))
    )
    assert done == [True] * 20
    assert [await queue.results.get(f"{n}") for n in range(20)] == large
