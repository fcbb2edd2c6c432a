"""What Worqr, Guild Queues and RedisRQ say about running work: a small test for each row."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from leasehold import AsyncWorkQueue, ConnectionLost, Item, Lease, RetryPolicy, Snooze, Worker
from tests.eventually import eventually
from tests.lua.space import snapshot
from tests.seeds.family import Clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

#: A worker for tests: nothing waits for anything.
AT_ONCE = RetryPolicy(attempts=3, first=0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(redis_url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue.from_url(redis_url, name) as queue:
        yield queue


@pytest.fixture
async def timed(redis_url: str, name: str, clock: Clock) -> AsyncIterator[AsyncWorkQueue]:
    """Give a queue whose time is moved by hand."""
    async with AsyncWorkQueue.from_url(redis_url, name, clock=clock) as queue:
        yield queue


def hang(_: bytes) -> None:
    """Do what cannot be cancelled; only its process can be killed."""
    time.sleep(3600)


async def leased(queue: AsyncWorkQueue, item_id: str, *, lease_time: float = 30) -> Lease:
    await queue.add_item(Item("work", id=item_id))
    lease = await queue.lease(lease_time)
    assert lease is not None
    return lease


async def test_wrq_o04_a_task_is_taken_by_one_or_none_is_there(queue: AsyncWorkQueue) -> None:
    assert await queue.lease(30, block=False) is None
    lease = await leased(queue, "task")
    assert (lease.id, lease.data) == ("task", b"work")
    assert await queue.lease(30, block=False) is None


async def test_wrq_o05_a_stopped_task_is_the_next_to_be_taken(queue: AsyncWorkQueue) -> None:
    lease = await leased(queue, "stopped")
    await queue.add_item(Item("work", id="later"))
    assert await queue.release(lease) is True
    again = await queue.lease(30)
    assert again is not None
    assert (again.id, again.attempt) == ("stopped", 1)


async def test_wrq_o06_a_finished_task_leaves_its_result(queue: AsyncWorkQueue) -> None:
    lease = await leased(queue, "task")
    assert await queue.complete(lease, result=b"42") is True
    assert await queue.results.get("task") == b"42"


async def test_wrq_t01_a_list_is_added_without_doubles(queue: AsyncWorkQueue) -> None:
    items = [Item("work", id=item_id) for item_id in ("a", "b", "a")]
    assert await queue.add_items(items) == [True, True, False]


async def test_wrq_t02_a_task_that_always_fails_is_given_up(queue: AsyncWorkQueue) -> None:
    worker = Worker(retry=AT_ONCE)
    attempts = []

    @worker.handler(queue)
    async def fail(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        raise ValueError("always")

    await queue.add_item(Item("work"))
    await worker.drain()
    assert attempts == [1, 2, 3]
    assert (await queue.counts()).dead == 1


async def test_wrq_t03_a_run_that_does_not_cooperate_is_ended(queue: AsyncWorkQueue) -> None:
    worker = Worker(retry=RetryPolicy(attempts=1))
    worker.handler(queue, run_in="process", timeout=2)(hang)
    await queue.add_item(Item("work"))
    async with asyncio.timeout(30):
        await worker.drain()
    [letter] = await queue.dead_letters.list()
    assert "longer than its limit of 2 s" in letter.error


async def test_wrq_t04_a_starved_event_loop_keeps_its_leases(queue: AsyncWorkQueue, name: str) -> None:
    worker = Worker(lease_time=0.5)
    runs = []

    @worker.handler(queue)
    async def starve(data: bytes) -> None:
        runs.append(data)
        time.sleep(2)  # noqa: ASYNC251 - this is the point

    async with AsyncWorkQueue.from_url(str(queue.url), name) as other:
        await queue.add_item(Item("work"))
        draining = asyncio.create_task(worker.drain())
        await eventually("it has run", lambda: bool(runs))
        await draining
        assert await other.lease(30, block=False) is None
    assert runs == [b"work"]


async def test_gld_o03_a_function_is_run_with_a_time_limit_of_its_own(queue: AsyncWorkQueue) -> None:
    worker = Worker(lease_time=30, retry=RetryPolicy(attempts=1))
    seen = []

    @worker.handler(queue, timeout=0.05)
    async def work(data: str) -> None:
        seen.append(data)
        await asyncio.sleep(3600 if data == "long" else 0)

    await queue.add_items([Item("short"), Item("long")])
    await worker.drain()
    assert sorted(seen) == ["long", "short"]
    assert [letter.data for letter in await queue.dead_letters.list()] == [b"long"]


async def test_gld_o11_a_worker_is_started_and_stopped(queue: AsyncWorkQueue) -> None:
    worker = Worker()
    began = asyncio.Event()

    @worker.handler(queue)
    async def work(_: bytes) -> None:
        began.set()

    assert not worker.health().ok
    for _ in range(2):
        running = asyncio.create_task(worker.run())
        await queue.add_item(Item("work"))
        await began.wait()
        assert worker.health().ok
        began.clear()
        worker.stop()
        await running
        assert not worker.health().ok


async def test_gld_o15_a_handler_puts_its_item_off(queue: AsyncWorkQueue) -> None:
    worker = Worker()

    @worker.handler(queue)
    async def later(_: bytes) -> None:
        raise Snooze(3600)

    await queue.add_item(Item("work"))
    await worker.drain()
    [view] = await queue.inspect("scheduled")
    assert view.due is not None
    assert 3500 < view.due - time.time() < 3700


async def test_gld_o17_what_was_put_off_comes_when_it_is_due_behind_what_waits(
    timed: AsyncWorkQueue, clock: Clock
) -> None:
    await timed.add_item(Item("work", id="off"), delay=60)
    await timed.add_item(Item("work", id="waits"))
    clock.advance(60)
    assert [lease.id for lease in await timed.lease_many(2, 30)] == ["waits", "off"]


async def test_gld_o18_a_retry_is_counted_and_waits(timed: AsyncWorkQueue, clock: Clock) -> None:
    lease = await leased(timed, "a")
    policy = RetryPolicy(first=10, jitter=False)
    error = ValueError("why")
    assert await timed.fail(lease, error, retry_in=policy.delay_after(lease.attempt, error))
    assert await timed.lease(30, block=False) is None
    clock.advance(10)
    again = await timed.lease(30)
    assert again is not None
    assert again.attempt == 2
    assert policy.delay_after(again.attempt, error) == 20


async def test_gld_b06_an_error_while_settling_hangs_nobody(queue: AsyncWorkQueue, redis: Redis) -> None:
    worker = Worker(concurrency=1, lease_time=1)
    done = []

    @worker.handler(queue)
    async def cut_all_connections(data: str) -> None:
        await redis.client_kill_filter(_type="normal", skipme=True)
        done.append(data)

    await queue.add_items([Item(f"{n}") for n in range(5)])

    async with asyncio.timeout(30):
        left = True
        while left:
            with contextlib.suppress(ConnectionLost):  # asking what is left was cut off as well
                await worker.drain()
                # What a call has leased whose answer was lost comes back when its lease ends.
                left = (await queue.counts()).total > 0
    assert {f"{n}" for n in range(5)} == set(done)


async def test_gld_b07_a_function_that_returns_nothing_has_completed(queue: AsyncWorkQueue) -> None:
    worker = Worker()
    runs: list[bytes] = []
    worker.handler(queue)(runs.append)
    await queue.add_item(Item("work"))
    await worker.drain()
    assert runs == [b"work"]
    assert await queue.counts() == (0, 0, 0, 0)


async def test_gld_b08_a_run_beyond_its_limit_does_not_go_on_beside_its_retry(queue: AsyncWorkQueue) -> None:
    worker = Worker(retry=AT_ONCE)
    now = most = 0

    @worker.handler(queue, timeout=0.05)
    async def long(_: bytes) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await asyncio.sleep(3600)
        finally:
            now -= 1

    await queue.add_item(Item("work"))
    await worker.drain()
    assert most == 1
    assert (await queue.counts()).dead == 1


async def test_gld_b10_cleaners_that_overlap_do_not_retry_what_runs(queue: AsyncWorkQueue) -> None:
    runs = []

    def worker() -> Worker:
        made = Worker(lease_time=2, clean_every=0.02)

        @made.handler(queue)
        async def work(data: bytes) -> None:
            runs.append(data)
            await asyncio.sleep(4)  # two leases long, and many cleans

        return made

    workers = [worker() for _ in range(2)]
    await queue.add_item(Item("work"))
    running = [asyncio.create_task(one.run()) for one in workers]
    await eventually("it is done", lambda: bool(runs))
    while (await queue.counts()).total:  # noqa: ASYNC110 - it is the server's state
        await asyncio.sleep(0.05)
    for one in workers:
        one.stop()
    await asyncio.gather(*running)
    assert runs == [b"work"]


async def test_gld_b11_what_is_due_is_delivered_once_by_two_resumers(
    timed: AsyncWorkQueue, redis_url: str, name: str, clock: Clock
) -> None:
    await timed.add_items([Item("work", id=f"{n}") for n in range(50)], delay=60)
    clock.advance(60)
    async with AsyncWorkQueue.from_url(redis_url, name, clock=clock) as other:
        await asyncio.gather(*(queue.light_clean() for queue in (timed, other) * 5))
        leases = [await queue.lease_many(50, 30, timeout=0.1) for queue in (timed, other)]
    assert sorted(lease.id for some in leases for lease in some) == sorted(f"{n}" for n in range(50))


async def test_gld_b12_the_worker_and_a_cleaner_do_not_both_retry(
    timed: AsyncWorkQueue, clock: Clock, redis: Redis, name: str
) -> None:
    lease = await leased(timed, "a")
    clock.advance(31)
    assert (await timed.light_clean()).reclaimed == 1
    assert await timed.fail(lease, "too late", retry_in=0) is False
    [again] = await timed.lease_many(10, 30)
    assert await timed.fail(lease, "and again", retry_in=0) is False
    assert await timed.complete(again) is True
    assert await timed.fail(again, "after its end", retry_in=0) is False
    assert set(await snapshot(redis, name)) <= {"fence"}


async def test_rrq_o05_what_was_not_acknowledged_comes_again_and_is_counted(
    timed: AsyncWorkQueue, clock: Clock
) -> None:
    lease = await leased(timed, "a")
    clock.advance(30)
    again = await timed.lease(30)
    assert again is not None
    assert (again.id, again.data, again.attempt) == ("a", lease.data, lease.attempt + 1)


async def test_rrq_t04_each_item_has_a_lease_time_of_its_own(timed: AsyncWorkQueue, clock: Clock) -> None:
    await leased(timed, "long", lease_time=timedelta(hours=1).total_seconds())
    await leased(timed, "short", lease_time=1)
    clock.advance(1)
    assert [lease.id for lease in await timed.lease_many(10, 30)] == ["short"]


async def test_rwq_k04_a_worker_cleans_by_itself(queue: AsyncWorkQueue, redis: Redis) -> None:
    # A foreign worker took it and died before it could mark its lease.
    await redis.set(f"{queue.name}:item:lost", b"work")
    await redis.lpush(f"{queue.name}:processing", "lost")
    worker = Worker(clean_every=0.5)
    done = asyncio.Event()

    @worker.handler(queue)
    async def work(_: bytes) -> None:
        done.set()

    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(20):
        await done.wait()
    worker.stop()
    await running
