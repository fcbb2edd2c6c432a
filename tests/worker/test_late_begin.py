"""A process that stood still begins nothing under leases that ended meanwhile: others may have the items."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from leasehold import Item
from leasehold.worker import Worker
from leasehold.worker.run import ActiveRun

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue, Lease


@pytest.fixture
async def leases(queue: AsyncWorkQueue) -> list[Lease]:
    await queue.add_items([Item(b"1"), Item(b"2")])
    return await queue.lease_many(2, 30)


def begins(queue: AsyncWorkQueue, leases: list[Lease]) -> bool:
    """Whether a run of these items begins."""
    worker = Worker()

    @worker.handler(queue, batch=2)
    async def work(data: list[bytes]) -> None: ...

    task = asyncio.current_task()
    assert task is not None
    return ActiveRun(worker.handlers[0], leases).start(task, asyncio.get_running_loop())


async def test_a_run_begins_under_leases_that_go_on(queue: AsyncWorkQueue, leases: list[Lease]) -> None:
    assert begins(queue, leases)


async def test_no_run_begins_under_a_lease_that_has_ended(queue: AsyncWorkQueue, leases: list[Lease]) -> None:
    leases[1]._renewed(time.monotonic() - 60, 30_000, 0)  # as if the process had stood still for a minute
    assert not begins(queue, leases)


async def test_it_begins_after_all_if_the_lease_was_renewed(
    queue: AsyncWorkQueue, leases: list[Lease]
) -> None:
    leases[1]._renewed(time.monotonic() - 60, 30_000, 0)
    assert await queue.renew(leases[1], 30)
    assert begins(queue, leases)
