"""Draining workers with the fixtures of the plugin and a clock that the test moves."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Item, Lease, Snooze
from leasequeue.testing import assert_added, assert_empty
from tests.eventually import eventually
from tests.worker.working import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.testing import Clock, Workers


async def test_draining_runs_due_items_and_leaves_the_others(
    leasequeue_queue: AsyncWorkQueue, leasequeue_worker: Workers, leasequeue_clock: Clock
) -> None:
    worker, ran = leasequeue_worker(), list[bytes]()
    worker.handler(leasequeue_queue)(ran.append)
    await leasequeue_queue.add_item(Item("now"))
    await leasequeue_queue.add_item(Item("in an hour"), delay=3600)
    await leasequeue_queue.add_item(Item("tomorrow"), at=leasequeue_clock.now + timedelta(days=1))
    await worker.drain()
    assert ran == [b"now"]
    leasequeue_clock.advance(3600)
    await worker.drain()
    assert ran == [b"now", b"in an hour"]
    leasequeue_clock.move_to(leasequeue_clock.now + timedelta(hours=22, minutes=59, seconds=59))
    await worker.drain()
    await assert_added(leasequeue_queue, data="tomorrow", state="scheduled")
    leasequeue_clock.advance(1)
    await worker.drain()
    assert ran == [b"now", b"in an hour", b"tomorrow"]
    await assert_empty(leasequeue_queue)


async def test_draining_reclaims_expired_leases(
    leasequeue_queue: AsyncWorkQueue, leasequeue_worker: Workers, leasequeue_clock: Clock
) -> None:
    worker = leasequeue_worker()
    ran: list[tuple[bytes, int]] = []

    @worker.handler(leasequeue_queue)
    async def handle(data: bytes, lease: Lease) -> None:
        ran.append((data, lease.attempt))

    await leasequeue_queue.add_item(Item("hello"))
    held = await leasequeue_queue.lease(30)
    leasequeue_clock.advance(29.999)
    await worker.drain()
    assert ran == []
    leasequeue_clock.advance(0.001)
    await worker.drain()
    assert ran == [(b"hello", 2)]
    assert not await leasequeue_queue.complete(held)
    await assert_empty(leasequeue_queue)


async def test_all_batches_are_drained(leasequeue_queue: AsyncWorkQueue, leasequeue_worker: Workers) -> None:
    worker, ran = leasequeue_worker(), list[list[bytes]]()
    worker.handler(leasequeue_queue, batch=4)(ran.append)
    await leasequeue_queue.add_items([Item(f"{number:03}") for number in range(101)])
    await worker.drain()
    assert max(map(len, ran)) == 4
    assert sorted(itertools.chain(*ran)) == [f"{number:03}".encode() for number in range(101)]
    await assert_empty(leasequeue_queue)


async def test_a_running_worker_gets_a_snoozed_item_when_the_clock_reaches_its_time(
    leasequeue_queue: AsyncWorkQueue, leasequeue_worker: Workers, leasequeue_clock: Clock
) -> None:
    worker = leasequeue_worker()
    attempts: list[int] = []

    @worker.handler(leasequeue_queue)
    async def handle(_: bytes, lease: Lease) -> None:
        attempts.append(lease.attempt)
        if len(attempts) < 3:
            raise Snooze(timedelta(hours=8))

    def ran(times: int) -> Callable[[], bool]:
        return lambda: len(attempts) == times

    running = asyncio.create_task(worker.run())
    await leasequeue_queue.add_item(Item("hello", id="one"))
    for attempt in (1, 2):
        await eventually("it has run", ran(attempt))
        await counted(leasequeue_queue, "it is scheduled", lambda counts: counts.scheduled == 1)
        leasequeue_clock.advance(timedelta(hours=8))
    await eventually("it has run", ran(3))
    assert attempts == [1, 1, 1]
    worker.stop()
    await running
    await assert_empty(leasequeue_queue)


async def test_schedules_use_the_clock(
    leasequeue_queue: AsyncWorkQueue, leasequeue_worker: Workers, leasequeue_clock: Clock
) -> None:
    leasequeue_clock.move_to(datetime(2030, 3, 31, tzinfo=UTC))
    worker = leasequeue_worker()
    ran: list[str] = []

    @worker.handler(leasequeue_queue)
    async def report(_: bytes, lease: Lease) -> None:
        ran.append(lease.id)

    await leasequeue_queue.schedules.cron("0 3 * * *", "report")
    for _ in range(2):
        leasequeue_clock.advance(timedelta(hours=3))
        await leasequeue_queue.schedules.tick()
        await worker.drain()
    assert ran == ["report@2030-03-31T03:00:00Z"]
    leasequeue_clock.move_to(datetime(2030, 4, 1, 3, tzinfo=UTC))
    await leasequeue_queue.schedules.tick()
    await assert_added(leasequeue_queue, "report@2030-04-01T03:00:00Z")
