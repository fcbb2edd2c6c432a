"""Helpers of the tests of schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.queue.cron import stamp

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue, ScheduleView

DAY = 24 * 3600


def at(seconds: float) -> str:
    """Return the time in an item's id."""
    return stamp(round(seconds * 1000))


async def added(queue: AsyncWorkQueue) -> list[str]:
    """Lease and complete all waiting items, and return their ids."""
    ids: list[str] = []
    while leases := await queue.lease_many(1000, 30, block=False):
        ids += [lease.id for lease in leases]
        assert all(await queue.complete_many(leases))
    return ids


async def tick_all(queue: AsyncWorkQueue) -> float:
    """Tick until nothing is due."""
    while (due_in := await queue.schedules.tick()) == 0:
        pass
    return due_in


async def only(queue: AsyncWorkQueue) -> ScheduleView:
    [view] = await queue.schedules.list()
    return view
