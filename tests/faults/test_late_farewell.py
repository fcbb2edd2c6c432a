"""Two connections are two ways: a goodbye on one may arrive after what was said later on the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasehold import Item
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.queue.asking import blocked, take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


class Lingering(Proxy):
    """Keep the server's side open after a client has hung up, until `farewell` is set."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.farewell = asyncio.Event()
        self.held_up = 0

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._forward_requests(reader, writer)
        except (EOFError, OSError):
            self.held_up += 1
            await self.farewell.wait()
            raise


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
    waiting = asyncio.create_task(gone.lease(30, timeout=0.2 if end == "timeout" else 60))
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
