"""High levels first over the shards of a queue, and no shard that starves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item, Worker, lease_from
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.shards.spreading import FREE_TURNS
from leasequeue.worker import fetcher
from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Literal

    from redis.asyncio import Redis

pytestmark = [pytest.mark.core, pytest.mark.server]

LOW, HIGH = 3000, 300


@pytest.fixture(params=[1, 4, 16])
async def queue(redis: Redis, name: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue(name, redis, shards=request.param) as one:
        yield one


def ids_in(queue: AsyncWorkQueue, shards: tuple[AsyncWorkQueue, ...], begin: str, count: int) -> list[str]:
    """Return ids that belong to some shards."""
    found = (f"{begin}{n}" for n in range(count * len(queue.shards) * 2))
    return [one for one in found if queue.shard_of(one) in shards][:count]


async def fill(queue: AsyncWorkQueue, high: tuple[AsyncWorkQueue, ...]) -> None:
    """Add items of no level, and then those of a high one, to some shards."""
    await queue.add_items([Item(b"x", id=f"low{n}") for n in range(LOW)])
    await queue.add_items([Item(b"x", id=one) for one in ids_in(queue, high, "high", HIGH)], priority=5)


def last_place(order: list[str]) -> int:
    """Return at which place the last item of a high level is."""
    return max(place for place, one in enumerate(order, 1) if one.startswith("high"))


@pytest.mark.parametrize("count", [1, 10, 250])
@pytest.mark.parametrize("where", ["all", "one"])
async def test_calls_lease_high_levels_first(
    queue: AsyncWorkQueue, where: Literal["all", "one"], count: int
) -> None:
    """A fifth of the calls, and the first of each shard, may bring others."""
    await fill(queue, queue.shards if where == "all" else queue.shards[-1:])
    order: list[str] = []
    while len(order) < 2 * HIGH:
        order += [lease.id for lease in await queue.lease_many(count, 60)]
    assert len([one for one in order if one.startswith("high")]) == HIGH
    assert last_place(order) <= 1.5 * HIGH


async def test_a_worker_runs_high_levels_first(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "RESERVE_SECONDS", 3600)  # a stall of this machine is none of the server
    await fill(queue, queue.shards)
    order: list[str] = []
    done = asyncio.Event()
    worker = Worker(concurrency=100)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        order.append(lease.id)
        if len(order) == LOW + HIGH:
            done.set()

    async with asyncio.timeout(LIMIT_SECONDS):
        running = asyncio.create_task(worker.run())
        await done.wait()
    assert last_place(order) <= 2 * HIGH
    worker.stop()
    await running


@pytest.mark.parametrize("order", ["weighted", "strict"])
async def test_a_worker_starves_no_shard_for_the_high_level_of_another(
    redis: Redis, name: str, order: Literal["weighted", "strict"]
) -> None:
    async with AsyncWorkQueue(name, redis, shards=4) as queue:
        highs = iter(ids_in(queue, queue.shards[:1], "high", 100_000))
        await queue.add_items([Item(b"x", id=next(highs)) for _ in range(50)], priority=5)
        others = [one for shard in queue.shards[1:] for one in ids_in(queue, (shard,), "low", 20)]
        await queue.add_items([Item(b"x", id=one) for one in others])
        left, done = {*others}, asyncio.Event()
        worker = Worker(concurrency=10, order=order)

        @worker.handler(queue)
        async def handle(_: bytes, lease: Lease) -> None:
            left.discard(lease.id)
            if not left:
                done.set()
            elif lease.id.startswith("high"):
                await queue.add_item(Item(b"x", id=next(highs)), priority=5)

        async with asyncio.timeout(LIMIT_SECONDS):
            running = asyncio.create_task(worker.run())
            await done.wait()
        worker.stop(now=True)
        await running


async def test_calls_starve_no_shard_for_the_high_level_of_another(redis: Redis, name: str) -> None:
    async with AsyncWorkQueue(name, redis, shards=4) as queue:
        highs = iter(ids_in(queue, queue.shards[:1], "high", 1000))
        others = {one for shard in queue.shards[1:] for one in ids_in(queue, (shard,), "low", 5)}
        await queue.add_items([Item(b"x", id=one) for one in others])
        for _ in range(5 * FREE_TURNS * len(queue.shards)):
            await queue.add_item(Item(b"x", id=next(highs)), priority=5)
            lease = await queue.lease(60)
            assert lease is not None
            others.discard(lease.id)
        assert not others


async def test_a_call_leases_all_levels_of_all_shards_before_the_next_queue(redis: Redis, name: str) -> None:
    async with (
        AsyncWorkQueue(name, redis, shards=4) as queue,
        AsyncWorkQueue(f"{name}-plain", redis) as plain,
    ):
        await plain.add_item(Item(b"x", id="plain"))
        for level in (-2, 0, 1, 7):
            await queue.add_items([Item(b"x", id=f"{level}/{n}") for n in range(20)], priority=level)
        top = ids_in(queue, queue.shards[-1:], "top", 3)
        await queue.add_items([Item(b"x", id=one) for one in top], priority=9)
        assert [view.priority for view in await queue.peek(30)] == [9] * 3 + [7] * 20 + [1] * 7
        [shard, *_] = queue.shards
        own = (await shard.counts()).waiting
        leases = await shard.lease_many(100, 60)
        assert len(leases) == own, "a shard is a queue"
        await shard.release_many(leases)
        found = [lease.id for lease in await lease_from([queue, plain], 100, 60)]
        assert len(found) == 84
        assert found[-1] == "plain"
