"""A worker that stops releases its items: those that have not finished return to the front, in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Fleet, Item, QueueClosed, Worker
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.leasing import LeaseDispatcher
from leasequeue.worker import executor, lease_renewer, runtime
from tests.eventually import eventually
from tests.queue.asking import registered, until
from tests.queue.keyspace import audit
from tests.worker.working import SHORT_LEASE, Gate, add, counted, new_worker, order_of, working

if TYPE_CHECKING:
    import redis as redis_py
    from redis.asyncio import Redis

    from leasequeue.testing import Clock, Proxy
    from tests.queue.fixtures import MakeQueue


async def started(
    worker: Worker, queue: AsyncWorkQueue, runs: int, *, of: int
) -> tuple[Gate, asyncio.Task[None]]:
    """Start a worker on so many items, and return when so many runs have started."""
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * of)
    running = asyncio.create_task(worker.run())
    await gate.reached(runs)
    return gate, running


async def in_fleet(queue: AsyncWorkQueue) -> bool:
    return bool(await Fleet(queue).workers())


@pytest.mark.seed("GLD-O11")
async def test_a_stop_lets_runs_finish_and_releases_the_other_items(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    worker = new_worker(concurrency=2)
    gate, running = await started(worker, queue, 2, of=5)
    worker.stop()
    await counted(queue, "the other items are released", lambda counts: counts.waiting == 3)
    assert not running.done()
    gate.opened.set()
    await running
    assert gate.done == ["1", "2"]
    assert await order_of(queue) == [("3", 0), ("4", 0), ("5", 0)]
    assert not (await audit(redis, name)).leased


async def test_a_worker_that_retires_waits_for_its_runs_until_it_is_stopped(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    worker = new_worker(concurrency=2, grace=0.1)
    gate, running = await started(worker, queue, 2, of=5)
    worker.retire()
    await eventually("it retires", lambda: worker.retiring)
    await counted(queue, "the other items are released", lambda counts: counts.waiting == 3)
    _, pending = await asyncio.wait([running], timeout=0.3)
    assert pending
    worker.stop()
    await running
    assert gate.done == []
    assert [item_id for item_id, _ in await order_of(queue)] == ["1", "2", "3", "4", "5"]
    assert not (await audit(redis, name)).leased


async def test_a_worker_retires_after_its_maximum_of_runs(queue: AsyncWorkQueue) -> None:
    worker = new_worker(concurrency=1)
    worker.max_runs = 2
    gate, running = await started(worker, queue, 1, of=4)
    gate.opened.set()
    await running
    assert (worker.retiring, worker.runs) == (True, 0)
    assert gate.done == ["1", "2"]
    assert await order_of(queue) == [("3", 0), ("4", 0)]


@pytest.mark.parametrize("ends", ["stop", "retire"])
async def test_a_run_that_ends_as_the_worker_stops_makes_no_room_for_another(
    queue: AsyncWorkQueue, ends: str
) -> None:
    worker = new_worker(concurrency=2)
    gate, running = await started(worker, queue, 2, of=5)
    getattr(worker, ends)()
    gate.opened.set()  # the runs end before the worker's task has seen that it was stopped
    await running
    assert gate.done == ["1", "2"]
    assert await order_of(queue) == [("3", 0), ("4", 0), ("5", 0)]


async def test_an_item_that_is_delivered_as_the_worker_stops_is_released(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    worker = new_worker()
    gate = Gate(worker, queue)

    async def elsewhere() -> None:
        async with AsyncWorkQueue.from_url(redis_url, queue.name) as other:
            await other.add_item(Item(b"x", id="later"))

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    running = asyncio.create_task(worker.run())
    await registered(redis, queue)
    await until("the worker is in the fleet", lambda: in_fleet(queue))
    worker.stop()
    thread.start()
    thread.join()  # the event loop stands still until the item has been sent to it
    await running
    assert gate.begun == []
    assert await order_of(queue) == [("later", 0)]


@pytest.mark.seed("WRQ-O14")
async def test_items_interrupted_after_the_grace_time_return_to_the_front_uncounted(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    worker = new_worker(concurrency=2, grace=0.1)
    gate, running = await started(worker, queue, 2, of=4)
    worker.stop()
    await running
    assert sorted(gate.cancelled) == ["1", "2"]
    found = await order_of(queue)
    assert sorted(found[:2]) == [("1", 0), ("2", 0)]
    assert found[2:] == [("3", 0), ("4", 0)]
    assert not (await audit(redis, name)).leased


async def test_stop_now_interrupts_runs_at_once_even_after_a_stop(queue: AsyncWorkQueue) -> None:
    worker = new_worker(grace=3600)
    gate, running = await started(worker, queue, 1, of=1)
    worker.stop()
    await asyncio.sleep(0.05)
    assert not running.done()
    worker.stop(now=True)
    async with asyncio.timeout(120):
        await running
    assert gate.cancelled == ["1"]
    assert await order_of(queue) == [("1", 0)]


async def test_a_worker_can_be_stopped_from_another_thread(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    Gate(worker, queue)
    async with working(worker) as running:
        await eventually("it runs", lambda: worker.health().ok)
        await asyncio.to_thread(worker.stop)
        async with asyncio.timeout(120):
            await running


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_worker_releases_everything(
    queue: AsyncWorkQueue, redis: Redis, name: str, times: int
) -> None:
    """Even if it is cancelled again at once."""
    worker = new_worker(concurrency=2, grace=3600)
    gate, running = await started(worker, queue, 2, of=5)
    for _ in range(times):
        running.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(gate.cancelled) == ["1", "2"]
    assert sorted(await order_of(queue)) == [(f"{number}", 0) for number in range(1, 6)]
    assert not (await audit(redis, name)).leased
    await eventually("the background thread has ended", lambda: not background_threads())
    assert worker.health().reasons == ("the worker is not running",)


def background_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "leasequeue background"]


def test_a_worker_that_the_end_of_asyncio_run_cancels_leaves_nothing_leased(
    plain: redis_py.Redis, redis_url: str, name: str
) -> None:
    """When the main task fails, all tasks are cancelled, also those of the worker: at each turn of a run."""

    async def fail(turn: int) -> None:
        queue, worker = AsyncWorkQueue.from_url(redis_url, name), new_worker(concurrency=8)
        begun = asyncio.Event()

        @worker.handler(queue)
        async def handle(_: bytes) -> None:
            begun.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        working = asyncio.create_task(worker.run())
        await queue.add_items([Item(b"x") for _ in range(5)])
        await begun.wait()
        for _ in range(turn):
            await asyncio.sleep(0)
        assert not working.done()
        raise ZeroDivisionError

    for turn in range(10):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(fail(turn))
        assert plain.zcard(f"{name}:deadlines") == 0, f"after {turn} turns"


async def test_the_item_of_a_handler_that_ignores_its_cancellation_is_released(
    queue: AsyncWorkQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "HURRIED_SECONDS", 0.05)
    finish = asyncio.Event()
    began = asyncio.Event()
    worker = new_worker(grace=0)

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        while not finish.is_set():
            began.set()
            try:
                await finish.wait()
            except asyncio.CancelledError:
                continue

    await add(queue, b"x")
    with caplog.at_level(logging.CRITICAL):
        running = asyncio.create_task(worker.run())
        await began.wait()
        worker.stop(now=True)
        async with asyncio.timeout(120):
            await running
        assert await order_of(queue) == [("1", 0)]
        finish.set()
    assert not caplog.records


@pytest.mark.parametrize("error", [RuntimeError("interrupted"), ExceptionGroup("g", [ValueError()])])
async def test_a_run_whose_interruption_causes_an_error_does_not_count_as_an_attempt(
    queue: AsyncWorkQueue, error: Exception
) -> None:
    worker = new_worker(grace=0)
    began = asyncio.Event()

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise error from None

    await add(queue, b"x")
    async with working(worker):
        await began.wait()
    assert await order_of(queue) == [("1", 0)]


@pytest.mark.seed("WRQ-G3")
async def test_many_items_that_were_leased_ahead_return_in_order(
    queue: AsyncWorkQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are more than one call releases."""
    monkeypatch.setattr(lease_renewer, "STALE_SECONDS", 60)  # else some may be released early
    count = 3000
    await queue.add_items(Item(b"x", id=f"{number}") for number in range(count))
    worker = new_worker(concurrency=1)
    seen: list[int] = []

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        seen.append(int(lease.id))
        if len(seen) == 1000:
            worker.stop()

    await worker.run()
    assert seen == list(range(len(seen)))
    left = [int(item_id) for item_id in (await audit(redis, name)).waiting]
    assert left == list(range(len(seen), count))
    assert not (await audit(redis, name)).leased


