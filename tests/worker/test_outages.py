"""A worker continues by itself after outages of the server and of its connections."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.pushes import listener
from leasequeue.queue.queue import engines_of
from leasequeue.worker import Retry, Snooze
from leasequeue.worker.fetcher import MAX_UNACKNOWLEDGED
from tests.eventually import eventually
from tests.faults.test_killed_server import kill, start
from tests.queue.asking import command, until
from tests.queue.keyspace import audit
from tests.worker.working import SHORT_LEASE, Gate, add, counted, finished, new_worker, renewed, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from leasequeue.embedded import EmbeddedServer
    from leasequeue.testing import Clock, Proxy
    from leasequeue.worker import Worker
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.seed("GLD-B6")
async def test_runs_that_finish_while_the_server_is_down_are_completed_once_it_is_back(
    make_server: MakeServer, make_queue: MakeQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasequeue.worker")
    server = await start(make_server, tmp_path)
    queue = make_queue(url=server.url, reply_timeout=1)
    worker = new_worker(concurrency=3, lease_time=30)
    gate = Gate(worker, queue)
    await add(queue, *[b"x"] * 3)
    async with working(worker):
        await gate.reached(3)
        await kill(server)
        gate.opened.set()
        await eventually("all runs have finished", lambda: len(gate.done) == 3)
        await eventually("the worker is unhealthy", lambda: not worker.health().ok)
        await eventually(
            "it retries", lambda: "outcomes of Gate.__init__.<locals>.handle wait" in caplog.text
        )
        server = await start(make_server, tmp_path, server.port)
        other = make_queue(url=server.url)
        await finished(other)
        await eventually("the worker is healthy", lambda: worker.health().ok)
        await other.add_item(Item(b"x", id="after"))
        await finished(other)
    assert gate.begun == gate.done == ["1", "2", "3", "after"]
    assert caplog.text.count(f"the server is back: {queue.name} can be leased from") == 1
    async with Redis.from_url(server.url) as admin:
        assert not (await audit(admin, queue.name)).all


@pytest.mark.seed("GLD-B6")
async def test_an_outcome_that_the_server_refuses_for_a_while_is_sent_until_it_is_accepted(
    make_server: MakeServer, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """Completing, retrying and snoozing alike: no item runs again, and the worker stops as usual."""
    server = await make_server()
    queue = make_queue(url=server.url)
    finish, begun = asyncio.Event(), list[str]()
    worker = new_worker(concurrency=3, lease_time=3600)

    @worker.handler(queue)
    async def handle(payload: str) -> None:
        begun.append(payload)
        await finish.wait()
        if payload == "retry":
            raise Retry(delay=3600)
        if payload == "snooze":
            raise Snooze(3600)

    await add(queue, "complete", "retry", "snooze")
    async with working(worker), Redis.from_url(server.url) as admin:
        await eventually("all runs have started", lambda: len(begun) == 3)
        await admin.config_set("min-replicas-to-write", 1)  # from now on the server refuses every write
        finish.set()
        await eventually("outcomes wait", lambda: "wait for the server" in caplog.text)
        assert (await queue.counts()).leased == 3
        await admin.config_set("min-replicas-to-write", 0)
        await counted(queue, "all outcomes are accepted", lambda counts: counts == (0, 0, 2, 0))
    assert sorted(begun) == ["complete", "retry", "snooze"]


async def test_no_item_is_lost_or_run_twice_when_all_connections_break_again_and_again(
    make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    queue = make_queue(clock=clock)
    clock.attach(queue)
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
            await eventually("it continues", partial(reached, runs, goal))

        async def is_empty() -> bool:
            left = await redis.llen(f"{queue.name}:queue") + await redis.llen(f"{queue.name}:processing")
            if left and not holds_runs(worker):
                clock.advance(6)  # an item leased by a call whose reply was lost: its lease expires
            return not left

        await until("all items are done", is_empty)
    assert len(runs) == 1000
    assert max(runs.values()) == 1


def reached(runs: Counter[str], goal: int) -> bool:
    return len(runs) >= goal


def holds_runs(worker: Worker) -> bool:
    return worker._runtime is not None and worker._runtime.held > 0


async def test_connections_that_fall_silent_cost_no_lease(
    make_queue: MakeQueue,
    proxy: Proxy,
    redis: Redis,
    name: str,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is closed, as behind a load balancer that forgot its connections; new connections work."""
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 1)
    monkeypatch.setattr(listener, "MARGIN_SECONDS", 0.5)
    queue = make_queue(url=proxy.url, reply_timeout=0.5, clock=clock)
    direct = make_queue(clock=clock)
    worker = new_worker(concurrency=3, lease_time=SHORT_LEASE)
    gate = Gate(worker, queue)
    await add(direct, *[b"x"] * 2)
    async with working(worker):
        await gate.reached(2)
        proxy.stall_connections()
        for _ in range(3):
            await renewed(redis, direct, clock, "1", "2")
        assert gate.cancelled == []
        gate.opened.set()
        await finished(direct)
        # Too large to be delivered: it could be leased for the silent connection, and the clock stands still.
        await direct.add_item(Item(b"x" * 65_537, id="after"))
        await eventually("it works again", lambda: "after" in gate.done)
        await finished(direct)
    assert sorted(gate.begun) == ["1", "2", "after"]
    assert not (await audit(redis, name)).all


