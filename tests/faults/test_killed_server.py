"""A server that is killed under load and restarted keeps what it has acknowledged."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, ConnectionLost, Item, Lease
from leasequeue.errors import ServerBusy
from tests.eventually import eventually
from tests.faults.flow_runs import Flows
from tests.queue.asking import blocked, take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


Answer = TypeVar("Answer")


@dataclass
class Record:
    """The results that the callers got."""

    added: set[str] = field(default_factory=set)
    completed: Counter[str] = field(default_factory=Counter)
    unsure: set[str] = field(default_factory=set)
    losses: int = 0


async def insist(record: Record, call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call until the server answers it."""
    while True:
        try:
            return await call()
        except (ConnectionLost, ServerBusy):
            record.losses += 1
            await asyncio.sleep(0.01)


async def add(
    queue: AsyncWorkQueue, record: Record, numbers: itertools.count[int], stop: asyncio.Event
) -> None:
    while not stop.is_set():
        item = Item(b"x" * 100, id=f"{next(numbers)}")
        await insist(record, partial(queue.add_item, item))
        record.added.add(item.id)


async def work(queue: AsyncWorkQueue, record: Record, stop: asyncio.Event) -> None:
    while True:
        lease = await insist(record, lambda: queue.lease(1.0, timeout=0.3))
        if lease is not None:
            await complete(queue, record, lease)
        elif stop.is_set() and not (await insist(record, queue.counts)).total:
            return


async def complete(queue: AsyncWorkQueue, record: Record, lease: Lease) -> None:
    """Complete as a worker does, and record when the reply True may have been lost."""
    while True:
        try:
            if await queue.complete(lease):
                record.completed[lease.id] += 1
        except (ConnectionLost, ServerBusy) as error:
            record.losses += 1
            if getattr(error, "maybe_applied", False):
                record.unsure.add(lease.id)
            await asyncio.sleep(0.01)
        else:
            return


async def start(make_server: MakeServer, folder: Path, port: int = 0) -> EmbeddedServer:
    """Start a server that writes every change to disk before it answers."""
    server = await make_server(dir=folder, port=port)
    async with Redis.from_url(server.url) as admin:
        await admin.config_set("appendfsync", "always")
    return server


async def kill(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await eventually("the server has gone", lambda: not server.running)


async def progress(record: Record) -> None:
    """Wait until 200 more items are completed."""
    seen = sum(record.completed.values())
    await eventually("200 more items are completed", lambda: sum(record.completed.values()) > seen + 200)


@pytest.mark.slow
@pytest.mark.seed("RWQ-G2", "GLD-G4", "RRQ-T2", "RRQ-B2")
async def test_nothing_acknowledged_is_lost_and_each_item_is_completed_once(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    server = await start(make_server, tmp_path)
    queues = [make_queue(url=server.url, reply_timeout=5) for _ in range(3)]
    record, stop, numbers = Record(), asyncio.Event(), itertools.count()
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for queue in queues:
            for _ in range(5):
                group.create_task(add(queue, record, numbers, stop))
                group.create_task(work(queue, record, stop))
        for _ in range(3):
            await progress(record)
            await kill(server)
            server = await start(make_server, tmp_path, server.port)
        await progress(record)
        stop.set()

    assert record.losses
    assert max(record.completed.values()) == 1
    assert record.completed.keys() <= record.added
    assert record.added - record.completed.keys() <= record.unsure
    async with Redis.from_url(server.url) as admin:
        await audit(admin, name)
        for queue in queues:
            await queue.close()
        assert not await left_over(admin, name)


@pytest.mark.seed("RRQ-B1")
async def test_waiting_works_again_after_a_restart(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    """Waiting callers get ConnectionLost; the next call waits as before."""
    server = await start(make_server, tmp_path)
    waiter, adder = make_queue(url=server.url), make_queue(url=server.url)
    await adder.add_item(Item(b"x", id="leased"))
    lease = await take(adder, 3)
    waiting = asyncio.create_task(waiter.lease(30))
    async with Redis.from_url(server.url) as admin:
        await blocked(admin, 1)
    await kill(server)
    with pytest.raises(ConnectionLost):
        await waiting
    server = await start(make_server, tmp_path, server.port)
    taken = await take(waiter, 30)
    assert (taken.id, taken.attempt) == ("leased", 2)
    assert taken.token > lease.token
    assert await waiter.complete(taken)
    assert await adder.complete(lease) is False
    waiting = asyncio.create_task(waiter.lease(30))
    await adder.add_item(Item(b"x", id="next"))
    async with asyncio.timeout(120):
        after = await waiting
    assert after is not None
    # Not the next one exactly: a delivery that is not accepted in time has taken a number.
    assert taken.token < after.token < taken.token + 10, "the token counter has survived, too"
    async with Redis.from_url(server.url) as admin:
        assert (await audit(admin, name)).leased == [b"next"]


# -------------------------------------------------------------------------------------------------- flow runs


@pytest.mark.slow
@pytest.mark.seed("GLD-G5", "GLD-B2", "GLD-B3")
async def test_runs_go_on_when_the_server_is_killed_and_restarted(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    server = await start(make_server, tmp_path)
    flows, stop = Flows(logs, name), asyncio.Event()
    queues = [make_queue(name=one, url=server.url, reply_timeout=5) for _ in range(3) for one in flows.names]
    home, other, *of_workers = queues
    workers = [flows.worker(*of_workers[at : at + 2]) for at in (0, 2)]
    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        running = [group.create_task(worker.run()) for worker in workers]
        group.create_task(flows.start_runs(home, stop))
        for _ in range(3):
            await until("more runs are started", partial(flows.has_started, 20))
            await kill(server)
            server = await start(make_server, tmp_path, server.port)
        stop.set()
        await until("all runs have ended", partial(flows.all_ended, home))
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
    assert flows.losses
    problems = await flows.problems(home, other)
    assert not problems, "\n".join(problems[:20])
    for run_id in flows.started:
        assert await home.flow_runs.delete(run_id)
    for queue in queues:
        await queue.close()
    async with Redis.from_url(server.url) as admin:
        left = await left_over(admin, home.name) | await left_over(admin, other.name)
    # Sessions of before a restart stay registered until their time is over.
    assert {key for key in left if not key.endswith((b":idle", b":sessions"))} == set()
