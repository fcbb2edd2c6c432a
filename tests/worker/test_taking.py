"""A worker leases the items that it can start, by weight or in strict order."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.queue import lease_level
from leasequeue.worker import acknowledger, fetcher, lease_renewer
from tests.eventually import eventually
from tests.queue.asking import take, until
from tests.worker.working import Gate, add, counted, finished, new_worker, order_of, work, working

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


@pytest.mark.parametrize("place", ["loop", "thread", "batch"])
@pytest.mark.seed("GLD-O10", "GLD-K3")
async def test_no_more_than_concurrency_runs_are_active_over_all_queues(
    make_queue: MakeQueue, place: str
) -> None:
    running = peak = 0
    queues = [make_queue(name=f"limit-{place}-{number}") for number in range(3)]
    worker = new_worker(concurrency=4)

    async def work(_: bytes) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001)
        running -= 1

    def work_in_thread(payload: bytes) -> None:
        asyncio.run(work(payload))

    async def work_on_many(_: list[bytes]) -> None:
        await work(b"")

    for queue in queues:
        if place == "batch":
            worker.handler(queue, batch=3)(work_on_many)
        else:
            worker.handler(queue)(work if place == "loop" else work_in_thread)
        await queue.add_items(Item(b"x") for _ in range(100))
    async with working(worker):
        for queue in queues:
            await finished(queue)
    assert 2 <= peak <= 4


@pytest.mark.seed("WRQ-O12", "GLD-B9")
async def test_queues_share_by_weight(make_queue: MakeQueue) -> None:
    queues = {weight: make_queue(name=f"weight-{weight}") for weight in ("1", "4")}
    worker, order = new_worker(concurrency=10), list[str]()
    for name, queue in queues.items():

        async def handle(_: bytes, name: str = name) -> None:
            order.append(name)
            await asyncio.sleep(0.001)

        worker.handler(queue, weight=float(name))(handle)
        await queue.add_items(Item(b"x") for _ in range(1000))
    async with working(worker):  # no queue becomes empty
        await eventually("enough have run", lambda: len(order) >= 1000, within=120)
    found = Counter(order[:1000])
    assert 2 < found["4"] / found["1"] < 8


@pytest.mark.seed("GLD-O19", "RRQ-O2", "RRQ-G2")
async def test_strict_order_serves_the_first_queue_first(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_renewer, "STALE_SECONDS", 60)  # else some may be released early
    first, second = make_queue(name="strict-1"), make_queue(name="strict-2")
    order: list[bytes] = []
    worker = new_worker(concurrency=2, order="strict")

    async def handle(payload: bytes) -> None:
        order.append(payload)
        await asyncio.sleep(0.001)

    for queue in (first, second):
        worker.handler(queue)(handle)
    await add(second, *[b"second"] * 50)
    await add(first, *[b"first"] * 50)
    async with working(worker):
        await finished(first)
        await finished(second)
    assert order == [b"first"] * 50 + [b"second"] * 50


async def waits_in_order(queue: AsyncWorkQueue) -> bool:
    """Return whether all released items wait. One may have been moved to a session that has no room."""
    return await order_of(queue) == [("2", 0), ("3", 0), ("4", 0)]


async def test_items_leased_ahead_are_released_when_a_run_takes_long(
    queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    """A worker with one slot leases quick items ahead, until it gets a slow one."""
    worker = new_worker(concurrency=1)
    finish, begun = asyncio.Event(), asyncio.Event()

    @worker.handler(queue)
    async def handle(payload: bytes) -> None:
        if payload == b"slow":
            begun.set()
            await finish.wait()

    await queue.add_items(Item(b"quick") for _ in range(2000))
    await add(queue, b"slow", b"a", b"b", b"c")
    async with working(worker):
        await begun.wait()
        await counted(queue, "the others are released", lambda counts: counts == (3, 1, 0, 0))
        await until("one that was moved to the worker is back", lambda: waits_in_order(queue))
        other, last = make_queue(), 0
        for expected in ("2", "3", "4"):
            lease = await take(other)
            assert (lease.id, lease.attempt) == (expected, 1)
            last = lease.token
            await other.complete(lease)
        # Items that are added now also go to a worker that can start them.
        waiting = asyncio.create_task(take(other))
        await asyncio.sleep(0.05)
        await queue.add_item(Item(b"x", id="later"))
        async with asyncio.timeout(120):
            lease = await waiting
        assert lease.id == "later"
        assert lease.token == last + 1, "it was not leased before"
        await other.complete(lease)
        finish.set()


async def test_an_item_that_falls_due_is_run(queue: AsyncWorkQueue) -> None:
    worker = new_worker()
    gate = Gate(worker, queue)
    gate.opened.set()
    async with working(worker):
        await queue.add_item(Item(b"x", id="soon"), delay=0.2)
        await finished(queue)
    assert gate.done == ["soon"]


async def test_batches_are_filled_from_the_items_that_wait(queue: AsyncWorkQueue) -> None:
    sizes: list[int] = []

    async def handle(leases: list[Lease]) -> None:
        sizes.append(len(leases))

    await work(queue, handle, *[b"x"] * 500, worker=new_worker(concurrency=1), batch=50)
    assert sum(sizes) == 500
    assert max(sizes) == 50
    assert len(sizes) <= 20


async def test_a_small_worker_leases_what_runs_soon_and_a_slow_one_does_not(
    make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While replies take longer than runs, as with many workers, the pace says nothing of the runs."""
    asked: list[int] = []

    async def lease_late(
        queue: AsyncWorkQueue, count: int, lease_ms: int, *, whole: bool = False
    ) -> tuple[list[Lease], float | None]:
        asked.append(count)
        await asyncio.sleep(0.05)
        return await lease_level(queue, count, lease_ms, whole=whole)

    monkeypatch.setattr(fetcher, "lease_level", lease_late)
    quick, slow = make_queue(name="quick"), make_queue(name="slow")
    worker = new_worker(concurrency=2)

    @worker.handler(quick)
    async def handle(_: bytes) -> None:
        """Take no time."""

    await quick.add_items(Item(b"x") for _ in range(300))
    async with working(worker):
        await finished(quick)
        assert max(asked) > 10
        await asyncio.sleep(0.2)
        asked.clear()
        await quick.add_items(Item(b"x") for _ in range(20))
        await finished(quick)
        assert asked[0] <= 3, "the queue was empty: other workers may be idle"
    asked.clear()
    await slow.add_items(Item(b"x") for _ in range(12))

    async def handle_slowly(_: bytes) -> None:
        await asyncio.sleep(0.05)

    await work(slow, handle_slowly, worker=new_worker(concurrency=2))
    assert max(asked) <= 3


