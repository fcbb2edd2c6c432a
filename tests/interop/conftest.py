"""Fixtures of this folder: foreign clients, a gate, a clock and a queue of ours."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import pytest

from leasehold import AsyncWorkQueue
from leasehold.testing import Clock
from tests.interop.foreign import Foreign, ForeignMissing, Library
from tests.interop.gate import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis


class StartForeign(Protocol):
    """Start a foreign client for the queue of the test; it is stopped after the test."""

    async def __call__(self, library: Library, *, gated: bool = False) -> Foreign: ...


@pytest.fixture
def clock() -> Clock:
    """Return a clock for our scripts, set to the present; keys on the server expire by the server's clock."""
    return Clock(datetime.now(UTC))


@pytest.fixture
async def queue(redis: Redis, name: str, clock: Clock) -> AsyncIterator[AsyncWorkQueue]:
    """Return our queue, with the clock of the test."""
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        yield queue


@pytest.fixture
async def start(redis_url: str, name: str, gate: Gate) -> AsyncIterator[StartForeign]:
    async with AsyncExitStack() as started:

        async def start(library: Library, *, gated: bool = False) -> Foreign:
            try:
                client = await Foreign.start(library, gate.url if gated else redis_url, name)
            except ForeignMissing as missing:
                pytest.fail(str(missing), pytrace=False)
            return await started.enter_async_context(client)

        yield start


@pytest.fixture
async def gate(redis_url: str) -> AsyncIterator[Gate]:
    """Return a proxy that can hold a client between two of its commands."""
    async with Gate(redis_url) as gate:
        yield gate


# `slow`, since `make test-fast` does not install Node.
@pytest.fixture(params=["python", pytest.param("node", marks=pytest.mark.slow)])
def library(request: pytest.FixtureRequest) -> Library:
    """Run the test with each foreign library."""
    named: Library = request.param
    return named
