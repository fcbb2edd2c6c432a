"""A worker can run again, beside other workers, or until its queues are empty."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, current_run
from leasequeue.errors import NoCurrentRun, WorkerBusy
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.leasing import LeaseDispatcher
from leasequeue.queue.pushes.router import PushRouter
from leasequeue.worker import Retry, RetryPolicy
from tests.eventually import eventually
from tests.queue.asking import until
from tests.worker.working import Gate, add, finished, new_worker, order_of, work, working

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Run
    from tests.queue.fixtures import MakeQueue


@pytest.mark.seed("WRQ-O9", "GLD-O11")
async def test_a_worker_can_run_again_but_not_twice_at_once(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    gate = Gate(worker, queue)
    gate.opened.set()
    for number in range(3):
        async with working(worker):
            await eventually("it runs", lambda: worker.health().ok)
            with pytest.raises(WorkerBusy):
                await worker.run()
            with pytest.raises(WorkerBusy):
                await worker.drain()
            await queue.add_item(Item(b"x", id=f"{number}"))
            await finished(queue)
        assert worker.health().reasons == ("the worker is not running",)
    assert gate.done == ["0", "1", "2"]


async def test_stopping_a_worker_that_is_not_running_has_no_effect(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    gate = Gate(worker, queue)
    gate.opened.set()
    worker.stop(now=True)
    await add(queue, b"x")
    await worker.drain()
    assert gate.done == ["1"]


async def test_two_workers_share_a_queue_object(queue: AsyncWorkQueue) -> None:
    first, second = new_worker(concurrency=3), new_worker(concurrency=3)
    gates = Gate(first, queue), Gate(second, queue)
    async with working(first):
        async with working(second):
            await add(queue, *[b"x"] * 6)
            await gates[0].reached(3)
            await gates[1].reached(3)
            gates[1].opened.set()
        assert len(gates[1].done) == 3
        await queue.add_item(Item(b"x", id="after"))
        gates[0].opened.set()
        await finished(queue)
    assert len(gates[0].done) == 4


async def test_drain_ends_when_the_queues_are_empty(make_queue: MakeQueue) -> None:
    """Items that handlers add, and retries without a delay, are run as well; delayed items stay."""
    first, second = make_queue(name="drain-1"), make_queue(name="drain-2")
    worker = new_worker(concurrency=3, retry=RetryPolicy(attempts=3, first=0))
    seen: list[str] = []

    @worker.handler(first)
    async def one(payload: int) -> None:
        await asyncio.sleep(0.01)
        if payload:
            await second.add_item(Item(f"{payload - 1}"))
        seen.append(f"first {payload}")

    @worker.handler(second)
    async def two(payload: int, lease: Lease) -> None:
        if lease.attempt < 3:
            raise Retry(delay=0)
        await first.add_item(Item(f"{payload}"))
        seen.append(f"second {payload}")

    await first.add_item(Item("3"))
    await first.add_item(Item("9", id="late"), delay=3600)
    async with asyncio.timeout(120):
        await worker.drain()
    assert ", ".join(seen) == "first 3, second 2, first 2, second 1, first 1, second 0, first 0"
    assert await first.counts() == (0, 0, 1, 0)
    assert await second.counts() == (0, 0, 0, 0)


async def test_drain_runs_an_item_whose_delivery_has_not_been_read(
    make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is leased and in no queue, and its message comes over another connection than the replies."""
    queue, other = make_queue(), make_queue()
    worker = new_worker(concurrency=2)
    ran: list[tuple[str, int]] = []
    held: list[tuple[PushRouter, bytes]] = []
    holds = False
    read = PushRouter._received

    def received(router: PushRouter, message: bytes) -> None:
        if holds:
            held.append((router, message))
        else:
            read(router, message)

    monkeypatch.setattr(PushRouter, "_received", received)

    async def waits() -> bool:
        return bool(await redis.zcard(f"{queue.name}:idle"))

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        nonlocal holds
        ran.append((lease.id, lease.attempt))
        if lease.id == "1":
            await until("the worker waits for a delivery", waits)
            holds = True
            await other.add_item(Item(b"x", id="2"))
            await eventually("the item was delivered", lambda: bool(held))
        else:
            await until("it waits for the next one", waits)
            read(*held[0])  # which is too late

    await add(other, b"x")
    async with asyncio.timeout(120):
        await worker.drain()
    assert ran == [("1", 1), ("2", 1)]
    assert not (await other.counts()).total


