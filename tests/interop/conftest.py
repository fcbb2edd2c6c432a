"""What the tests of this folder share: foreign clients, a gate, a clock, and a queue of ours."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from leasehold import AsyncWorkQueue
from tests.interop.foreign import Foreign, ForeignMissing, Library
from tests.interop.gate import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis


class Clock:
    """The time at which the test began, which can be moved on."""

    def __init__(self) -> None:
        self._now = time.time()

    def __call__(self) -> float:
        """Return the time, in seconds since 1970."""
        return self._now

    def move_on(self, seconds: float) -> None:
        """Let time pass for our scripts; the server's keys expire by its own clock."""
        self._now += seconds


class StartForeign(Protocol):
    """Start a foreign client for the test's queue, if wanted through the gate; it ends with the test."""

    async def __call__(self, library: Library, *, gated: bool = False) -> Foreign: ...


@pytest.fixture
def clock() -> Clock:
    return Clock()


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
