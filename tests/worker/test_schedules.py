"""Workers tick the schedules of their queues by themselves: what is due reaches a handler that idles."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from leasehold import Lease  # noqa: TC001 - handlers are asked for it when they run
from tests.eventually import eventually
from tests.queue.keyspace import audit
from tests.worker.working import counted, finished, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


def times_of(ids: list[str]) -> list[datetime]:
    return [datetime.fromisoformat(item_id.partition("@")[2]) for item_id in ids]


async def test_an_idle_worker_runs_what_falls_due(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    ran: list[tuple[str, bytes]] = []
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        ran.append((lease.id, lease.data))

    await queue.schedules.every(0.3, "a", "data")
    async with working(worker):
        await eventually("it ran", lambda: bool(ran))
    assert ran[0][0].startswith("a@")
    assert ran[0][1] == b"data"
    await audit(redis, name)


async def test_a_schedule_that_is_made_while_workers_run_is_seen(queue: AsyncWorkQueue) -> None:
    ran: list[str] = []
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        ran.append(lease.id)

    async with working(worker) as running:
        assert not running.done()
        await queue.schedules.every(0.05, "a")
        await eventually("it ran", lambda: len(ran) > 2)


@pytest.mark.parametrize("count", [1, 3])
async def test_each_tick_is_run_once_however_many_workers_there_are(
    make_queue: MakeQueue, count: int
) -> None:
    ran: list[str] = []

    async def handle(lease: Lease) -> None:
        ran.append(lease.id)

    queues = [make_queue() for _ in range(count)]
    workers = [new_worker(clean_every=60) for _ in range(count)]
    await queues[0].schedules.every(0.02, "a", catch_up="all")
    for worker, queue in zip(workers, queues, strict=True):
        worker.handler(queue)(handle)
    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(working(worker))
        await eventually("many ran", lambda: len(ran) > 50)
    await finished_by_hand(make_queue(), ran)
    times = sorted(times_of(ran))
    assert {after - before for before, after in pairwise(times)} == {timedelta(milliseconds=20)}


async def finished_by_hand(queue: AsyncWorkQueue, ran: list[str]) -> None:
    """Do what the workers have given back when they stopped."""
    for lease in await queue.lease_many(1000, 30, block=False):
        assert await queue.complete(lease)
        ran.append(lease.id)
    await finished(queue)


async def test_a_failed_run_keeps_no_tick_away(queue: AsyncWorkQueue) -> None:
    ran: list[str] = []
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(lease: Lease) -> None:
        ran.append(lease.id)
        raise RuntimeError("always")

    await queue.schedules.every(0.05, "a")
    async with working(worker):
        await counted(queue, "several ticks have been given up", lambda counts: counts.dead > 2)
    letters = await queue.dead_letters.list()
    assert {letter.attempt for letter in letters} == {3}
    assert len(set(ran)) >= len(letters)
