"""Failures of items of a lease set, without Spark: recorded first, failed when the set is completed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.queue.bulk import Bulk
from leasequeue.queue.queue import engine_of
from leasequeue.spark import StreamTakenOver
from leasequeue.spark.read.lease_sets import DIES, PAGE, ItemFailure, LeaseSets, record, recorded
from tests.queue.keyspace import audit
from tests.spark.read.test_lease_sets import Losing, all_done, fill, read, reader_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import Clock, MakeQueue

FAILURES = (
    ItemFailure("i0", 0, 10, "Retry: now"),
    ItemFailure("i1", 60_000, 10, "Retry: later"),
    ItemFailure("i2", DIES, 10, "Reject: bad"),
)


async def note(queue: AsyncWorkQueue, stream: LeaseSets, *failures: ItemFailure) -> None:
    """Record failures of the set 1, as a run of its batch does."""
    for at in range(0, max(1, len(failures)), PAGE):
        page = failures[at : at + PAGE]
        await record(engine_of(queue).bulk, stream.set_id(1), page, forget=at == 0, retry_timeout=10)


async def leased(queue: AsyncWorkQueue, count: int, stream: LeaseSets | None = None) -> LeaseSets:
    """Add items, and lease and read them as the set 1."""
    await fill(queue, count)
    stream = stream or reader_of(queue)
    await stream.take_over()
    await stream.lease(1, count)
    assert len(await read(queue, stream, 1)) == count
    return stream


async def check_and_empty(queue: AsyncWorkQueue, redis: Redis, clock: Clock) -> None:
    """Check that i0 to i2 have failed as recorded, and that nothing else is left."""
    assert await queue.counts() == (1, 0, 1, 1)
    await audit(redis, queue.name)
    [letter] = await queue.dead_letters.list()
    assert (letter.id, letter.error, letter.data, letter.attempt) == ("i2", "Reject: bad", b"x" * 10, 1)
    for item_id, error, state in (("i0", "Retry: now", "waiting"), ("i1", "Retry: later", "scheduled")):
        view = await queue.find(item_id)
        assert view is not None
        assert (view.error, view.state, view.attempt) == (error, state, 1)
    clock.now += 61
    again = await queue.lease_many(9, 30, block=False)
    assert {(lease.id, lease.attempt) for lease in again} == {("i0", 2), ("i1", 2)}
    await queue.complete_many(again)
    await queue.dead_letters.drop("i2")
    await all_done(redis, queue)


async def test_failed_items_are_retried_or_dead_when_the_others_are_completed(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    queue = make_queue(clock=clock)
    stream = await leased(queue, 6)
    await note(queue, stream, *FAILURES)
    assert await queue.counts() == (0, 6, 0, 0), "not before the batch is committed"
    await stream.complete(1)
    await check_and_empty(queue, redis, clock)


async def test_a_batch_that_runs_again_is_recorded_anew(queue: AsyncWorkQueue, redis: Redis) -> None:
    stream = await leased(queue, 6)
    await note(queue, stream, *FAILURES)
    after = reader_of(queue)
    await after.take_over()
    assert (await after.restore(1)).held == 6
    await note(queue, after)
    await after.complete(1)
    await all_done(redis, queue)


async def test_many_failures_go_in_steps(queue: AsyncWorkQueue, redis: Redis) -> None:
    stream = await leased(queue, 1_200)
    failures = [ItemFailure(f"i{at}", -1 if at % 2 else 9_000, 10, "é" * 5_000) for at in range(600)]
    await note(queue, stream, *failures)
    assert await recorded(engine_of(queue).bulk, stream.set_id(1), 10) == {one.id: one for one in failures}
    await stream.complete(1)
    assert await queue.counts() == (0, 0, 300, 300)
    await audit(redis, queue.name)
    assert {key async for key in redis.scan_iter(f"{queue.name}:set:*")} == set()


class Dying(Bulk):
    """Stands for a reader that is killed before it completes the first items."""

    dead = False

    async def run(self, script: str, rest: Any = (), **arguments: bytes | int) -> Any:
        if script == "set_complete" and not self.dead:
            raise ZeroDivisionError
        return await super().run(script, rest, **arguments)


async def test_a_reader_killed_after_it_has_failed_items_is_continued(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    queue = make_queue(clock=clock)
    dying = LeaseSets(
        Dying(engine_of(queue).run, engine_of(queue).read), "s", lease_ms=60_000, retry_timeout=10
    )
    stream = await leased(queue, 6, dying)
    await note(queue, stream, *FAILURES)
    with pytest.raises(ZeroDivisionError):
        await stream.complete(1)
    assert await queue.counts() == (1, 3, 1, 1)
    after = reader_of(queue)
    await after.take_over()
    await after.complete(1)
    await check_and_empty(queue, redis, clock)


class Renewing(Bulk):
    """Completes items only when sets have been renewed twice more."""

    def __init__(self, bulk: Bulk) -> None:
        super().__init__(bulk._run, bulk._read_key)
        self.rounds = asyncio.Semaphore(0)

    async def run(self, script: str, rest: Any = (), **arguments: bytes | int) -> Any:
        if script == "set_complete":
            await self.rounds.acquire()
            await self.rounds.acquire()
        reply = await super().run(script, rest, **arguments)
        if script == "stream_hold":
            self.rounds.release()
        return reply


async def test_failed_items_are_not_renewed(make_queue: MakeQueue, redis: Redis, clock: Clock) -> None:
    queue = make_queue(clock=clock)
    renewing = Renewing(engine_of(queue).bulk)
    stream = await leased(queue, 6, LeaseSets(renewing, "s", lease_ms=300, retry_timeout=10))
    await note(queue, stream, *FAILURES)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        while not renewing.rounds.locked():
            await renewing.rounds.acquire()
        keeping = group.create_task(stream.keep_renewing())
        await stream.complete(1)
        keeping.cancel()
    await check_and_empty(queue, redis, clock)


class RenewingSlowly(Bulk):
    """Sends the first renewal late: when items have been failed, if they are failed before it returns."""

    def __init__(self, bulk: Bulk) -> None:
        super().__init__(bulk._run, bulk._read_key)
        self.renewing, self.failed = asyncio.Event(), asyncio.Event()

    async def run(self, script: str, rest: Any = (), **arguments: bytes | int) -> Any:
        if script == "set_renew" and arguments["count"] and not self.renewing.is_set():
            self.renewing.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.failed.wait(), 0.3)
        reply = await super().run(script, rest, **arguments)
        if script == "fail_many":
            self.failed.set()
        return reply


async def test_items_are_not_failed_while_they_are_renewed(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    queue = make_queue(clock=clock)
    slow = RenewingSlowly(engine_of(queue).bulk)
    stream = await leased(queue, 6, LeaseSets(slow, "s", lease_ms=300, retry_timeout=10))
    await note(queue, stream, *FAILURES)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        keeping = group.create_task(stream.keep_renewing())
        await slow.renewing.wait()
        await stream.complete(1)
        keeping.cancel()
    await check_and_empty(queue, redis, clock)


async def test_lost_replies_change_nothing(
    make_queue: MakeQueue, proxy: Proxy, redis: Redis, clock: Clock
) -> None:
    queue = make_queue(clock=clock)
    losing = Losing(engine_of(make_queue(url=proxy.url, reply_timeout=5, clock=clock)).bulk, proxy)
    stream = await leased(queue, 6, LeaseSets(losing, "s", lease_ms=60_000, retry_timeout=30))
    for one in (FAILURES[:2], FAILURES):
        await record(losing, stream.set_id(1), one, forget=True, retry_timeout=30)
    await stream.complete(1)
    assert losing.lost > 3
    await check_and_empty(queue, redis, clock)


async def test_a_run_that_was_taken_over_records_and_fails_nothing(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """Else its failures would be mixed with those of the run that has written the output since."""
    older = await leased(queue, 6)
    newer = reader_of(queue)
    await newer.take_over()
    for call in (
        note(queue, older, *FAILURES),
        recorded(engine_of(queue).bulk, older.set_id(1), 10),
        older.complete(1),
    ):
        with pytest.raises(StreamTakenOver):
            await call
    await newer.complete(1)
    await all_done(redis, queue)


async def test_failed_items_that_other_clients_have_leased_since_are_left_to_them(
    make_queue: MakeQueue, redis: Redis, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(clock=clock)
    stream = await leased(queue, 3)
    await note(queue, stream, *FAILURES)
    clock.now += 99
    others = await queue.lease_many(2, 30, block=False)
    await stream.complete(1)
    assert "3 of 3 failed items were left alone" in caplog.text
    assert await queue.counts() == (1, 2, 0, 0)
    assert await queue.complete_many(others) == [True, True]
    await queue.complete_many(await queue.lease_many(1, 30, block=False))
    await all_done(redis, queue)