@pytest.mark.parametrize("batch", [None, 7])
async def test_stops_under_load_leave_nothing_leased(
    make_queue: MakeQueue, redis: Redis, name: str, batch: int | None
) -> None:
    """Stops at any moment: during a lease, when items arrive, during acknowledgements."""
    queue = make_queue()
    await queue.add_items(Item(b"x", id=f"{number}") for number in range(2000))
    done: list[Any] = []

    async def handle(payload: Any) -> None:
        await asyncio.sleep(0)
        done.append(payload)

    handle.__annotations__["payload"] = bytes if batch is None else list[bytes]
    for turn in range(30):
        worker = new_worker(concurrency=20)
        worker.handler(queue, batch=batch)(handle)
        running = asyncio.create_task(worker.run())
        before = len(done)
        if turn % 3:
            await until("it has worked", worked_since(done, before))
        else:
            for _ in range(turn + 1):
                await asyncio.sleep(0)
        if turn % 2:
            running.cancel()
        else:
            worker.stop(now=turn % 4 == 0)
        await asyncio.gather(running, return_exceptions=True)
        found = await audit(redis, name)
        assert not found.leased, f"in turn {turn}"
        if len(found.waiting) < 500:
            await queue.add_items(Item(b"x") for _ in range(1000))
    assert {view.attempt for view in await queue.inspect(count=1000)} == {0}


