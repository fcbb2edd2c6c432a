"""Fixtures of this folder: foreign clients, a gate, a clock and a queue of ours."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.testing import Clock
from tests.interop.foreign import Foreign, ForeignMissing, Library
from tests.interop.gate import Gate
from tests.interop.state import keys_of, list_of
from tests.queue.asking import take

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Coroutine

    from redis.asyncio import Redis

    from leasequeue import Lease

_T = TypeVar("_T")


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


@dataclass(frozen=True)
class Shared:
    """What our queue has in common with the foreign clients, and what they do to it."""

    queue: AsyncWorkQueue
    redis: Redis
    name: str
    clock: Clock
    gate: Gate
    start: StartForeign

    async def keys(self) -> set[str]:
        """Return the keys of the queue without its prefix."""
        return await keys_of(self.redis, self.name)

    async def ids(self, key: str) -> list[str]:
        """Return the ids in a list of the queue, the next one first."""
        return [item_id.decode() for item_id in reversed(await list_of(self.redis, f"{self.name}:{key}"))]

    async def lease(self, seconds: float = 30) -> Lease:
        """Lease an item that waits."""
        return await take(self.queue, seconds, block=False)

    async def wait_and_lease(self) -> Lease:
        """Lease an item when a foreign lease has expired by the server's clock."""
        async with AsyncWorkQueue(self.name, self.redis) as ours:
            return await take(ours)

    async def finish(self, *item_ids: str) -> None:
        """Assert that exactly these items can be leased, each once, and complete them."""
        leases = await self.queue.lease_many(100, 30, block=False)
        assert [lease.id for lease in leases] == list(item_ids)
        assert await self.queue.lease(30, block=False) is None
        assert await self.queue.complete_many(leases) == [True] * len(leases)

    async def stop(self, doing: Coroutine[Any, Any, _T], before: str) -> asyncio.Task[_T]:
        """Start a call, and hold it before a command; `{}` in the command is the queue's name."""
        return await self.gate.stop(doing, before=before.format(self.name))

    async def requeue(self, item_id: str, cleaner: Foreign) -> None:
        """Let a foreign cleaner requeue a leased item, as if it had not seen the lease key."""
        await self.redis.delete(f"{self.name}:leased_by_session:{item_id}")
        await cleaner.light_clean()
        assert item_id in await self.ids("queue")
        assert item_id not in await self.ids("processing")


@pytest.fixture
def shared(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock, gate: Gate, start: StartForeign
) -> Shared:
    return Shared(queue, redis, name, clock, gate, start)


# `slow`, since `make test-fast` does not install Node.
@pytest.fixture(params=["python", pytest.param("node", marks=pytest.mark.slow)])
def library(request: pytest.FixtureRequest) -> Library:
    """Run the test with each foreign library."""
    named: Library = request.param
    return named


@pytest.fixture
async def foreign(start: StartForeign, library: Library) -> Foreign:
    """Start a client of each foreign library."""
    return await start(library)
