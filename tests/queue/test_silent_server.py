"""A server that stands still: calls end after the reply timeout, however many wait."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, ConnectionLost, Item

if TYPE_CHECKING:
    from tests.conftest import MakeServer

CALLS = 5_000


async def connections_of(redis: Redis) -> int:
    received: int = (await redis.info("stats"))["total_connections_received"]
    return received


@pytest.mark.slow
async def test_all_calls_on_a_server_that_stands_still_end_together(make_server: MakeServer) -> None:
    """They were 1,000 a second, each thousand with its own connection that was not answered either."""
    server = await make_server()
    async with (
        Redis.from_url(server.url) as redis,
        AsyncWorkQueue.from_url(server.url, "q", reply_timeout=3) as queue,
    ):
        await queue.add_item(Item(b"x", id="before"))
        before = await connections_of(redis)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            errors = await asyncio.gather(
                *(queue.add_item(Item(b"x")) for _ in range(CALLS)),
                *(queue.lease(30, block=False) for _ in range(CALLS)),
                return_exceptions=True,
            )
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert {type(error) for error in errors} == {ConnectionLost}
        applied = sum(error.maybe_applied for error in errors if isinstance(error, ConnectionLost))
        # The ones that had left the process; calls that were made while the first waited get one more try.
        assert applied <= 3_000
        assert await connections_of(redis) - before <= 3
        assert await queue.add_item(Item(b"x", id="after"))
