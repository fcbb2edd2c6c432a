"""Workers tick the schedules of their queues: an item that falls due reaches an idle handler."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from leasehold import Lease  # noqa: TC001 - the worker reads annotations
from leasehold.worker import maintenance
from tests.eventually import eventually
from tests.queue.keyspace import audit
from tests.worker.working import counted, finished, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


def times_of(ids: list[str]) -> list[datetime]:
    return [datetime.fromisoformat(item_id.partition("@")[2]) for item_id in ids]


async def test_an_idle_worker_runs_items_that_fall_due(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    ran: list[tuple[str, bytes]] = []
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        ran.append((lease.id, lease.data))

    await queue.schedules.every(0.1, "a", "data")
    async with working(worker):
        await eventually("several items were run", lambda: len(ran) > 2)
    await queue.schedules.remove("a")
    assert ran[0][0].startswith("a@")
    assert ran[0][1] == b"data"
    await audit(redis, name)


async def test_a_schedule_that_is_made_while_workers_run_is_ticked(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.1)
    ran: list[str] = []
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        ran.append(lease.id)

    async with working(worker):
        await eventually("it runs", lambda: worker.health().ok)
        await queue.schedules.every(0.05, "a")
        await eventually("several items were run", lambda: len(ran) > 2)


@pytest.mark.parametrize("count", [1, 3])
async def test_each_tick_is_run_once_by_any_number_of_workers(make_queue: MakeQueue, count: int) -> None:
    ran: list[str] = []

    async def handle(lease: Lease) -> None:
        ran.append(lease.id)

    queues = [make_queue() for _ in range(count)]
    workers = [new_worker(clean_every=60) for _ in range(count)]
    await queues[0].schedules.every(0.01, "a", catch_up="all")
    for worker, queue in zip(workers, queues, strict=True):
        worker.handler(queue)(handle)
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(working(worker))
        await eventually("many items were run", lambda: len(ran) > 50)
    await complete_the_rest(make_queue(), ran)
    times = sorted(times_of(ran))
    assert {after - before for before, after in pairwise(times)} == {timedelta(milliseconds=10)}


async def complete_the_rest(queue: AsyncWorkQueue, ran: list[str]) -> None:
    """Complete the items that the workers have released when they stopped."""
    for lease in await queue.lease_many(1000, 30, block=False):
        assert await queue.complete(lease)
        ran.append(lease.id)
    await finished(queue)


async def test_ticks_continue_after_a_run_that_failed(queue: AsyncWorkQueue) -> None:
    ran: list[str] = []
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        ran.append(lease.id)
        raise RuntimeError("always")

    await queue.schedules.every(0.05, "a")
    async with working(worker):
        await counted(queue, "there are several dead letters", lambda counts: counts.dead > 2)
    letters = await queue.dead_letters.list()
    assert {letter.attempt for letter in letters} == {3}
    assert len(set(ran)) >= len(letters)
