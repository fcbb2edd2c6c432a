"""A worker looks after its queues: it cleans, drops old dead letters, and ticks schedules."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from leasehold import Item
from leasehold.queue.schedules import Schedules
from leasehold.worker.maintenance import Maintenance
from tests.eventually import eventually
from tests.queue.asking import take
from tests.worker.working import counted, finished, new_worker, working

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def drop_by_a_foreign_worker(redis: Redis, name: str) -> None:
    """Leave what a client of another library leaves that has died at work: the id without a lease."""
    await redis.set(f"{name}:item:lost", b"x")
    await redis.lpush(f"{name}:processing", "lost")


async def test_what_a_dead_foreign_worker_held_comes_back(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    ran: list[bytes] = []
    worker = new_worker(clean_every=0.2)
    worker.handler(queue)(ran.append)
    await drop_by_a_foreign_worker(redis, name)
    async with working(worker):
        await eventually("it was run", lambda: ran == [b"x"])
        await finished(queue)


@pytest.mark.slow
async def test_queues_of_one_name_on_two_servers_are_both_cleaned(
    make_queue: MakeQueue, make_server: MakeServer, redis: Redis, name: str
) -> None:
    server = await make_server()
    here, there = make_queue(), make_queue(url=server.url)
    assert here.name == there.name
    ran: list[str] = []
    worker = new_worker(clean_every=0.2)
    worker.handler(there)(lambda _: ran.append("there"))
    worker.handler(here)(lambda _: ran.append("here"))
    await there.add_item(Item(b"dead", id="there"))
    await drop_by_a_foreign_worker(redis, name)
    await there.dead_letters.count()
    async with working(worker):
        await eventually("both were run", lambda: sorted(ran) == ["here", "there"])


async def test_dead_letters_are_kept_for_so_long(queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"x", id=item_id) for item_id in ("old", "older"))
    for _ in range(2):
        await queue.fail(await take(queue), "no use")
    keeps = new_worker(clean_every=0.1, keep_dead=None)
    drops = new_worker(clean_every=0.1, keep_dead=0.5)
    for worker in (keeps, drops):
        worker.handler(queue)(lambda _: None)
    seen: list[Any] = []
    async with working(keeps):
        maintenance = Maintenance(clean_every=1, keep_dead=None)
        await maintenance.clean_once(queue, deep=True)
        seen.append(await queue.dead_letters.count())
    async with working(drops):
        await counted(queue, "they are dropped", lambda counts: not counts.dead)
    assert seen == [2]


async def test_schedules_that_fail_keep_nobody_from_cleaning(
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
    worker = new_worker(clean_every=0.2)
    worker.handler(queue)(ran.append)
    await drop_by_a_foreign_worker(redis, name)
    with caplog.at_level(logging.ERROR):
        async with working(worker):
            await eventually("it was run", lambda: ran == [b"x"])
    assert "could not be ticked" in caplog.text


async def test_a_worker_ticks_schedules(queue: AsyncWorkQueue) -> None:
    ran: list[bytes] = []
    worker = new_worker(clean_every=60)
    worker.handler(queue)(ran.append)
    await queue.schedules.every(0.2, "often", b"tick")
    async with working(worker):
        await eventually("it ticks", lambda: len(ran) >= 3)
    await queue.schedules.remove("often")
