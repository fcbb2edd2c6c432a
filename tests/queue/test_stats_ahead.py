"""The statistics of a queue for who plans: what falls due, what dead workers hold, and how old runs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import InvalidArgument, Item
from leasequeue.queue.queue import engine_of

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock, MakeQueue


@pytest.mark.core
async def test_what_is_due_soon_is_counted_up_to_a_horizon(queue: AsyncWorkQueue, clock: Clock) -> None:
    for delay in (5, 10, 10, 60):
        await queue.add_item(Item(b"x"), delay=delay)
    for horizon, due_soon in ((None, 0), (0, 0), (4.9, 0), (10, 3), (3600, 4)):
        stats = await queue.stats(horizon=horizon)
        assert (stats.due, stats.due_soon, stats.counts.scheduled) == (0, due_soon, 4), horizon
        assert stats.at == clock.now
    clock.now += 10
    stats = await queue.stats(horizon=55)
    assert (stats.due, stats.due_soon, stats.counts.scheduled) == (3, 1, 4)
    for horizon in (-1, float("nan")):
        with pytest.raises(InvalidArgument, match="horizon"):
            await queue.stats(horizon=horizon)


@pytest.mark.core
async def test_expired_leases_and_those_of_dead_workers_are_told_apart(
    queue: AsyncWorkQueue, clock: Clock, make_queue: MakeQueue
) -> None:
    dead, unregistered = make_queue(clock=clock), make_queue(clock=clock)
    await engine_of(queue).registry.beat({}, alive_ms=1_000_000, first=True)
    await engine_of(dead).registry.beat({}, alive_ms=30_000, first=True)
    await queue.add_items([Item(b"x") for _ in range(6)])
    await queue.lease(600)
    await dead.lease(40)
    await dead.lease_many(2, 600)
    await unregistered.lease(600)
    for later, expired, orphaned in ((29, 0, 0), (1, 0, 3), (9, 0, 3), (1, 1, 2), (560, 5, 0)):
        clock.now += later
        stats = await queue.stats()
        assert (stats.expired, stats.orphaned, stats.counts.leased) == (expired, orphaned, 5), clock.now


async def test_the_runs_of_a_worker_are_as_old_as_by_its_own_clock(queue: AsyncWorkQueue) -> None:
    """That clock may differ from the server's, and any client may write what is in a registration."""
    running: object
    for at, running, ages in (
        (9_500, [["a", "handle", 8_000], ["b", "handle", 9_500], ["c", "handle", 9_501]], (1.5, 0)),
        ("x", [["a", "handle", 8_000]], ()),
        (9_500, [["a", "handle", "x"], ["a"], 7, None], ()),
        (9_500, "x", ()),
    ):
        about = {"at": at, "running": running, "quiet": 1, "items": -1, "item_seconds": "x"}
        await engine_of(queue).registry.beat(about, alive_ms=30_000, first=True)
        [worker] = (await queue.stats()).workers
        assert (worker.ages, worker.quiet, worker.items, worker.item_seconds) == (ages, False, 0, 0)
