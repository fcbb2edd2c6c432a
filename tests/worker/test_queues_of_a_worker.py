"""Queues of a worker are stopped and started while it runs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Fleet, InvalidArgument, Item, TaskQueue
from leasequeue.errors import WorkerNotRunning
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.queue import engine_of
from leasequeue.views import Limit
from tests.alive.members import no_keys, the_worker
from tests.eventually import eventually
from tests.queue.asking import take
from tests.worker.working import Gate, add, counted, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.worker.handler import Consumer
    from tests.queue.fixtures import MakeQueue

#: With this time until it is dead, a worker sends one heartbeat: an order arrives as a message.
FOR_EVER = 3600.0
HOUR = 3600.0


async def test_what_waits_for_a_slot_is_released_when_its_queue_is_stopped(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    worker = new_worker(concurrency=1, lease_time=HOUR)
    Gate(worker, queue)
    busy = Gate(worker, others := make_queue(name=f"{queue.name}-other"))
    await others.add_item(Item(b"x"))
    async with working(worker):
        await busy.reached(1)
        await queue.add_item(Item(b"x", id="a"))
        leases = await queue.lease_many(1, HOUR, block=False)
        runtime = worker._runtime
        assert runtime is not None
        runtime.fetcher.accept(worker.handlers[0], leases)
        await worker.stop_queue(queue.name, grace=0)
        assert await queue.counts() == (1, 0, 0, 0)
        busy.opened.set()


@pytest.mark.seed("WRQ-O12", "WRQ-O14", "WRQ-B1")
async def test_a_queue_is_stopped_and_started_while_the_worker_runs(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    """What it holds of that queue returns to the front, and nothing else."""
    worker = new_worker(concurrency=4)
    gate = Gate(worker, queue)
    other = Gate(worker, others := make_queue(name=f"{queue.name}-other"))
    foreign = make_queue()
    await queue.add_items(Item(b"x", id=one) for one in ("foreign", "a", "b"))
    await take(foreign, HOUR)
    await others.add_item(Item(b"x", id="other"))
    async with working(worker):
        await gate.reached(2)
        await other.reached(1)
        await worker.stop_queue(queue.name, grace=0)
        assert sorted(gate.cancelled) == ["a", "b"]
        assert await queue.counts() == (2, 1, 0, 0), "the other client has its item still"
        assert await no_keys(redis, queue)
        assert (await the_worker(others)).queues == (others.name,)
        await queue.add_item(Item(b"x", id="c"))
        gate.opened.set()
        await worker.stop_queue(queue.name)  # which changes nothing
        assert gate.begun == ["a", "b"]
        await worker.start_queue(queue.name)
        await worker.start_queue(queue.name)
        await counted(queue, "its items are done", lambda counts: counts == (0, 1, 0, 0))
        assert gate.done == ["a", "b", "c"]
        other.opened.set()
        await finished(others)
    assert other.done == ["other"]


async def test_a_queue_that_is_started_while_it_is_being_stopped_begins_after_that(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    worker = new_worker(concurrency=4)
    gate = Gate(worker, queue)
    other = Gate(worker, others := make_queue(name=f"{queue.name}-other"))
    other.opened.set()
    await queue.add_item(Item(b"x", id="a"))
    async with working(worker):
        await gate.reached(1)
        runtime = worker._runtime
        assert runtime is not None
        stopping = asyncio.create_task(worker.stop_queue(queue.name, grace=HOUR))
        await eventually("it is being stopped", lambda: queue not in runtime.queues.served)
        starting = [asyncio.create_task(worker.start_queue(queue.name)) for _ in range(2)]
        await queue.add_item(Item(b"x", id="b"))
        for _ in range(3):  # it fetches between them
            await others.add_item(Item(b"x"))
            await finished(others)
        assert gate.begun == ["a"]
        gate.opened.set()
        await asyncio.gather(stopping, *starting)
        await finished(queue)
        assert gate.done == ["a", "b"]
        await the_worker(queue, others)


async def test_a_queue_that_is_stopped_while_it_begins_again_stays_stopped(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has failed; the worker begins again under another one."""
    worker = new_worker(dead_after=FOR_EVER)
    gate = Gate(worker, queue)
    async with working(worker):
        await the_worker(queue)
        runtime = worker._runtime
        assert runtime is not None
        assist, begins, goes_on = runtime.background.assist, asyncio.Event(), asyncio.Event()

        async def wait_and_assist(consumer: Consumer) -> None:
            begins.set()
            await goes_on.wait()
            await assist(consumer)

        monkeypatch.setattr(runtime.background, "assist", wait_and_assist)
        await engine_of(queue).registry.fail(queue.session)
        runtime.queues.membership.beat_soon()
        await begins.wait()
        stopping = asyncio.create_task(worker.stop_queue(queue.name))
        for _ in range(20):  # it would be stopped by then
            await queue.counts()
        goes_on.set()
        await stopping
        await eventually("nothing begins", lambda: not runtime.queues._renewing)
        assert not runtime.queues._pushes
        await queue.add_item(Item(b"x", id="a"))
        assert await no_keys(redis, queue)
        assert await queue.counts() == (1, 0, 0, 0)
        await worker.start_queue(queue.name)
        gate.opened.set()
        await finished(queue)


