"""What the tests of this folder share: foreign clients, a gate, a clock, and a queue of ours."""

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
    """Start a foreign client for the test's queue, if wanted through the gate; it ends with the test."""

    async def __call__(self, library: Library, *, gated: bool = False) -> Foreign: ...


@pytest.fixture
def clock() -> Clock:
    """Give a clock for our scripts, set to the time; the server's keys expire by its own."""
    return Clock(datetime.now(UTC))


@pytest.fixture
async def queue(redis: Redis, name: str, clock: Clock) -> AsyncIterator[AsyncWorkQueue]:
    """Give our queue, by the clock of the test."""
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
    """Give a way to the server on which a client can be stopped between its commands."""
    async with Gate(redis_url) as gate:
        yield gate


# The Node client comes from npm; `make test-fast` does without it.
@pytest.fixture(params=["python", pytest.param("node", marks=pytest.mark.slow)])
def library(request: pytest.FixtureRequest) -> Library:
    """Run the test once with each foreign library."""
    named: Library = request.param
    return named
