"""A worker names its connections to others only if the server confirms them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.alive.connections import NOT_CHECKABLE, Mark, OwnConnections
from tests.eventually import eventually
from tests.queue.asking import engine_of, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue.testing import Proxy

pytestmark = pytest.mark.core


class Changes:
    """Counts how often a worker was asked to register again."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def changes() -> Changes:
    """Return what is called when connections have changed."""
    return Changes()


@pytest.fixture
async def own(changes: Changes) -> AsyncIterator[OwnConnections]:
    """Return the checks of a worker's own connections."""
    own = OwnConnections(changes)
    yield own
    own.close()


async def vouched(own: OwnConnections, queue: AsyncWorkQueue) -> Mark:
    """Return what a worker would register now."""
    assert await own.check([queue])
    return own.mark(queue)


async def listen(queue: AsyncWorkQueue) -> None:
    """Open the connection for pushes."""
    await queue.counts()
    await engine_of(queue).route.subscribe(b"a", lambda _: None, lambda: None).confirmed()


async def test_the_connections_are_those_that_last(
    queue: AsyncWorkQueue, redis: Redis, own: OwnConnections
) -> None:
    await listen(queue)
    assert await queue.lease(30, timeout=0.01) is None  # opens one that waits
    ours = await vouched(own, queue)
    listed = {
        client["name"].split(":")[1]: int(client["id"])
        for client in await redis.client_list()
        if client["name"].startswith("leasequeue:")
    }
    assert ours.connections == tuple(sorted({listed["commands"], listed["pushes"]}))
    assert ours.server == (await redis.info("server"))["run_id"]
    assert own.off is None


async def test_a_lost_connection_is_noticed_and_replaced(
    queue: AsyncWorkQueue, redis: Redis, own: OwnConnections, changes: Changes
) -> None:
    await listen(queue)
    checking = asyncio.create_task(own.run([queue]))
    await eventually("they are checked", lambda: len(own.mark(queue).connections) == 2)
    before, seen = own.mark(queue), changes.count
    await redis.client_kill_filter(_id=str(before.connections[1]))

    def replaced() -> bool:
        return len(own.mark(queue).connections) == 2 and own.mark(queue) != before

    await eventually("another one is registered", replaced)
    assert own.mark(queue).connections[0] == before.connections[0]
    assert changes.count > seen
    assert own.off is None
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)


@pytest.mark.parametrize("forbidden", ["-client", "-client|list", "-client|id", "-info", "-client|setname"])
async def test_where_the_server_refuses_to_say_it_is_off(
    redis: Redis,
    redis_url: str,
    name: str,
    own: OwnConnections,
    caplog: pytest.LogCaptureFixture,
    forbidden: str,
) -> None:
    await redis.execute_command(  # type: ignore[no-untyped-call]
        "ACL", "SETUSER", "plain", "reset", "on", ">x", "~*", "&*", "+@all", *_without(forbidden)
    )
    try:
        url = redis_url.replace("redis://", "redis://plain:x@")
        async with AsyncWorkQueue.from_url(url, name) as queue:
            await queue.counts()
            with caplog.at_level(logging.WARNING, "leasequeue.worker"):
                assert await vouched(own, queue) == NOT_CHECKABLE
                assert await vouched(own, queue) == NOT_CHECKABLE
            assert own.off is not None
            [warning] = caplog.messages
            assert "its items return when their leases expire" in warning
    finally:
        await redis.acl_deluser("plain")


def _without(forbidden: str) -> list[str]:
    """Return rules that forbid one command; Redis 6.2 knows no forbidden subcommands."""
    command, _, sub = forbidden.removeprefix("-").partition("|")
    allowed = [f"+{command}|{other}" for other in ("id", "list", "setname") if other != sub]
    return [f"-{command}", *(allowed if sub else [])]


@pytest.mark.parametrize("what", ["other names", "the same id", "does not have its connections"])
async def test_where_a_proxy_renames_or_shares_connections_or_another_server_is_asked_it_is_off(
    queue: AsyncWorkQueue, own: OwnConnections, what: str
) -> None:
    await listen(queue)
    first, second = session(queue).connections
    if what == "other names":  # as two clients give a connection that they share
        await engine_of(queue).route.server.ask((b"CLIENT", b"SETNAME", b"leasequeue:commands:other:1"))
    elif what == "the same id":
        second.id = first.id
    else:
        first.id = 1 << 40
    assert await vouched(own, queue) == NOT_CHECKABLE
    assert own.off is not None
    assert what in own.off


async def test_behind_a_proxy_that_cuts_connections_again_and_again_it_is_off(
    proxy: Proxy, name: str, own: OwnConnections
) -> None:
    async with AsyncWorkQueue.from_url(proxy.url, name) as queue:
        await listen(queue)
        before = await vouched(own, queue)
        for _ in range(2):
            await cut(proxy, queue)
            after = await vouched(own, queue)
            assert after.connections
            assert not set(after.connections) & set(before.connections)
            before = after
        await cut(proxy, queue)
        assert await vouched(own, queue) == NOT_CHECKABLE
    assert own.off is not None
    assert "cut 3 times" in own.off


async def cut(proxy: Proxy, queue: AsyncWorkQueue) -> None:
    """Cut all connections; return when the queue has another."""
    before = [one.connection for one in session(queue).connections]
    await proxy.cut()
    await eventually("the cut is noticed", lambda: all(one.ended for one in before))
    await queue.counts()
