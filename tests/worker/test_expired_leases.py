"""No run starts under a lease that expired while the process stood still."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.worker import Worker
from leasequeue.worker.run import ActiveRun

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue, Lease


@pytest.fixture
async def leases(queue: AsyncWorkQueue) -> list[Lease]:
    await queue.add_items([Item(b"1"), Item(b"2")])
    return await queue.lease_many(2, 30)


def starts(queue: AsyncWorkQueue, leases: list[Lease]) -> bool:
    """Return whether a run of these items starts."""
    worker = Worker()

    @worker.handler(queue, batch=2)
    async def work(data: list[bytes]) -> None: ...

    task = asyncio.current_task()
    assert task is not None
    return ActiveRun(worker.handlers[0], leases).start(task, asyncio.get_running_loop())


async def test_a_run_starts_under_leases_that_are_held(queue: AsyncWorkQueue, leases: list[Lease]) -> None:
    assert starts(queue, leases)


async def test_no_run_starts_under_an_expired_lease_unless_it_was_renewed(
    queue: AsyncWorkQueue, leases: list[Lease]
) -> None:
    leases[1]._renewed(time.monotonic() - 60, 30_000, 0)  # as if the process had stood still for a minute
    assert not starts(queue, leases)
    assert await queue.renew(leases[1], 30)
    assert starts(queue, leases)