def worked_since(done: list[Any], before: int) -> Any:
    async def has_worked() -> bool:
        return len(done) > before

    return has_worked


async def test_a_stop_while_the_server_is_away_leaves_items_until_their_leases_expire(
    make_queue: MakeQueue, proxy: Proxy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "SHORTEST_ACKNOWLEDGE", 0.1)
    queue, other = make_queue(url=proxy.url, reply_timeout=1, clock=clock), make_queue(clock=clock)
    worker = new_worker(concurrency=2, grace=0.1, lease_time=SHORT_LEASE)
    gate, running = await started(worker, queue, 2, of=4)
    proxy.refuse()
    await proxy.cut()
    worker.stop()
    async with asyncio.timeout(120):
        await running
    await eventually("the background thread has ended", lambda: not background_threads())
    assert sorted(gate.cancelled) == ["1", "2"]
    assert (await other.counts()).total == 4
    clock.advance(SHORT_LEASE)
    assert sorted(lease.id for lease in await other.lease_many(4, 60, block=False)) == ["1", "2", "3", "4"]


async def test_a_stop_while_the_server_is_away_for_a_moment_releases_everything(
    make_queue: MakeQueue, proxy: Proxy, redis: Redis, name: str
) -> None:
    queue = make_queue(url=proxy.url, reply_timeout=1)
    worker = new_worker(concurrency=2, grace=0.1)
    gate, running = await started(worker, queue, 2, of=4)
    proxy.refuse()
    await proxy.cut()
    worker.stop()
    await eventually("the runs are interrupted", lambda: len(gate.cancelled) == 2)
    await proxy.accept()
    await running
    assert not (await audit(redis, name)).leased
    assert sorted(await order_of(make_queue())) == [(f"{number}", 0) for number in range(1, 5)]


async def test_a_worker_whose_queue_is_closed_stops_and_releases_everything(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue()
    worker = new_worker(concurrency=2, grace=3600)
    gate, running = await started(worker, queue, 2, of=3)
    await queue.close()
    gate.opened.set()
    with pytest.raises(QueueClosed):
        async with asyncio.timeout(120):
            await running
    assert not (await audit(redis, name)).leased


# -------------------------------------------------------------------------------- items that arrive at a stop


@pytest.mark.parametrize("queues", [1, 2])
async def test_items_are_released_if_the_fetcher_is_cancelled_before_it_gets_them(
    make_queue: MakeQueue, name: str, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    worker = Worker()
    ran: list[bytes] = []

    async def handle(data: bytes) -> None:
        ran.append(data)

    opened = [make_queue(name=f"{name}-{number}") for number in range(queues)]
    for queue in opened:
        worker.handler(queue)(handle)
    leased = False
    distribute = LeaseDispatcher._distribute

    def distribute_and_cancel(dispatcher: LeaseDispatcher, *args: Any) -> None:
        """Cancel the fetcher after a call has its items, and before the task that awaits it runs again."""
        nonlocal leased
        distribute(dispatcher, *args)
        if args[1][3:]:  # the reply has items
            leased = True
            for task in asyncio.all_tasks():
                if task.get_name() == "leasequeue fetcher" or task.get_name().startswith("leasequeue fetch "):
                    task.cancel()

    monkeypatch.setattr(LeaseDispatcher, "_distribute", distribute_and_cancel)
    await opened[0].add_items([Item("one"), Item("two")])
    await worker.run()
    assert leased
    assert ran == []
    assert (await opened[0].counts()).leased == 0
    found = await opened[0].inspect()
    assert [(view.data, view.attempt) for view in found] == [(b"one", 0), (b"two", 0)]


async def test_a_process_that_ends_also_returns_what_has_just_arrived(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    worker = new_worker(concurrency=1, lease_time=3600)
    gate = Gate(worker, queue)
    await add(queue, b"x", b"x")
    running = asyncio.create_task(worker.run())
    await gate.reached(1)
    # As by a blocked move of its event loop.
    assert await redis.lmove(f"{name}:queue", f"{name}:inbox:{queue.session}", "RIGHT", "LEFT") == b"2"
    assert worker._runtime is not None
    worker._runtime.take_nothing_more()
    # The signal handler's thread calls it, while the event loop may be blocked.
    await asyncio.to_thread(worker._runtime.release_from_any_thread, timeout=120)
    assert await redis.exists(f"{name}:inbox:{queue.session}") == 0
    assert {*await redis.lrange(f"{name}:queue", 0, -1)} == {b"1", b"2"}
    gate.opened.set()
    worker.stop()
    await running
