"""The server goes and comes, connections are cut or fall silent: the worker goes on by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasehold import AsyncWorkQueue, Item
from leasehold.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from tests.eventually import eventually
from tests.queue.asking import command
from tests.queue.keyspace import audit
from tests.worker.working import Gate, add, counted, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from leasehold import EmbeddedServer
    from leasehold.testing import Proxy
    from leasehold.worker import Worker
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def durable(make_server: MakeServer, folder: Path, port: int | None = None) -> EmbeddedServer:
    """Start a server that writes down every step before it answers."""
    server = await make_server(dir=folder, port=port)
    async with Redis.from_url(server.url) as admin:
        await admin.config_set("appendfsync", "always")
    return server


async def test_runs_that_end_while_the_server_is_away_are_settled_once_it_is_back(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, name: str
) -> None:
    server = await durable(make_server, tmp_path)
    queue = make_queue(url=server.url, reply_timeout=1)
    worker = new_worker(concurrency=3, lease_time=10)
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * 3)
    async with working(worker):
        await gate.reached(3)
        os.kill(server.pid, signal.SIGKILL)
        await eventually("the server has gone", lambda: not server.running)
        gate.opened.set()
        await eventually("all runs have ended", lambda: len(gate.done) == 3)
        await eventually("the worker says so", lambda: not worker.health().ok)
        await asyncio.sleep(2)
        server = await durable(make_server, tmp_path, server.port)
        other = make_queue(url=server.url)
        await finished(other)
        await eventually("the worker says so", lambda: worker.health().ok)
        await other.add_item(Item(b"x", id="after"))
        await finished(other)
    assert gate.begun == gate.done == ["1", "2", "3", "after"]
    async with Redis.from_url(server.url) as admin:
        assert not (await audit(admin, name)).all


@pytest.mark.slow
async def test_all_connections_are_cut_again_and_again(queue: AsyncWorkQueue, redis: Redis) -> None:
    runs: Counter[str] = Counter()
    worker = new_worker(concurrency=10)

    @worker.handler(queue)
    async def handle(_: bytes, lease: Lease) -> None:
        runs[lease.id] += 1
        await asyncio.sleep(0.005)

    await queue.add_items(Item(b"x", id=f"{number}") for number in range(1000))
    async with working(worker):
        for _ in range(10):
            goal = len(runs) + 1
            await command(redis, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await eventually("it goes on", partial(reached, runs, goal), within=10)
        await counted_by(redis, queue.name)
    assert len(runs) == 1000
    # One that was leased by a call whose answer was lost comes back when its lease ends; none runs beside it.
    assert max(runs.values()) == 1


def reached(runs: Counter[str], goal: int) -> bool:
    return len(runs) >= goal


async def counted_by(redis: Redis, name: str) -> None:
    async with asyncio.timeout(20):
        while await redis.llen(f"{name}:queue") + await redis.llen(f"{name}:processing"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_scripts_that_the_server_forgets_are_sent_again(queue: AsyncWorkQueue, redis: Redis) -> None:
    runs: list[bytes] = []
    worker = new_worker(concurrency=5)

    @worker.handler(queue)
    async def handle(_: bytes) -> None:
        await asyncio.sleep(0.002)
        runs.append(_)

    await queue.add_items(Item(b"x") for _ in range(500))
    async with working(worker):
        while len(runs) < 500:
            await redis.script_flush()
            await asyncio.sleep(0.01)
        await finished(queue)
    assert len(runs) == 500


@pytest.mark.slow
async def test_connections_that_fall_silent_cost_no_lease(
    make_queue: MakeQueue, proxy: Proxy, redis: Redis, name: str
) -> None:
    """Nothing arrives, nothing is closed, as behind a balancer that has forgotten them; new ones work."""
    queue = make_queue(url=proxy.url, reply_timeout=2)
    worker = new_worker(concurrency=3, lease_time=3)
    gate = Gate(worker, queue)
    await add(make_queue(), *[b"x"] * 2)
    async with working(worker):
        await gate.reached(2)
        proxy.stall_connections()
        await asyncio.sleep(3)
        assert sorted(gate.cut) == []
        gate.opened.set()
        await finished(make_queue())
        await make_queue().add_item(Item(b"x", id="after"))
        await eventually("it takes work again", lambda: "after" in gate.done, within=20)
        await finished(make_queue())
    assert sorted(gate.begun) == ["1", "2", "after"]
    assert not (await audit(redis, name)).all


@asynccontextmanager
async def frozen(server: EmbeddedServer) -> AsyncIterator[None]:
    """Stop the server's process, as a machine that swaps does."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("busy", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_health_is_red_while_the_server_is_frozen(
    make_server: MakeServer, make_queue: MakeQueue, *, busy: bool
) -> None:
    server = await make_server()
    queue = make_queue(url=server.url)
    worker = new_worker(concurrency=1, lease_time=30)
    gate = Gate(worker, queue)
    if busy:
        await add(queue, b"x")
    async with working(worker):
        if busy:
            await gate.reached(1)
        await eventually("all is well", lambda: worker.health().ok)
        async with frozen(server):
            await eventually("the worker says so", lambda: not worker.health().ok, within=5)
            assert "does not answer" in " ".join(worker.health().reasons)
        await eventually("all is well again", lambda: worker.health().ok, within=15)
        gate.opened.set()
        await queue.add_item(Item(b"x", id="after"))
        await finished(queue)


async def test_health_is_red_while_work_waits_that_is_not_taken(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker()
    Gate(worker, queue)
    async with working(worker):
        await eventually("all is well", lambda: worker.health().ok)
        await stop_fetching(worker, monkeypatch)
        await add(queue, b"x")
        await eventually("the worker says so", lambda: not worker.health().ok, within=5)
        (reason,) = worker.health().reasons
        assert reason.startswith(f"1 items of {queue.name} wait, and none has been leased for ")


async def stop_fetching(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it take nothing any more, without an error."""
    runtime = worker._runtime
    assert runtime is not None
    monkeypatch.setattr(runtime, "may_fetch", lambda: False)
    for source in runtime._fetcher._sources:
        if source.call is not None:
            source.call.cancel()
    await asyncio.sleep(0)


async def test_a_server_that_is_away_costs_the_queues_of_another_nothing(
    make_server: MakeServer, make_queue: MakeQueue, name: str
) -> None:
    """Under strict order, and with the queue that is away first; both have the same name."""
    server = await make_server()
    away, here = make_queue(url=server.url, reply_timeout=1), make_queue()
    worker = new_worker(order="strict", lease_time=1.5, concurrency=5)
    first, second = Gate(worker, away), Gate(worker, here)
    await add(away, b"x")
    await add(here, b"x")
    assert away.name == here.name == name
    async with working(worker):
        await first.reached(1)
        await second.reached(1)
        async with frozen(server):
            await eventually("the worker says so", lambda: not worker.health().ok, within=5)
            await asyncio.sleep(1)
            assert not second.cut, "its lease was renewed all the while"
            await here.add_item(Item(b"x", id="more"))
            await second.reached(2)
            second.opened.set()
            await finished(here)
        first.opened.set()
        fresh = make_queue(url=server.url)  # what `away` waits for may still end its connection
        await counted(fresh, "it is done, or comes back", lambda counts: not counts.total)
    assert second.done == ["1", "more"]