async def test_runs_that_end_together_are_replaced_by_one_call(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def lease_and_note(
        queue: AsyncWorkQueue, count: int, lease_ms: int, *, whole: bool = False
    ) -> tuple[list[Lease], float | None]:
        asked.append(count)
        return await lease_level(queue, count, lease_ms, whole=whole)

    monkeypatch.setattr(fetcher, "lease_level", lease_and_note)
    worker = new_worker(concurrency=10)
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * 30)
    async with working(worker):
        await eventually("ten run", lambda: len(gate.begun) == 10)
        asked.clear()
        gate.opened.set()
        await finished(queue)
    assert asked[0] >= 10


@pytest.mark.parametrize("seconds", [60.0, 0.0])
async def test_outcomes_gather_for_a_while(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """While more runs start in each turn of the event loop, their outcomes wait for one call."""
    sizes: list[int] = []
    complete_many = type(queue).complete_many

    async def complete_and_note(self: AsyncWorkQueue, leases: list[Lease]) -> list[bool]:
        sizes.append(len(leases))
        return await complete_many(self, leases)

    monkeypatch.setattr(type(queue), "complete_many", complete_and_note)
    monkeypatch.setattr(acknowledger, "GATHER_SECONDS", seconds)

    async def handle(_: bytes) -> None:
        """Take no time."""

    await work(queue, handle, *[b"x"] * 100, worker=new_worker(concurrency=100))
    assert (sizes == [100]) is (seconds > 0), sizes