async def test_drain_ends_at_once_on_an_empty_queue_and_when_stopped(queue: AsyncWorkQueue) -> None:
    worker = new_worker(grace=0)
    gate = Gate(worker, queue)
    await worker.drain()
    await add(queue, b"x")
    draining = asyncio.create_task(worker.drain())
    await gate.reached(1)
    worker.stop()
    async with asyncio.timeout(120):
        await draining
    assert await order_of(queue) == [("1", 0)]


async def test_several_drains_at_once_run_each_item_once(make_queue: MakeQueue) -> None:
    ran: list[str] = []

    async def handle(_: bytes, lease: Lease) -> None:
        await asyncio.sleep(0)
        ran.append(lease.id)

    workers = [new_worker(concurrency=5) for _ in range(3)]
    for worker in workers:
        worker.handler(make_queue())(handle)
    await make_queue().add_items(Item(b"x", id=f"{number}") for number in range(600))
    async with asyncio.timeout(120):
        await asyncio.gather(*(worker.drain() for worker in workers))
    assert sorted(ran, key=int) == [f"{number}" for number in range(600)]


async def test_a_worker_releases_no_item_that_is_delivered_while_it_leases(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    monkeypatch.setattr(LeaseDispatcher, "_release", lambda _, spare: released.append(len(spare)))
    worker, adder = new_worker(concurrency=100), make_queue()
    gate = Gate(worker, queue)
    gate.opened.set()
    async with working(worker):
        await eventually("it runs", lambda: worker.health().ok)
        for number in range(600):
            await adder.add_item(Item(b"x", id=f"{number}"))
        await finished(queue)
    assert sorted(gate.done) == sorted(f"{number}" for number in range(600))
    assert sum(released) == 0


# -------------------------------------------------------------------------------------------- the current run


def item_of_run() -> str:
    return current_run().lease.id


async def test_the_run_is_known_below_a_handler_in_tasks_threads_and_middleware(
    queue: AsyncWorkQueue,
) -> None:
    seen: list[tuple[str, str]] = []

    async def layer(run: Run, call_next: Callable[[Run], Any]) -> Any:
        assert current_run() is run
        return await call_next(run)

    async def handle(payload: str) -> None:
        inside = asyncio.create_task(asyncio.to_thread(item_of_run))
        await asyncio.sleep(0)
        seen.append((payload, f"{item_of_run()} {await inside}"))

    worker = new_worker(concurrency=2, middleware=[layer])
    await work(queue, handle, *"abcd", worker=worker)
    assert sorted(seen) == [("a", "1 1"), ("b", "2 2"), ("c", "3 3"), ("d", "4 4")]


def test_there_is_no_run_outside_of_one() -> None:
    with pytest.raises(NoCurrentRun, match="no run calls this code"):
        current_run()


async def test_a_run_reports_its_progress_from_loops_and_threads(queue: AsyncWorkQueue) -> None:
    reported = threading.Event()

    async def in_loop(_: list[str]) -> None:
        current_run().progress("in a loop")
        await until("it is kept", functools.partial(shows, queue, "1", "in a loop"))
        await until("of each item", functools.partial(shows, queue, "2", "in a loop"))

    def in_thread(_: str) -> None:
        current_run().progress("in a thread")
        assert reported.wait(20)

    await work(queue, in_loop, "a", "b", batch=2)
    worker = new_worker()
    worker.handler(queue)(in_thread)
    await queue.add_item(Item("c", id="c"))
    async with working(worker):
        await until("it is kept", functools.partial(shows, queue, "c", "in a thread"))
        reported.set()
        await finished(queue)


async def shows(queue: AsyncWorkQueue, item_id: str, value: str) -> bool:
    """Return whether an item has this progress."""
    view = await queue.find(item_id)
    return view is not None and view.progress == value
