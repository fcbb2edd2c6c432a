"""Queues of a worker are stopped and started while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold import AsyncWorkQueue, InvalidArgument, Item, WorkerNotRunning
from tests.fleet.members import no_keys, the_worker
from tests.queue.asking import take
from tests.worker.working import Gate, add, counted, finished, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

#: With this time until it is dead, a worker sends one heartbeat: what it is told arrives as a message.
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