async def test_a_queue_that_is_stopped_as_soon_as_the_worker_has_started_stays_so(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    """It begins to fetch only when it is registered."""
    worker = new_worker()
    gate = Gate(worker, queue)
    other = Gate(worker, others := make_queue(name=f"{queue.name}-other"))
    other.opened.set()
    running = asyncio.create_task(worker.run())
    await worker.started()
    await worker.stop_queue(queue.name)
    await queue.add_items(Item(b"x", id=one) for one in "abc")
    for _ in range(3):  # it fetches between them
        await others.add_item(Item(b"x"))
        await finished(others)
    assert gate.begun == []
    assert await queue.counts() == (3, 0, 0, 0)
    assert not await redis.exists(f"{queue.name}:sessions")
    gate.opened.set()
    await worker.start_queue(queue.name)
    await finished(queue)
    assert gate.done == ["a", "b", "c"]
    worker.stop()
    await running


@pytest.mark.parametrize("when", ["before", "in the lifespan", "at once"])
async def test_a_worker_that_is_told_to_be_quiet_before_it_fetches_is(
    queue: AsyncWorkQueue, when: str
) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        if when == "in the lifespan":
            worker.quiet()
        yield

    worker = new_worker(lifespan=lifespan)
    gate = Gate(worker, queue)
    gate.opened.set()
    await add(queue, b"x", b"y")
    if when == "before":
        worker.quiet()
    running = asyncio.create_task(worker.run())
    await worker.started()
    if when == "at once":
        worker.quiet()
    runtime = worker._runtime
    assert runtime is not None
    await eventually("it would fetch by now", lambda: bool(runtime.fetcher._sources))
    assert runtime.queues.quiet
    assert await queue.counts() == (2, 0, 0, 0)
    worker.resume()
    await finished(queue)
    worker.stop()
    await running


@pytest.mark.parametrize("order", ["stop", "retire"])
async def test_a_worker_that_is_told_to_stop_in_its_lifespan_ends(queue: AsyncWorkQueue, order: str) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        getattr(worker, order)()
        await asyncio.Event().wait()
        yield

    worker = new_worker(lifespan=lifespan)
    gate = Gate(worker, queue)
    await add(queue, b"x")
    async with asyncio.timeout(120):
        await worker.run()
    assert gate.begun == []


@pytest.mark.parametrize("order", ["stop", "quiet"])
async def test_what_another_client_says_as_soon_as_a_worker_has_started_is_obeyed(
    make_queue: MakeQueue, queue: AsyncWorkQueue, order: str
) -> None:
    worker = new_worker(dead_after=FOR_EVER)
    Gate(worker, queue)
    running = asyncio.create_task(worker.run())
    await worker.started()
    runtime = worker._runtime
    assert runtime is not None
    await runtime.queues.registered()
    await getattr(Fleet(make_queue()), order)(worker.name)
    if order == "quiet":
        await eventually("it is quiet", lambda: runtime.queues.quiet)
        worker.stop()
    async with asyncio.timeout(120):
        await running


async def test_a_queue_with_a_new_handler_is_started_while_the_worker_runs(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    worker = new_worker()
    Gate(worker, queue)
    new = make_queue(name=f"{queue.name}-new")
    async with working(worker):
        await the_worker(queue)
        gate = Gate(worker, new, lease_time=1)
        gate.opened.set()
        await worker.start_queue(new.name)
        await add(new, b"x")
        await finished(new)
        assert gate.done == ["1"]
        await the_worker(queue, new)


async def test_a_caller_that_is_cancelled_leaves_no_queue_started_or_stopped_by_half(
    make_queue: MakeQueue, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker()
    Gate(worker, queue)
    new = make_queue(name=f"{queue.name}-new")
    async with working(worker):
        await the_worker(queue)
        gate = Gate(worker, new)
        runtime = worker._runtime
        assert runtime is not None
        registered, begins, goes_on = runtime.queues.registered, asyncio.Event(), asyncio.Event()

        async def wait_and_register(*consumers: Consumer) -> None:
            begins.set()
            await goes_on.wait()
            await registered(*consumers)

        monkeypatch.setattr(runtime.queues, "registered", wait_and_register)
        starting = asyncio.create_task(worker.start_queue(new.name))
        await begins.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        goes_on.set()
        await new.add_item(Item(b"x", id="a"))
        await gate.reached(1)
        stopping = asyncio.create_task(worker.stop_queue(new.name, grace=HOUR))
        await eventually("it is being stopped", lambda: new not in runtime.queues.served)
        stopping.cancel()
        await asyncio.wait([stopping])
        assert stopping.cancelled()
        again = asyncio.create_task(worker.stop_queue(new.name))
        for _ in range(20):  # it would return by then
            await queue.counts()
        assert not again.done()
        gate.opened.set()
        await again
        assert gate.done == ["a"]
        await the_worker(queue)
        assert not runtime.queues._pushes.keys() - {runtime.queues.consumers[0]}


async def test_a_queue_that_is_being_started_as_the_worker_ends_is_refused(
    make_queue: MakeQueue, queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker()
    Gate(worker, queue)
    new = make_queue(name=f"{queue.name}-new")
    async with working(worker):
        await the_worker(queue)
        Gate(worker, new)
        runtime = worker._runtime
        assert runtime is not None
        begins, goes_on = asyncio.Event(), asyncio.Event()

        async def wait_to_assist(*_: object) -> None:
            begins.set()
            await goes_on.wait()

        monkeypatch.setattr(runtime.background, "assist", wait_to_assist)
        starting = asyncio.create_task(worker.start_queue(new.name))
        await begins.wait()
        worker.stop()
        await eventually("it ends", lambda: runtime.queues._ending)
        goes_on.set()
        with pytest.raises(WorkerNotRunning):
            await starting
    assert await no_keys(redis, new)


async def test_a_queue_whose_handler_is_refused_is_refused_each_time(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    """And the worker continues, without it."""
    worker = new_worker()
    gate = Gate(worker, queue)
    gate.opened.set()
    new = make_queue(name=f"{queue.name}-new")
    async with working(worker):
        await the_worker(queue)

        @worker.handler(new)
        async def handle(_: bytes, db: object) -> None: ...

        await new.add_item(Item(b"x"))
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="db"):
                await worker.start_queue(new.name)
        await add(queue, b"x")
        await finished(queue)
        assert (await the_worker(queue)).queues == (queue.name,)
    assert await new.counts() == (1, 0, 0, 0)


async def test_only_queues_with_a_handler_are_started_and_only_while_it_runs(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    Gate(worker, queue)
    with pytest.raises(WorkerNotRunning):
        await worker.start_queue(queue.name)
    with pytest.raises(WorkerNotRunning):
        await worker.stop_queue(queue.name)
    async with working(worker):
        await the_worker(queue)
        for change in (worker.start_queue, worker.stop_queue):
            with pytest.raises(InvalidArgument, match="has a handler for"):
                await change("another")


@pytest.mark.parametrize("how", ["is started again", "begins again"])
async def test_a_queue_that_had_lost_its_data_gets_the_limits_of_its_tasks_again(
    tasks: TaskQueue, redis: Redis, how: str
) -> None:
    queue = tasks.queue
    worker = new_worker(tasks, dead_after=FOR_EVER)

    @tasks.task(concurrency=2)
    async def charge() -> None: ...

    await charge.add()
    async with working(worker):
        await finished(queue)
        runtime = worker._runtime
        assert runtime is not None
        if how == "is started again":
            await worker.stop_queue(queue.name)
            await redis.delete(f"{queue.name}:control")
            await worker.start_queue(queue.name)
        else:
            await redis.delete(f"{queue.name}:control")
            session = queue.session
            await engine_of(queue).registry.fail(session)
            runtime.queues.membership.beat_soon()
            await eventually("it begins again", lambda: queue.session != session)
        await charge.add()
        await finished(queue)
        assert (await queue.limits.get()).groups == {"task:charge": Limit(concurrency=2)}


@pytest.mark.parametrize("how", ["is started again", "begins again"])
async def test_a_queue_keeps_its_place_in_strict_order(
    make_queue: MakeQueue, queue: AsyncWorkQueue, how: str
) -> None:
    worker = new_worker(order="strict", concurrency=1, dead_after=FOR_EVER)
    begun: list[str] = []
    opened = asyncio.Event()
    queues = [queue, *(make_queue(name=f"{queue.name}-{one}") for one in ("second", "busy"))]
    for one in queues:

        @worker.handler(one)
        async def handle(_: bytes, lease: Lease) -> None:
            begun.append(lease.id)
            await opened.wait()

    async with working(worker):
        await the_worker(*queues)
        runtime = worker._runtime
        assert runtime is not None
        fetcher, first = runtime.fetcher, runtime.queues.consumers[0]
        before = fetcher._sources[first]
        if how == "is started again":
            await worker.stop_queue(queue.name)
            await worker.start_queue(queue.name)
        else:
            await engine_of(queue).registry.fail(queue.session)
            runtime.queues.membership.beat_soon()
        await eventually("it is served again", lambda: fetcher._sources.get(first, before) is not before)
        await queues[2].add_item(Item(b"x", id="busy"))
        await eventually("the worker is busy", lambda: begun == ["busy"])
        for one in queues[1::-1]:
            await one.add_item(Item(b"x", id=one.name))
        ready = [fetcher._sources[one] for one in runtime.queues.consumers[:2]]
        await eventually("both have an item", lambda: all(one.is_ready for one in ready))
        opened.set()
        await finished(queues[1])
    assert begun == ["busy", queue.name, queues[1].name]
