"""Lease sets without Spark: lost replies, expired leases, other readers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, Item
from leasequeue.queue.bulk import Bulk
from leasequeue.queue.queue import engine_of
from leasequeue.spark import StreamTakenOver
from leasequeue.spark.read.lease_sets import FIELDS, LeaseSets, read_set
from tests.queue.asking import until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import Clock, MakeQueue


def reader_of(queue: AsyncWorkQueue, *, lease_ms: int = 60_000, retry_timeout: float = 10) -> LeaseSets:
    return LeaseSets(engine_of(queue).bulk, "s", lease_ms=lease_ms, retry_timeout=retry_timeout)


async def fill(queue: AsyncWorkQueue, count: int) -> list[str]:
    names = [f"i{number}" for number in range(count)]
    await queue.add_items([Item(b"x" * 10, id=name) for name in names])
    return names


async def read(queue: AsyncWorkQueue, stream: LeaseSets, number: int, *, maximum: int = 1000) -> list[str]:
    """Read a set as an executor does."""
    found: list[str] = []
    at, seen = 0, 1
    while seen:
        seen, _, flat = await read_set(
            engine_of(queue).bulk,
            stream.set_id(number),
            start=at,
            count=maximum,
            max_bytes=1000,
            retry_timeout=10,
        )
        at += seen
        found += [one.decode() for one in flat[::FIELDS]]
    return found


async def all_done(redis: Redis, queue: AsyncWorkQueue) -> None:
    assert await queue.counts() == (0, 0, 0, 0)
    await audit(redis, queue.name)
    assert {key.split(b":")[1] for key in await left_over(redis, queue.name)} == {b"stream"}


async def test_sets_are_leased_in_steps_read_again_and_completed(queue: AsyncWorkQueue, redis: Redis) -> None:
    names = await fill(queue, 3_500)
    stream = reader_of(queue)
    await stream.take_over()
    assert await stream.waiting() == 3_500
    assert (await stream.lease(1, 2_500)).size == 2_500
    assert await queue.counts() == (1_000, 2_500, 0, 0)
    assert (await stream.restore(1)).size == 2_500
    assert await read(queue, stream, 1) == names[:2_500]
    await stream.complete(1)
    await stream.complete(1)
    assert (await stream.lease(2, 2_500)).size == 1_000
    after = reader_of(queue)
    await after.take_over()
    again = await after.restore(2)
    assert (again.size, again.held) == (1_000, 1_000)
    assert await read(queue, after, 2) == names[2_500:]
    await after.complete(2)
    assert (await after.lease(3, 10)).size == 0
    await all_done(redis, queue)


class Losing(Bulk):
    """Loses the reply to every second call."""

    def __init__(self, bulk: Bulk, proxy: Proxy) -> None:
        super().__init__(bulk._run, bulk._read_key)
        self._proxy = proxy
        self.lost = 0
        self._calls = 0

    async def run(self, script: str, rest: Any = (), **arguments: bytes | int) -> Any:
        self._calls += 1
        if self._calls % 2:
            self._proxy.cut_after_bytes(0)
        try:
            return await super().run(script, rest, **arguments)
        except ConnectionLost:
            self.lost += 1
            raise


async def test_lost_replies_change_nothing(make_queue: MakeQueue, proxy: Proxy, redis: Redis) -> None:
    queue = make_queue()
    await queue.events.keep(count=100_000)
    names = await fill(queue, 2_500)
    losing = Losing(engine_of(make_queue(url=proxy.url, reply_timeout=5)).bulk, proxy)
    stream = LeaseSets(losing, "s", lease_ms=60_000, retry_timeout=30)
    await stream.take_over()
    got: list[str] = []
    number = 0
    while True:
        number += 1
        leased = await stream.lease(number, 2_000)
        if not leased.size:
            break
        await stream.restore(number)
        found = await read(queue, stream, number)
        assert leased.size == len(found)
        got += found
        await stream.complete(number)
    assert got == names
    assert losing.lost > 5
    kinds = [event.what async for event in queue.events(follow=False)]
    assert (kinds.count("leased"), kinds.count("completed")) == (2_500, 2_500)
    await queue.events.stop()
    await all_done(redis, queue)


async def test_expired_leases_are_renewed_if_not_reclaimed(
    make_queue: MakeQueue, clock: Clock, redis: Redis
) -> None:
    queue = make_queue(clock=clock)
    names = await fill(queue, 20)
    first = reader_of(queue)
    await first.take_over()
    await first.lease(1, 20)
    clock.now += 99
    after = reader_of(queue)
    await after.take_over()
    again = await after.restore(1)
    assert again.held == 20
    assert await queue.lease_many(20, 30, block=False) == []
    assert await read(queue, after, 1) == names
    await after.complete(1)
    await all_done(redis, queue)


async def test_items_of_other_clients_are_abandoned_and_items_read_before_completed(
    make_queue: MakeQueue, clock: Clock, redis: Redis
) -> None:
    queue = make_queue(clock=clock)
    names = await fill(queue, 5)
    stream = reader_of(queue)
    await stream.take_over()
    await stream.lease(1, 5)
    clock.now += 99
    taken = await queue.lease_many(2, 30, block=False)
    assert await read(queue, stream, 1, maximum=2) == names[2:], "reclaimed items are leased again"
    await stream.complete(1)
    assert await queue.counts() == (0, 2, 0, 0)
    # The next set is read in time; then another client leases all of it, too late.
    await queue.complete_many(taken)
    names = await fill(queue, 3)
    assert (await stream.lease(2, 5)).size == 3
    assert await read(queue, stream, 2) == names
    clock.now += 99
    late = await queue.lease_many(5, 30, block=False)
    await stream.complete(2)
    assert await queue.complete_many(late) == [False, False, False]
    await all_done(redis, queue)


@pytest.mark.parametrize("size", [10, 2_500])
async def test_items_reclaimed_after_a_crash_are_leased_into_the_same_set(
    make_queue: MakeQueue, clock: Clock, redis: Redis, size: int
) -> None:
    queue = make_queue(clock=clock)
    await queue.add_items([Item(b"x", id=f"before{number}") for number in range(5)])
    before = await queue.lease_many(5, 1_000, block=False)
    names = await fill(queue, size)
    first = reader_of(queue)
    await first.take_over()
    await first.lease(1, size)
    clock.now += 99
    await queue.release_many(before)
    while (await queue.counts()).leased:
        await queue.light_clean()
    await queue.add_items([Item(b"x", id=f"after{number}") for number in range(5)])
    assert await queue.counts() == (size + 10, 0, 0, 0)
    after = reader_of(queue)
    await after.take_over()
    again = await after.restore(1)
    assert (again.size, again.held) == (size, size)
    assert await queue.counts() == (10, size, 0, 0)
    assert await read(queue, after, 1) == names
    await audit(redis, queue.name)
    await after.complete(1)
    assert (await after.lease(2, 5_000)).size == 10
    assert len(await read(queue, after, 2)) == 10
    await after.complete(2)
    await all_done(redis, queue)


async def test_items_leased_by_others_after_a_crash_are_left_out_and_logged(
    make_queue: MakeQueue, clock: Clock, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(clock=clock)
    names = await fill(queue, 5)
    first = reader_of(queue)
    await first.take_over()
    await first.lease(1, 5)
    clock.now += 99
    one, other = await queue.lease_many(2, 30, block=False)
    await queue.complete(one)
    after = reader_of(queue)
    await after.take_over()
    assert (await after.restore(1)).held == 3
    assert "2 items of batch 1 are left out: other clients leased them" in caplog.text
    assert await read(queue, after, 1) == [name for name in names if name not in (one.id, other.id)]
    await after.complete(1)
    assert await queue.complete(other)
    await all_done(redis, queue)


async def test_leases_that_expire_during_a_batch_are_leased_again(
    make_queue: MakeQueue, clock: Clock
) -> None:
    """The renewing process was suspended for longer than the lease time."""
    queue = make_queue(clock=clock)
    names = await fill(queue, 5)
    stream = reader_of(queue, lease_ms=300)
    await stream.take_over()
    await stream.lease(1, 5)
    await queue.add_item(Item("x", id="other"))
    clock.now += 99
    await queue.light_clean()
    assert (await queue.counts())[:2] == (6, 0)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        keeping = group.create_task(stream.keep_renewing())

        async def held() -> bool:
            return (await queue.counts())[:2] == (1, 5)

        await until("they are leased again", held)
        keeping.cancel()
    assert await read(queue, stream, 1) == names
    await stream.complete(1)
    assert (await queue.counts())[:2] == (1, 0)


class Failing(Bulk):
    """Fails once with an unexpected error."""

    failed = False

    async def run(self, script: str, rest: Any = (), **arguments: bytes | int) -> Any:
        if script == "set_renew" and not self.failed:
            self.failed = True
            raise ZeroDivisionError
        return await super().run(script, rest, **arguments)


async def test_renewing_continues_after_any_error(
    queue: AsyncWorkQueue, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.events.keep(count=1_000)
    await fill(queue, 1)
    failing = Failing(engine_of(queue).run, engine_of(queue).read)
    stream = LeaseSets(failing, "s", lease_ms=600, retry_timeout=10)
    await stream.take_over()
    await stream.lease(1, 1)
    keeping = asyncio.create_task(stream.keep_renewing())

    async def renewed() -> bool:
        return "renewed" in [event.what async for event in queue.events(follow=False)]

    await until("it is renewed", renewed)
    assert failing.failed
    assert "ZeroDivisionError" in caplog.text
    await stream.complete(1)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await queue.events.stop()
    await all_done(redis, queue)


async def test_a_newer_reader_takes_over(queue: AsyncWorkQueue) -> None:
    names = await fill(queue, 10)
    older, newer = reader_of(queue, lease_ms=300), reader_of(queue)
    await older.take_over()
    await older.lease(1, 5)
    await newer.take_over()
    for call in (older.lease(2, 5), older.complete(1), older.waiting(), read(queue, older, 1)):
        with pytest.raises(StreamTakenOver, match="another query has taken over the lease stream s"):
            await call
    async with asyncio.timeout(120):
        await older.keep_renewing()  # ends by itself
    assert (await newer.lease(1, 5)).found
    assert await read(queue, newer, 1) == names[:5]
    assert await queue.queue_len() == 5


async def test_calls_wait_for_a_server_that_is_away(make_queue: MakeQueue, proxy: Proxy) -> None:
    queue = make_queue(url=proxy.url)
    await fill(queue, 1)
    stream, hasty = reader_of(queue), reader_of(queue, retry_timeout=0.1)
    await stream.take_over()
    await proxy.fail()
    with pytest.raises(ConnectionLost):
        await hasty.take_over()
    leasing = asyncio.create_task(stream.lease(1, 1))
    await asyncio.sleep(0)
    await proxy.heal()
    async with asyncio.timeout(120):
        assert (await leasing).size == 1
