"""Leases are kept whatever handlers do to the event loop; what is lost is cut off and fenced."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from leasehold import Item
from leasehold.queue.internals import twin as make_twin
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasehold.worker import RetryPolicy
from tests.eventually import eventually
from tests.queue.asking import take
from tests.queue.keyspace import calls
from tests.worker.working import AT_ONCE, add, counted, finished, new_worker, the_dead, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue
    from leasehold.queue.leasing import LeaseDispatcher
    from leasehold.worker import Worker
    from leasehold.worker.run import ActiveRun
    from tests.queue.fixtures import MakeQueue


async def blocking_runs_once(
    queue: AsyncWorkQueue, rival: AsyncWorkQueue, lease_time: float, seconds: float
) -> None:
    """Run a handler that blocks the event loop; a thread with a loop of its own tries to get its item."""
    runs: list[int] = []
    grabbed: list[bytes] = []
    begun = threading.Event()
    worker = new_worker(lease_time=lease_time, concurrency=2)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        runs.append(lease.attempt)
        begun.set()
        time.sleep(seconds)  # noqa: ASYNC251 - the very thing that must not be done

    async def grab() -> None:
        async with make_twin(rival) as other:
            lease = await other.lease(60, timeout=seconds - 0.5)
            if lease is not None:
                grabbed.append(lease.data)

    def grab_apart() -> None:
        begun.wait(20)
        asyncio.run(grab())

    await add(queue, b"blocks")
    thread = threading.Thread(target=grab_apart)
    thread.start()
    async with working(worker):
        await asyncio.to_thread(begun.wait, 20)  # this is back when the event loop is no longer blocked
        await finished(queue)
    await asyncio.to_thread(thread.join)
    assert runs == [1]
    assert not grabbed
    assert (await queue.counts()).total == 0


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await blocking_runs_once(queue, make_queue(), lease_time=2, seconds=5)


@pytest.mark.slow
async def test_a_handler_that_blocks_the_event_loop_for_20_s_under_a_2_s_lease_runs_once(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await blocking_runs_once(queue, make_queue(), lease_time=2, seconds=20)


async def test_what_waits_behind_a_handler_that_blocks_goes_to_others(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """Also what was taken ahead, and what is on its way to the blocked process."""
    worker = new_worker(concurrency=1, lease_time=30)
    begun, others = threading.Event(), make_queue()
    grabbed: list[tuple[bytes, int]] = []

    def dispatcher() -> LeaseDispatcher:
        return queue._engine()._dispatcher

    @worker.handler(queue)
    async def handle(payload: bytes) -> None:
        if payload == b"blocks":
            while dispatcher()._in_flight:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)  # what an unread answer brings is nobody else's
            begun.set()
            time.sleep(3)  # noqa: ASYNC251 - the very thing that must not be done

    async def grab() -> None:
        async with make_twin(others) as other:
            for _ in range(3):
                lease = await other.lease(60, timeout=2.5)
                if lease is not None:
                    grabbed.append((lease.data, lease.attempt))

    def grab_apart() -> None:
        begun.wait(20)
        asyncio.run(grab())

    thread = threading.Thread(target=grab_apart)
    thread.start()
    await queue.add_items(Item(b"quick") for _ in range(300))
    await add(queue, b"blocks", b"a", b"b", b"c")
    async with working(worker):
        await asyncio.to_thread(thread.join)
    assert grabbed == [(b"a", 1), (b"b", 1), (b"c", 1)]


async def test_what_has_ended_is_kept_past_its_limit_until_it_is_settled(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    worker = new_worker(concurrency=2, lease_time=1)
    begun, others = threading.Event(), make_queue()
    grabbed: list[bytes] = []

    @worker.handler(queue, timeout=0.5)
    async def handle(payload: bytes) -> None:
        if payload == b"blocks":
            begun.set()
            time.sleep(6)  # noqa: ASYNC251 - so that the outcome of the other cannot be sent

    async def grab() -> None:
        async with make_twin(others) as other:
            while lease := await other.lease(60, timeout=2.5):
                grabbed.append(lease.data)

    def grab_apart() -> None:
        begun.wait(20)
        asyncio.run(grab())

    thread = threading.Thread(target=grab_apart)
    thread.start()
    await add(queue, b"quick", b"blocks")
    async with working(worker):
        await asyncio.to_thread(thread.join)
    assert grabbed == [b"blocks"], "which is past its limit, and is not renewed"


async def test_a_lost_lease_cancels_its_handler_and_fences_its_outcome(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()
    worker = new_worker(lease_time=0.6, concurrency=1)  # it could take the item again itself

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()  # and says that it is done, all the same

    await add(queue, b"x")
    async with working(worker):
        await began.wait()
        # As if it had stood still for longer than its lease: the item falls to somebody else.
        other = make_queue()
        lease = await stolen(redis, other, name)
        async with asyncio.timeout(10):
            await cancelled.wait()
    assert lease.attempt == 2
    assert (await queue.counts()).leased == 1, "the other's"
    assert await other.complete(lease), "the first holder's outcome did not count"


async def test_of_a_batch_the_lost_one_alone_is_nobodys_business(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    go_on = asyncio.Event()
    leases: list[Lease] = []
    worker = new_worker(lease_time=2, concurrency=1)

    @worker.handler(queue, batch=2)
    async def handle(batch: list[Lease]) -> None:
        leases.extend(batch)
        await go_on.wait()

    await add(queue, b"x", b"y")
    async with working(worker):
        await eventually("it has begun", lambda: len(leases) == 2)
        lost = await stolen(redis, make_queue(), name)
        await eventually("the worker knows", lambda: bool(knows_lost(worker)))
        go_on.set()
        await counted(queue, "the other is done", lambda counts: counts.leased == 1)
    assert lost.id == "1"
    assert await lost._queue.complete(lost)


async def stolen(redis: Redis, other: AsyncWorkQueue, name: str) -> Lease:
    """Let the lease of item 1 end, and lease it for another; once more if it was renewed in between."""
    async with asyncio.timeout(20):
        while True:
            await redis.zadd(f"{name}:deadlines", {"1": 1})
            if lease := await other.lease(60, block=False):
                return lease


def knows_lost(worker: Worker) -> list[ActiveRun]:
    assert worker._runtime is not None
    return [run for run in worker._runtime._renewer.held if run.lost]


async def test_a_thread_that_is_stuck_past_its_limit_loses_its_item(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """It is not renewed any more; another worker gets it while the thread is still stuck."""
    let_go, seen = threading.Event(), list[tuple[str, int]]()
    stuck = new_worker(lease_time=1, concurrency=1)
    other = new_worker(lease_time=1, concurrency=1)
    second = make_queue()

    @stuck.handler(queue, timeout=0.3)
    def sticks(_: bytes, lease: Lease) -> None:
        seen.append(("stuck", lease.attempt))
        let_go.wait(20)

    @other.handler(second)
    def works(_: bytes, lease: Lease) -> None:
        seen.append(("other", lease.attempt))

    await add(queue, b"x")
    async with working(stuck):
        await eventually("it is stuck", lambda: len(seen) == 1)
        async with working(other):
            await finished(queue)
        assert stuck.health().running == 1, "its slot is not free before the thread has ended"
        let_go.set()
        await eventually("the slot is free", lambda: stuck.health().running == 0)
    assert seen == [("stuck", 1), ("other", 2)]


@pytest.mark.slow
async def test_a_handler_that_blocks_past_its_limit_is_not_renewed(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    worker = new_worker(lease_time=0.6)
    begun, others = threading.Event(), make_queue()
    grabbed: list[int] = []

    @worker.handler(queue, timeout=0.2)
    async def handle(_: bytes) -> None:
        begun.set()
        time.sleep(3)  # noqa: ASYNC251 - the very thing that must not be done
        await asyncio.sleep(1)  # where its time turns out to be up

    async def grab() -> None:
        async with make_twin(others) as other:
            lease = await take(other, 60, timeout=2.5)
            grabbed.append(lease.attempt)
            await other.complete(lease)

    def grab_apart() -> None:
        begun.wait(20)
        asyncio.run(grab())

    await add(queue, b"x")
    thread = threading.Thread(target=grab_apart)
    thread.start()
    async with working(worker):
        await asyncio.to_thread(thread.join)
        await eventually("it has ended", lambda: worker.health().running == 0)
    assert grabbed == [2]
    assert (await queue.counts()) == (0, 0, 0, 0)


async def test_renewals_of_many_leases_share_their_trips(queue: AsyncWorkQueue, redis: Redis) -> None:
    go_on, running = asyncio.Event(), set[str]()
    worker = new_worker(lease_time=0.6, concurrency=300)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        running.add(lease.id)
        await go_on.wait()

    await queue.add_items(Item(b"x", id=f"{number}") for number in range(300))
    async with working(worker):
        await eventually("all run", lambda: len(running) == 300)
        before = await calls(redis, "evalsha", "eval")
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(1.5)  # in which each lease would end twice
        took = asyncio.get_running_loop().time() - began
        after = await calls(redis, "evalsha", "eval")
        assert (await queue.counts()).leased == 300
        go_on.set()
        await finished(queue)
    assert (after - before) / took < 60, "300 leases are renewed at least four times a second"


async def test_a_poison_item_that_is_never_settled_is_a_dead_letter_in_the_end(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """It was leased again and again, and each time nothing came of it."""
    await add(queue, b"x")
    dying = make_queue()
    for _ in range(3):
        await take(dying, 0.01)
    runs: list[bytes] = []
    worker = new_worker(retry=RetryPolicy(attempts=3))
    worker.handler(queue)(runs.append)
    async with working(worker):
        letter = await the_dead(queue)
    assert not runs
    assert letter.error.startswith("Its 3 attempts are used up, and the last one left no outcome")


async def test_so_is_one_of_a_batch_and_it_takes_no_other_with_it(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    await add(queue, b"poison")
    dying = make_queue()
    for _ in range(AT_ONCE.attempts):
        await take(dying, 0.01)
    await queue.add_item(Item(b"good", id="good"))
    runs: list[list[bytes]] = []
    worker = new_worker()

    @worker.handler(queue, batch=10)
    def handle(payloads: list[bytes]) -> None:
        runs.append(payloads)

    async with working(worker):
        letter = await the_dead(queue)
        await finished(queue)
    assert letter.data == b"poison"
    assert runs == [[b"good"]]
