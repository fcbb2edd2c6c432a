"""A server that has lost its data has failed no worker: they register again, and still notice deaths."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis

from leasequeue import Item
from leasequeue.alive import ring
from leasequeue.testing import Proxy
from tests.eventually import eventually
from tests.queue.asking import until
from tests.worker.working import Gate, add, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

HOUR = 3600.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, and conclude soon."""
    monkeypatch.setattr(ring, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(ring, "READ_SECONDS", 0.05)
    monkeypatch.setattr(ring, "STANDING_SECONDS", 0.0)


@pytest.fixture
async def own_server(make_server: MakeServer) -> EmbeddedServer:
    """Return a server of this test alone, which keeps nothing."""
    return await make_server()


@pytest.fixture
async def path(own_server: EmbeddedServer) -> AsyncIterator[Proxy]:
    """Return a proxy before it."""
    async with Proxy(own_server.url) as proxy:
        yield proxy


async def checkable(admin: Redis, name: str) -> set[str]:
    """Return the names of the workers that have registered connections to this server."""
    found: list[Any] = await admin.hvals(f"{name}:workers")
    about: list[dict[str, Any]] = [json.loads(one) for one in found]
    run_id = (await admin.info("server"))["run_id"]
    return {one["name"] for one in about if one.get("connections") and one["server"] == run_id}


async def restart(make_server: MakeServer, own_server: EmbeddedServer) -> None:
    """Kill the server, and start another one in its place, which is empty."""
    os.kill(own_server.pid, signal.SIGKILL)
    await eventually("the server is down", lambda: not own_server.running)
    await make_server(port=own_server.port)


@pytest.mark.parametrize("how", ["restarted", "flushed", "registrations deleted", "facts deleted"])
async def test_a_worker_that_dies_after_the_server_has_lost_its_data_is_noticed(
    make_server: MakeServer,
    own_server: EmbeddedServer,
    path: Proxy,
    make_queue: MakeQueue,
    name: str,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    """Its items return by its connections: the lease lasts for an hour, and so does its registration."""
    dying, living = (
        new_worker(name=one, lease_time=HOUR, dead_after=HOUR, clean_every=HOUR)
        for one in ("dying", "living")
    )
    its, other = Gate(dying, make_queue(url=path.url)), Gate(living, queue := make_queue(url=own_server.url))
    async with Redis.from_url(own_server.url) as admin, working(dying), working(living):

        async def both_can_be_checked() -> bool:
            return await checkable(admin, name) == {"dying", "living"}

        await until("both are registered", both_can_be_checked)
        living.quiet()
        if how == "restarted":
            await restart(make_server, own_server)
            await admin.connection_pool.disconnect()
        elif how == "flushed":
            await admin.flushall()
        elif how == "registrations deleted":
            await admin.delete(f"{name}:workers", f"{name}:heartbeats")
        else:
            await admin.delete(f"{name}:workers")
            dying.quiet()  # as its next heartbeat is due in twenty minutes
            living.resume()
            living.quiet()
            dying.resume()
        await until("both are registered again", both_can_be_checked)
        await queue.add_item(Item(b"x", id="1"))
        await its.reached(1)
        await path.fail()
        living.resume()
        await other.reached(1)
        assert "has failed" not in caplog.text.replace("has failed on", "")
        assert "other workers cannot see" not in caplog.text
        other.opened.set()
        await finished(queue)
        its.opened.set()
        await path.heal()
    assert other.done == ["1"]


async def test_runs_whose_items_were_lost_with_the_servers_data_end_soon(
    own_server: EmbeddedServer, make_queue: MakeQueue
) -> None:
    """Though their leases would be renewed only after 20 minutes, and the worker continues."""
    worker = new_worker(lease_time=HOUR, dead_after=0.5)
    gate = Gate(worker, queue := make_queue(url=own_server.url))
    async with Redis.from_url(own_server.url) as admin, working(worker):
        await add(queue, b"x")
        await gate.reached(1)
        session = queue.session
        await admin.flushall()
        await eventually("its run is cancelled", lambda: gate.cancelled == ["1"])
        gate.opened.set()
        await queue.add_item(Item(b"x", id="after"))
        await finished(queue)
        assert queue.session == session
    assert gate.done == ["after"]


async def test_the_limits_that_a_program_declares_are_declared_again(
    own_server: EmbeddedServer, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = new_worker(dead_after=0.5)
    Gate(worker, queue := make_queue(url=own_server.url))
    async with Redis.from_url(own_server.url) as admin, working(worker):
        await until("it is registered", lambda: is_there(admin, f"{queue.name}:workers"))
        runtime = worker._runtime
        assert runtime is not None
        [consumer] = runtime.queues.consumers
        declared = asyncio.Event()

        async def declare(one: object) -> None:
            assert one is consumer
            declared.set()

        monkeypatch.setattr(runtime.fetcher, "declare", declare)
        await admin.flushall()
        async with asyncio.timeout(120):
            await declared.wait()


async def is_there(admin: Redis, key: str) -> bool:
    """Return whether a key exists."""
    return bool(await admin.exists(key))


async def test_an_item_reaches_a_worker_that_waited_when_the_server_was_emptied(
    own_server: EmbeddedServer, make_queue: MakeQueue
) -> None:
    """It is blocked in its move, or waits to have an item delivered."""
    worker = new_worker()
    gate = Gate(worker, queue := make_queue(url=own_server.url))
    gate.opened.set()
    async with Redis.from_url(own_server.url) as admin, working(worker):
        await until("it waits", lambda: is_there(admin, f"{queue.name}:sessions"))
        await admin.flushall()
        await queue.add_items(Item(b"x", id=one) for one in ("1", "2"))
        await finished(queue)
    assert gate.done == ["1", "2"]
