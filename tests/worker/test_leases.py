"""Leases are renewed even if a handler blocks the event loop; the outcome of a lost lease is discarded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import ConnectionLost, Item
from leasequeue.queue.lease import Lease
from leasequeue.queue.queue import engines_of
from leasequeue.worker import Worker
from leasequeue.worker.run import ActiveRun
from tests.eventually import eventually
from tests.queue.asking import take
from tests.queue.keyspace import calls
from tests.worker.working import (
    AT_ONCE,
    SHORT_LEASE,
    Gate,
    add,
    counted,
    dead_letter_of,
    finished,
    new_worker,
    renewed,
    working,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.testing import Clock
    from tests.queue.fixtures import MakeQueue


class Blocker:
    """Blocks an event loop, while another client of the queue acts in a thread with its own event loop."""

    def __init__(self) -> None:
        self._begun, self._over = threading.Event(), threading.Event()

    def block(self, seconds: float = 30) -> None:
        self._begun.set()
        self._over.wait(seconds)

    def act(
        self, redis_url: str, queue: AsyncWorkQueue, act: Callable[[AsyncWorkQueue, Redis], Awaitable[None]]
    ) -> asyncio.Future[None]:
        """Act on a queue while this event loop is blocked, and then unblock it."""

        async def in_thread() -> None:
            self._begun.wait(20)
            try:
                async with Redis.from_url(redis_url) as redis:
                    await act(queue, redis)
            finally:
                self._over.set()

        return asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(in_thread()))


@pytest.mark.seed("WRQ-O10", "WRQ-T4", "WRQ-G10", "GLD-B10")
async def test_leases_are_renewed_while_a_handler_blocks_the_event_loop(
    make_queue: MakeQueue, redis_url: str, clock: Clock
) -> None:
    queue, rival = make_queue(clock=clock), make_queue(clock=clock)
    blocker, attempts = Blocker(), list[int]()

    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        blocker.block()

    async def watch(other: AsyncWorkQueue, redis: Redis) -> None:
        for _ in range(15):  # ten lease times
            await renewed(redis, other, clock, "1")
            assert not await other.lease(60, block=False)

    watching = blocker.act(redis_url, rival, watch)
    worker = new_worker(lease_time=SHORT_LEASE, concurrency=2)
    worker.handler(queue)(handle)
    await add(queue, b"x")
    async with working(worker):
        await watching
        await finished(queue)
    assert attempts == [1]


async def test_a_renewed_lease_names_the_session_that_leased_it(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    """The thread that renews has its own connections, and acts for the session of the main event loop."""
    queue = make_queue(clock=clock)
    worker = new_worker(lease_time=SHORT_LEASE)
    gate = Gate(worker, queue)
    await add(queue, b"x")
    async with working(worker):
        await gate.reached(1)
        await redis.delete(f"{queue.name}:lease:1")
        await renewed(redis, queue, clock, "1")
        assert await redis.get(f"{queue.name}:lease:1") == queue.session.encode()
        gate.opened.set()
        await finished(queue)


@pytest.mark.parametrize("name", ["id", "token", "attempt"])
async def test_a_handler_that_would_change_its_lease_fails_and_all_leases_are_renewed(
    make_queue: MakeQueue, redis: Redis, clock: Clock, name: str
) -> None:
    queue = make_queue(clock=clock)
    worker = new_worker(lease_time=SHORT_LEASE)
    errors, goes_on = list[AttributeError](), asyncio.Event()

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        try:
            if lease.id == "1":
                setattr(lease, name, None)
        except AttributeError as error:
            errors.append(error)
        await goes_on.wait()

    await add(queue, b"x", b"x")
    async with working(worker):
        await eventually("both run", lambda: worker.health().running == 2)
        for _ in range(3):
            await renewed(redis, queue, clock, "1", "2")
        assert len(errors) == 1
        assert await queue.cancel("2")
        await eventually("it is cancelled", lambda: worker.health().running == 1)
        goes_on.set()
        await finished(queue)


async def test_items_that_wait_behind_a_handler_that_blocks_go_to_other_workers(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis_url: str
) -> None:
    """This includes items leased ahead, and items that the server moves to the blocked process."""
    worker = new_worker(concurrency=1, lease_time=30)
    blocker, leased = Blocker(), list[tuple[bytes, int]]()

    @worker.handler(queue)
    async def handle(payload: bytes) -> None:
        if payload == b"blocks":
            engine = engines_of(queue).running
            assert engine is not None
            quiet = 0
            while quiet < 10:  # items of a reply could not be released before they have reached the worker
                quiet = 0 if engine.leasing._gate.busy else quiet + 1
                await asyncio.sleep(0)
            blocker.block()

    async def lease_all(other: AsyncWorkQueue, _: Redis) -> None:
        for _turn in range(3):
            lease = await take(other, 60)
            leased.append((lease.data, lease.attempt))

    leasing = blocker.act(redis_url, make_queue(), lease_all)
    await queue.add_items(Item(b"quick") for _ in range(300))
    await add(queue, b"blocks", b"a", b"b", b"c")
    async with working(worker):
        await leasing
    # Those leased ahead and the one that was on its way return separately, so in any order.
    assert sorted(leased) == [(b"a", 1), (b"b", 1), (b"c", 1)]


async def test_past_its_time_limit_a_run_is_renewed_only_if_it_has_finished(
    make_queue: MakeQueue, redis_url: str, clock: Clock
) -> None:
    """The outcome of the finished run cannot be sent, since the other one blocks the event loop."""
    queue, rival = make_queue(clock=clock), make_queue(clock=clock)
    blocker, leased, cancelled = Blocker(), list[tuple[str, int]](), list[bytes]()

    async def handle(payload: bytes) -> None:
        if payload == b"blocks":
            blocker.block()
            try:
                await asyncio.Event().wait()  # cancelled here, since the time limit has passed
            finally:
                cancelled.append(payload)

    async def lease_all(other: AsyncWorkQueue, redis: Redis) -> None:
        for _ in range(100):
            await renewed(redis, other, clock, "1")
            if lease := await other.lease(60, block=False):
                leased.append((lease.id, lease.attempt))
                assert await other.complete(lease)
                break
        for _ in range(5):
            await renewed(redis, other, clock, "1")
            assert await other.lease(60, block=False) is None

    leasing = blocker.act(redis_url, rival, lease_all)
    worker = new_worker(concurrency=2, lease_time=SHORT_LEASE)
    worker.handler(queue, timeout=0.1)(handle)
    await add(queue, b"quick", b"blocks")
    async with working(worker):
        await leasing
        await finished(queue)
    assert cancelled == [b"blocks"]
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
        async with asyncio.timeout(120):
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
    async with asyncio.timeout(120):
        while True:  # it may be renewed in between
            await redis.zadd(f"{name}:deadlines", {"1": 1})
            if lease := await other.lease(60, block=False):
                return lease


def with_lost_leases(worker: Worker) -> list[ActiveRun]:
    assert worker._runtime is not None
    return [run for run in worker._runtime.renewer.held if run.lost]


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
    worker = new_worker(lease_time=SHORT_LEASE, concurrency=300)
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * 300)
    async with working(worker):
        await gate.reached(300)
        before = await calls(redis, "evalsha", "eval")
        for _ in range(5):
            await renewed(redis, queue, clock, *gate.begun)
        after = await calls(redis, "evalsha", "eval")
        assert (await queue.counts()).leased == 300
        gate.opened.set()
        await finished(queue)
    assert after - before < 150, "for 1,500 renewals"


@pytest.mark.parametrize(("batch", "good"), [(None, b"good"), (10, [b"good"])])
async def test_an_item_whose_attempts_all_ended_without_an_outcome_is_a_dead_letter(
    queue: AsyncWorkQueue, make_queue: MakeQueue, batch: int | None, good: object
) -> None:
    """Another item of its batch is run."""
    await add(queue, b"crashes")
    crashed = make_queue()
    for _ in range(AT_ONCE.attempts):
        await take(crashed, 0.01)
    await queue.add_item(Item(b"good", id="good"))
    runs: list[object] = []
    letter = await dead_letter_of(queue, runs.append, batch=batch)
    assert letter.data == b"crashes"
    assert letter.error.startswith("Its 3 attempts are used up, and the last one left no outcome")
    assert runs == [good]


# --------------------------------------------------------------------------------------------- expired leases


@pytest.fixture
async def leases(queue: AsyncWorkQueue) -> list[Lease]:
    await queue.add_items([Item(b"1"), Item(b"2")])
    return await queue.lease_many(2, 30)


def starts(queue: AsyncWorkQueue, leases: list[Lease]) -> bool:
    """Return whether a run of these items starts."""
    worker = Worker()

    @worker.handler(queue, batch=2)
    async def work(data: list[bytes]) -> None: ...

    task = asyncio.current_task()
    assert task is not None
    return ActiveRun(worker.handlers[0], leases).start(task, asyncio.get_running_loop())


async def test_no_run_starts_under_an_expired_lease_unless_it_was_renewed(
    queue: AsyncWorkQueue, leases: list[Lease]
) -> None:
    leases[1]._renewed(time.monotonic() - 60, 30_000, 0)  # as if the process had stood still for a minute
    assert not starts(queue, leases)
    assert await queue.renew(leases[1], 30)
    assert starts(queue, leases)


async def test_a_renewal_that_was_asked_for_and_fails_is_made_again_before_leases_are_due(
    make_queue: MakeQueue, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been to learn of a cancellation, on a connection that was cut as well.

    Those of other queues, which may be on other servers, are not made again.
    """
    worker = new_worker(lease_time=600)
    other = make_queue(name=f"{queue.name}-other")
    gates = [Gate(worker, one) for one in (queue, other)]
    for one in (queue, other):
        await add(one, b"x")
    async with working(worker):
        for gate in gates:
            await gate.reached(1)
        renew_many, tries = type(queue).renew_many, Counter[str]()

        async def fails_twice(one: AsyncWorkQueue, leases: list[Lease], lease_time: float) -> list[bool]:
            tries[one.name] += 1
            if one is queue and tries[one.name] <= 2:
                raise ConnectionLost("it was cut", maybe_applied=False)
            return await renew_many(one, leases, lease_time)

        monkeypatch.setattr(type(queue), "renew_many", fails_twice)
        assert worker._runtime is not None
        worker._runtime.renewer.renew_soon()
        await eventually("it is renewed again", lambda: tries[queue.name] > 2, within=30)
        assert tries[other.name] == 1
        for gate in gates:
            gate.opened.set()
        for one in (queue, other):
            await finished(one)
