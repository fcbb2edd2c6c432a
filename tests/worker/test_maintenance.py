"""A worker maintains its queues: it cleans, drops old dead letters, and ticks schedules."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item, Lease
from leasequeue.alive.membership import Membership
from leasequeue.queue import cleaning
from leasequeue.queue.pushes import listener
from leasequeue.queue.schedules import Schedules
from leasequeue.wire.scripts import load
from leasequeue.worker import health, maintenance
from leasequeue.worker.maintenance import Maintenance
from tests.eventually import eventually
from tests.queue.asking import take
from tests.queue.keyspace import audit
from tests.worker.working import counted, finished, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cleans adopt ids without a lease soon."""
    monkeypatch.setattr(cleaning, "GRACE_MS", 100)


async def crash_as_a_foreign_worker(redis: Redis, name: str) -> None:
    """Leave what a worker of another library leaves when it dies: an id in `processing`, without a lease."""
    await redis.set(f"{name}:item:lost", b"x")
    await redis.lpush(f"{name}:processing", "lost")


@pytest.mark.seed("RWQ-O28", "RWQ-K4", "WRQ-O16", "WRQ-G1", "WRQ-K5")
async def test_the_item_of_a_dead_foreign_worker_is_reclaimed_even_if_schedules_cannot_be_ticked(
    queue: AsyncWorkQueue,
    redis: Redis,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(_: Schedules) -> float:
        raise ModuleNotFoundError("no cron library here")

    monkeypatch.setattr(Schedules, "tick", fails)
    ran: list[bytes] = []
    worker = new_worker(clean_every=0.1)
    worker.handler(queue)(ran.append)
    await crash_as_a_foreign_worker(redis, name)
    with caplog.at_level(logging.ERROR):
        async with working(worker):
            await eventually("the item was run", lambda: ran == [b"x"])
            await finished(queue)
    assert "could not be ticked" in caplog.text


async def test_queues_of_one_name_on_two_servers_are_both_cleaned(
    make_queue: MakeQueue, make_server: MakeServer, redis: Redis, name: str
) -> None:
    server = await make_server()
    here, there = make_queue(), make_queue(url=server.url)
    assert here.name == there.name
    ran: list[str] = []
    worker = new_worker(clean_every=0.1)
    worker.handler(there)(lambda _: ran.append("there"))
    worker.handler(here)(lambda _: ran.append("here"))
    await there.add_item(Item(b"x", id="there"))
    await crash_as_a_foreign_worker(redis, name)
    async with working(worker):
        await eventually("both items were run", lambda: sorted(ran) == ["here", "there"])


async def test_dead_letters_are_dropped_when_they_are_old_enough(queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"x", id=item_id) for item_id in ("old", "older"))
    for _ in range(2):
        await queue.fail(await take(queue), "no use")
    await Maintenance(clean_every=1, keep_dead=None).clean_once(queue, deep=True)
    await Maintenance(clean_every=1, keep_dead=3600).clean_once(queue, deep=True)
    assert await queue.dead_letters.count() == 2
    worker = new_worker(clean_every=0.05, keep_dead=0.05)
    worker.handler(queue)(lambda _: None)
    async with working(worker):
        await counted(queue, "they are dropped", lambda counts: not counts.dead)


# -------------------------------------------------------------------------------------------------- schedules


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


async def test_a_worker_that_waits_asks_little_of_shards_that_have_many_others(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither looks for items or new schedules on each of them, nor for its health on all at once."""
    monkeypatch.setattr(maintenance, "LONGEST_SLEEP", 0.1)
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 0.1)
    monkeypatch.setattr(Membership, "workers", lambda *_: 10**12)
    names, calls, shards = {one.sha.decode(): one.name for one in load().values()}, Counter[str](), 8
    async with AsyncWorkQueue(name, redis, shards=shards) as queue:
        worker = new_worker(clean_every=60)
        worker.handler(queue)(lambda _: None)

        async def count_calls() -> None:
            async with redis.monitor() as monitor:
                async for command in monitor.listen():
                    what, *rest = command["command"].split(" ", 2)
                    calls[names.get(rest[0], "") if what == "EVALSHA" else what] += 1

        counting = asyncio.create_task(count_calls())
        async with working(worker):
            await eventually("it has asked often", lambda: min(calls["register"], calls["run_settle"]) > 100)
        counting.cancel()
    assert calls["ticks_due"] <= shards
    assert calls["lease_many"] <= 3 * shards
    assert calls["check_waiting"] <= calls["INFO"] + 2
