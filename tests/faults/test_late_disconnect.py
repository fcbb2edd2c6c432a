"""The end of one connection may reach the server after a later command on another connection."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from leasequeue import ConnectionLost, Item, QueueClosed
from leasequeue.queue.pushes import listener
from leasequeue.testing import Proxy
from tests.eventually import eventually
from tests.queue.asking import blocked, take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

pytestmark = [pytest.mark.core, pytest.mark.slow]


class Lingering(Proxy):
    """Keeps the server's side open after a client has disconnected, until `released` is set."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._clients: list[asyncio.StreamWriter] = []
        self.released = asyncio.Event()
        self.held_up = 0

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._forward_requests(reader, writer)
        except (EOFError, OSError):
            self.held_up += 1
            await self.released.wait()
            raise

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        try:
            await super()._forward_replies(reader, writer)
        except OSError:  # the client disconnected before it got a reply
            await self.released.wait()
            raise

    def cut_clients(self) -> None:
        """Cut every connection, on the client's side only."""
        for client in self._clients:
            client.transport.abort()


@pytest.fixture
async def lingering(redis_url: str) -> AsyncIterator[Lingering]:
    """Return a proxy on which the server notices disconnects late."""
    async with Lingering(redis_url) as proxy:
        yield proxy
        proxy.released.set()


@pytest.mark.parametrize("end", ["cancel", "timeout", "close"])
async def test_an_item_moved_after_the_process_has_left_is_not_lost(
    make_queue: MakeQueue, redis: Redis, name: str, lingering: Lingering, end: str
) -> None:
    """The process has left, but the server has not noticed, and moves an item to it."""
    gone, adder = make_queue(url=lingering.url), make_queue()
    await gone.counts()  # its first connection is open
    waiting = asyncio.create_task(gone.lease(30, timeout=1 if end == "timeout" else 60))
    await blocked(redis, 1)
    if end == "cancel":
        waiting.cancel()
    closing = asyncio.create_task(gone.close()) if end == "close" else asyncio.create_task(asyncio.sleep(0))
    async with asyncio.timeout(120):
        await asyncio.wait([waiting])
    await eventually("it has disconnected", lambda: lingering.held_up > 0)
    await asyncio.sleep(0.05)  # for `leave` on the other connection, if it is sent without waiting
    await adder.add_item(Item(b"x", id="x"))
    lingering.released.set()
    await closing
    await gone.close()
    async with asyncio.timeout(120):
        lease = await take(adder)
    assert await adder.complete(lease)
    await adder.close()
    waiting.cancelled() or waiting.exception()
    assert not await left_over(redis, name)
    await audit(redis, name)


async def test_an_item_moved_after_the_clients_side_was_cut_is_not_lost(
    make_queue: MakeQueue, redis: Redis, name: str, lingering: Lingering
) -> None:
    """The client's end of the blocked connection breaks and it leaves; the server still executes the move."""
    gone, adder = make_queue(url=lingering.url), make_queue()
    later = make_queue(clock=lambda: time.time() + 60)  # when the session has expired
    waiting = asyncio.create_task(gone.lease(30))
    await blocked(redis, 1)
    lingering.refuse()
    lingering.cut_clients()
    await eventually("the client has noticed", lambda: lingering.held_up >= 2)
    await lingering.accept()
    await gone.close()
    with pytest.raises((QueueClosed, ConnectionLost)):
        await waiting
    await redis.delete(f"{name}:idle")  # otherwise the item would be leased for it
    await adder.add_item(Item(b"x", id="x"))
    assert await redis.llen(f"{name}:queue") == 0, "it is in the inbox of the closed queue"
    async with asyncio.timeout(120):
        assert await later.complete(await take(later))
    await later.close()
    lingering.released.set()
    await adder.close()
    assert not await left_over(redis, name)


async def test_an_invalid_message_does_not_affect_waiters(
    queue: AsyncWorkQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 3600)  # it does not ask again by itself
    waiting = asyncio.create_task(take(queue))
    await blocked(redis, 1)
    for message in ("", "soon", "-1", "1e9", "9" * 400, b"\xff"):
        await redis.publish(f"{queue.name}:due", message)
    await queue.add_item(Item(b"x", id="x"))
    async with asyncio.timeout(120):
        assert (await waiting).id == "x"