@asynccontextmanager
async def frozen(server: EmbeddedServer) -> AsyncIterator[None]:
    """Stop the server's process inside the block."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize("busy", [False, True])
async def test_a_worker_is_unhealthy_while_the_server_is_frozen(
    make_server: MakeServer, make_queue: MakeQueue, *, busy: bool
) -> None:
    server = await make_server()
    queue = make_queue(url=server.url)
    worker = new_worker(concurrency=1, lease_time=2)
    gate = Gate(worker, queue)
    if busy:
        await add(queue, b"x")
    async with working(worker):
        if busy:
            await gate.reached(1)
        await eventually("it is healthy", lambda: worker.health().ok)
        async with frozen(server):
            await eventually("it is unhealthy", lambda: not worker.health().ok)
            await eventually(  # items that wait may be the first reason
                "the server's silence is a reason",
                lambda: "does not answer" in " ".join(worker.health().reasons),
            )
        await eventually("it is healthy again", lambda: worker.health().ok)
        gate.opened.set()
        await queue.add_item(Item(b"x", id="after"))
        await finished(queue)


@pytest.mark.usefixtures("quick_checks")
async def test_a_worker_is_unhealthy_while_items_wait_and_none_is_leased_but_for_a_pause(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = make_queue(name=f"{queue.name}-paused")
    await paused.pause()
    await add(paused, b"x")
    worker = new_worker()
    Gate(worker, queue)
    Gate(worker, paused)
    async with working(worker):
        await eventually("it is healthy", lambda: worker.health().ok)
        await stop_fetching(worker, monkeypatch)
        await add(queue, b"x")
        await eventually("it is unhealthy", lambda: not worker.health().ok)
        (reason,) = worker.health().reasons
        assert reason.startswith(f"1 items of {queue.name} wait, ")
        (public,) = worker.health().public_reasons
        assert public.startswith("items wait, "), "probes are for anyone"


async def stop_fetching(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a worker from leasing, without an error."""
    runtime = worker._runtime
    assert runtime is not None
    monkeypatch.setattr(runtime._backlog, "size", MAX_UNACKNOWLEDGED)
    fetcher = runtime.fetcher
    for source in fetcher._sources.values():
        if source.call is not None:
            source.call.cancel()
        engines_of(source.consumer.queue).unwatch(fetcher._watchers[source])
    await asyncio.sleep(0)


@pytest.mark.usefixtures("quick_checks")
async def test_a_server_that_is_frozen_costs_the_queues_of_another_nothing(
    make_server: MakeServer, make_queue: MakeQueue, redis: Redis, clock: Clock
) -> None:
    """Under strict order, with the queue of the frozen server first; both queues have the same name."""
    server = await make_server()
    away = make_queue(url=server.url, reply_timeout=1, clock=clock)
    here = make_queue(clock=clock)
    worker = new_worker(order="strict", lease_time=SHORT_LEASE, concurrency=5)
    first, second = Gate(worker, away), Gate(worker, here)
    await add(away, b"x")
    await add(here, b"x")
    assert away.name == here.name
    async with working(worker):
        await first.reached(1)
        await second.reached(1)
        async with frozen(server):
            await eventually("it is unhealthy", lambda: not worker.health().ok)
            for _ in range(5):
                await renewed(redis, here, clock, "1")
            assert not second.cancelled
            await here.add_item(Item(b"x", id="more"))
            await second.reached(2)
            second.opened.set()
            await finished(here)
        first.opened.set()
        fresh = make_queue(url=server.url, clock=clock)  # connections of `away` may have timed out
        await counted(fresh, "the item is done, or waits again", lambda counts: not counts.total)
    assert second.done == ["1", "more"]
