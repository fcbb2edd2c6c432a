"""Two connections are two ways: a goodbye on one may arrive after what was said later on the other."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from leasehold import ConnectionLost, Item, QueueClosed
from leasehold.testing import Proxy
from tests.eventually import eventually
from tests.queue.asking import blocked, take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = [pytest.mark.core, pytest.mark.slow]


class Lingering(Proxy):
    """Keep the server's side open after a client has hung up, until `farewell` is set."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self._clients: list[asyncio.StreamWriter] = []
        self.farewell = asyncio.Event()
        self.held_up = 0

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._forward_requests(reader, writer)
        except (EOFError, OSError):
            self.held_up += 1
            await self.farewell.wait()
            raise

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        try:
            await super()._forward_replies(reader, writer)
        except OSError:  # the client hung up while a reply was on its way
            await self.farewell.wait()
            raise

    def cut_clients(self) -> None:
        """Cut every connection on the client's side alone."""
        for client in self._clients:
            client.transport.abort()


@pytest.fixture
async def lingering(redis_url: str) -> AsyncIterator[Lingering]:
    """Give a way to the server on which goodbyes are late."""
    async with Lingering(redis_url) as proxy:
        yield proxy
        proxy.farewell.set()


@pytest.mark.parametrize("end", ["cancel", "timeout", "close"])
async def test_an_item_that_comes_between_the_two_is_not_lost(
    make_queue: MakeQueue, redis: Redis, name: str, lingering: Lingering, end: str
) -> None:
    """The process has left, but the server, not knowing it yet, moves an item to it."""
    gone, adder = make_queue(url=lingering.url), make_queue()
    await gone.counts()  # its first connection is open
    waiting = asyncio.create_task(gone.lease(30, timeout=1 if end == "timeout" else 60))
    await blocked(redis, 1)
    if end == "cancel":
        waiting.cancel()
    closing = asyncio.create_task(gone.close()) if end == "close" else asyncio.create_task(asyncio.sleep(0))
    async with asyncio.timeout(10):
        await asyncio.wait([waiting])
    await eventually("it has hung up, as far as it is concerned", lambda: lingering.held_up > 0)
    await asyncio.sleep(0.05)  # for a farewell on the other connection, if it is sent without waiting
    await adder.add_item(Item(b"x", id="x"))
    lingering.farewell.set()
    await closing
    await gone.close()
    async with asyncio.timeout(20):
        lease = await take(adder)
    assert await adder.complete(lease)
    await adder.close()
    waiting.cancelled() or waiting.exception()
    assert not await left_over(redis, name)
    await audit(redis, name)


async def test_an_item_that_comes_after_only_we_were_cut_off_is_not_lost(
    make_queue: MakeQueue, redis: Redis, name: str, lingering: Lingering
) -> None:
    """Our end of the waiting connection broke, and we leave; the server is still at its blocking move."""
    gone, adder = make_queue(url=lingering.url), make_queue()
    later = make_queue(clock=lambda: time.time() + 60)  # when the session has expired
    waiting = asyncio.create_task(gone.lease(30))
    await blocked(redis, 1)
    lingering.refuse()
    lingering.cut_clients()
    await eventually("we have noticed", lambda: lingering.held_up >= 2)
    await lingering.accept()
    await gone.close()
    with pytest.raises((QueueClosed, ConnectionLost)):
        await waiting
    await adder.add_item(Item(b"x", id="x"))
    assert await redis.llen(f"{name}:queue") == 0, "it is on its way to nobody"
    async with asyncio.timeout(20):
        assert await later.complete(await take(later))
    await later.close()
    lingering.farewell.set()
    await adder.close()
    assert not await left_over(redis, name)


async def test_a_message_that_makes_no_sense_harms_no_waiter(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue = make_queue()
    waiting = asyncio.create_task(take(queue))
    await blocked(redis, 1)
    for message in ("", "soon", "-1", "1e9", "9" * 400, b"\xff"):
        await redis.publish(f"{name}:due", message)
    await queue.add_item(Item(b"x", id="x"))
    async with asyncio.timeout(3):
        assert (await waiting).id == "x"
