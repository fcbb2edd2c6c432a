"""Workers tick the schedules of their queues: an item that falls due reaches an idle handler."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from leasequeue import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.worker import maintenance
from tests.eventually import eventually
from tests.queue.keyspace import audit
from tests.worker.working import counted, finished, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


def times_of(ids: list[str]) -> list[datetime]:
    return [datetime.fromisoformat(item_id.partition("@")[2]) for item_id in ids]


async def test_a_schedule_that_is_made_while_a_worker_runs_is_ticked_though_each_run_fails(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.1)
    worker = new_worker(clean_every=60)

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        raise RuntimeError("always")

    async with working(worker):
        await eventually("it runs", lambda: worker.health().ok)
        await queue.schedules.every(0.05, "a")
        await counted(queue, "there are several dead letters", lambda counts: counts.dead > 2)
    assert {letter.attempt for letter in await queue.dead_letters.list()} == {3}


@pytest.mark.parametrize("count", [1, 3])
async def test_each_tick_is_run_once_by_any_number_of_workers(
    make_queue: MakeQueue, redis: Redis, name: str, count: int
) -> None:
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
    await audit(redis, name)
    times = sorted(times_of(ran))
    assert {after - before for before, after in pairwise(times)} == {timedelta(milliseconds=10)}


async def complete_the_rest(queue: AsyncWorkQueue, ran: list[str]) -> None:
    """Complete the items that the workers have released when they stopped."""
    for lease in await queue.lease_many(1000, 30, block=False):
        assert await queue.complete(lease)
        ran.append(lease.id)
    await finished(queue)
