"""Leases are renewed even if a handler blocks the event loop; the outcome of a lost lease is discarded."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasehold import Item
from leasehold.queue.internals import running_engine, twin
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasehold.worker import RetryPolicy
from tests.eventually import eventually
from tests.queue.asking import take
from tests.queue.keyspace import calls
from tests.worker.working import (
    AT_ONCE,
    SHORT_LEASE,
    add,
    counted,
    finished,
    new_worker,
    renewed,
    the_dead,
    working,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from leasehold import AsyncWorkQueue
    from leasehold.testing import Clock
    from leasehold.worker import Worker
    from leasehold.worker.run import ActiveRun
    from tests.queue.fixtures import MakeQueue


def in_thread(act: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
    """Run a coroutine in a thread with its own event loop, as another process would."""
    return asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(act()))


@pytest.mark.seed("WRQ-O10", "WRQ-T4")
async def test_leases_are_renewed_while_a_handler_blocks_the_event_loop(
    make_queue: MakeQueue, redis_url: str, clock: Clock
) -> None:
    queue, rival = make_queue(clock=clock), make_queue(clock=clock)
    begun, unblock = threading.Event(), threading.Event()
    attempts: list[int] = []
    stolen: list[Lease] = []
    worker = new_worker(lease_time=SHORT_LEASE, concurrency=2)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        begun.set()
        unblock.wait(30)

    async def watch() -> None:
        begun.wait(20)
        try:
            async with Redis.from_url(redis_url) as redis, twin(rival) as other:
                for _ in range(15):  # ten lease times
                    await renewed(redis, other, clock, "1")
                    if lease := await other.lease(60, block=False):
                        stolen.append(lease)
        finally:
            unblock.set()

    await add(queue, b"x")
    watching = in_thread(watch)
    async with working(worker):
        await watching
        await finished(queue)
    assert attempts == [1]
    assert not stolen


@pytest.mark.long
@pytest.mark.seed("WRQ-G10", "GLD-B10")
async def test_a_handler_that_blocks_the_event_loop_for_20_s_under_a_2_s_lease_runs_once(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    rival = make_queue()
    attempts: list[int] = []
    stolen: list[Lease] = []
    begun = threading.Event()
    worker = new_worker(lease_time=2, concurrency=2)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        begun.set()
        time.sleep(20)  # noqa: ASYNC251 - what a handler must not do

    async def steal() -> None:
        begun.wait(20)
        async with twin(rival) as other:
            if lease := await other.lease(60, timeout=19):
                stolen.append(lease)

    await add(queue, b"x")
    stealing = in_thread(steal)
    async with working(worker):
        await stealing
        await finished(queue)
    assert attempts == [1]
    assert not stolen


async def test_items_that_wait_behind_a_handler_that_blocks_go_to_other_workers(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """This includes items leased ahead, and items that the server moves to the blocked process."""
    worker = new_worker(concurrency=1, lease_time=30)
    others = make_queue()
    begun, unblock = threading.Event(), threading.Event()
    leased: list[tuple[bytes, int]] = []

    @worker.handler(queue)
    async def handle(payload: bytes) -> None:
        if payload == b"blocks":
            engine = running_engine(queue)
            assert engine is not None
            while engine._dispatcher._in_flight:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0)  # items of a reply in flight could not be released
            begun.set()
            unblock.wait(30)

    async def lease_all() -> None:
        begun.wait(20)
        try:
            async with twin(others) as other:
                for _ in range(3):
                    lease = await take(other, 60)
                    leased.append((lease.data, lease.attempt))
        finally:
            unblock.set()

    leasing = in_thread(lease_all)
    await queue.add_items(Item(b"quick") for _ in range(300))
    await add(queue, b"blocks", b"a", b"b", b"c")
    async with working(worker):
        await leasing
    assert leased == [(b"a", 1), (b"b", 1), (b"c", 1)]


async def test_past_its_time_limit_a_run_is_renewed_only_if_it_has_finished(
    make_queue: MakeQueue, redis_url: str, clock: Clock
) -> None:
    """The outcome of the finished run cannot be sent, since the other one blocks the event loop."""
    queue, rival = make_queue(clock=clock), make_queue(clock=clock)
    begun, unblock = threading.Event(), threading.Event()
    cancelled = asyncio.Event()
    leased: list[tuple[str, int]] = []
    worker = new_worker(concurrency=2, lease_time=SHORT_LEASE)

    @worker.handler(queue, timeout=0.1)
    async def handle(payload: bytes) -> None:
        if payload == b"blocks":
            begun.set()
            unblock.wait(30)
            try:
                await asyncio.Event().wait()  # cancelled here, since the time limit has passed
            finally:
                cancelled.set()

    async def lease_all() -> None:
        begun.wait(20)
        try:
            async with Redis.from_url(redis_url) as redis, twin(rival) as other:
                for _ in range(100):
                    await renewed(redis, other, clock, "1")
                    if lease := await other.lease(60, block=False):
                        leased.append((lease.id, lease.attempt))
                        assert await other.complete(lease)
                        break
                for _ in range(5):
                    await renewed(redis, other, clock, "1")
                    assert await other.lease(60, block=False) is None
        finally:
            unblock.set()

    await add(queue, b"quick", b"blocks")
    leasing = in_thread(lease_all)
    async with working(worker):
        await leasing
        async with asyncio.timeout(20):
            await cancelled.wait()
        await finished(queue)
    assert leased == [("2", 2)]
    assert await queue.counts() == (0, 0, 0, 0)


@pytest.mark.seed("WRQ-G9", "WRQ-B9")
async def test_a_lost_lease_cancels_its_handler_and_its_outcome_is_rejected(
    make_queue: MakeQueue, redis: Redis, name: str, clock: Clock
) -> None:
    queue, other = make_queue(clock=clock), make_queue(clock=clock)
    began, cancelled = asyncio.Event(), asyncio.Event()
    worker = new_worker(lease_time=SHORT_LEASE, concurrency=1)

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()  # and returns, as if the work were done

    await add(queue, b"x")
    async with working(worker):
        await began.wait()
        lease = await stolen(redis, other, name)
        async with asyncio.timeout(20):
            await cancelled.wait()
    assert lease.attempt == 2
    assert (await queue.counts()).leased == 1
    assert await other.complete(lease), "the outcome of the first holder was not accepted"


async def test_a_batch_loses_one_lease_and_completes_the_other(
    make_queue: MakeQueue, redis: Redis, name: str, clock: Clock
) -> None:
    queue, other = make_queue(clock=clock), make_queue(clock=clock)
    finish = asyncio.Event()
    leases: list[Lease] = []
    worker = new_worker(lease_time=SHORT_LEASE, concurrency=1)

    @worker.handler(queue, batch=2)
    async def handle(batch: list[Lease]) -> None:
        leases.extend(batch)
        await finish.wait()

    await add(queue, b"x", b"y")
    async with working(worker):
        await eventually("the run has started", lambda: len(leases) == 2)
        lost = await stolen(redis, other, name)
        await eventually("the worker knows of the loss", lambda: bool(with_lost_leases(worker)))
        finish.set()
        await counted(queue, "the other item is completed", lambda counts: counts.leased == 1)
    assert lost.id == "1"
    assert await other.complete(lost)


async def stolen(redis: Redis, other: AsyncWorkQueue, name: str) -> Lease:
    """Let the lease of item 1 expire, and lease the item for another holder."""
    async with asyncio.timeout(20):
        while True:  # it may be renewed in between
            await redis.zadd(f"{name}:deadlines", {"1": 1})
            if lease := await other.lease(60, block=False):
                return lease


def with_lost_leases(worker: Worker) -> list[ActiveRun]:
    assert worker._runtime is not None
    return [run for run in worker._runtime._renewer.held if run.lost]


async def test_a_thread_that_hangs_past_its_time_limit_keeps_its_slot_but_not_its_item(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    unblock, seen = threading.Event(), list[tuple[str, int]]()
    first, second = new_worker(concurrency=1), new_worker(concurrency=1)

    @first.handler(queue, timeout=0.1)
    def hangs(_: bytes, lease: Lease) -> None:
        seen.append(("first", lease.attempt))
        unblock.wait(30)

    @second.handler(make_queue())
    def works(_: bytes, lease: Lease) -> None:
        seen.append(("second", lease.attempt))

    await add(queue, b"x")
    async with working(first):
        await eventually("the thread hangs", lambda: len(seen) == 1)
        async with working(second):
            await finished(queue)
        assert first.health().running == 1
        unblock.set()
        await eventually("the slot is free", lambda: first.health().running == 0)
    assert seen == [("first", 1), ("second", 2)]


@pytest.mark.seed("WRQ-K3")
async def test_many_leases_are_renewed_in_few_calls(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    queue = make_queue(clock=clock)
    finish, running = asyncio.Event(), set[str]()
    worker = new_worker(lease_time=SHORT_LEASE, concurrency=300)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        running.add(lease.id)
        await finish.wait()

    ids = [f"{number}" for number in range(300)]
    await queue.add_items(Item(b"x", id=item_id) for item_id in ids)
    async with working(worker):
        await eventually("all runs have started", lambda: len(running) == 300)
        before = await calls(redis, "evalsha", "eval")
        for _ in range(5):
            await renewed(redis, queue, clock, *ids)
        after = await calls(redis, "evalsha", "eval")
        assert (await queue.counts()).leased == 300
        finish.set()
        await finished(queue)
    assert after - before < 150, "for 1,500 renewals"


async def test_an_item_whose_attempts_all_ended_without_an_outcome_is_a_dead_letter(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await add(queue, b"x")
    crashed = make_queue()
    for _ in range(3):
        await take(crashed, 0.01)
    runs: list[bytes] = []
    worker = new_worker(retry=RetryPolicy(attempts=3))
    worker.handler(queue)(runs.append)
    async with working(worker):
        letter = await the_dead(queue)
    assert not runs
    assert letter.error.startswith("Its 3 attempts are used up, and the last one left no outcome")


async def test_such_an_item_of_a_batch_takes_no_other_with_it(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await add(queue, b"crashes")
    crashed = make_queue()
    for _ in range(AT_ONCE.attempts):
        await take(crashed, 0.01)
    await queue.add_item(Item(b"good", id="good"))
    runs: list[list[bytes]] = []
    worker = new_worker()

    @worker.handler(queue, batch=10)
    def handle(payloads: list[bytes]) -> None:
        runs.append(payloads)

    async with working(worker):
        letter = await the_dead(queue)
        await finished(queue)
    assert letter.data == b"crashes"
    assert runs == [[b"good"]]
