"""Fixtures of the tests of queues, beside the servers of tests/conftest.py."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue
from leasequeue.errors.describing import describe, shown
from tests.eventually import LIMIT_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from leasequeue.codecs import Codecs
    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer


class Clock:
    """A clock that the test moves, for `AsyncWorkQueue(clock=...)`."""

    def __init__(self) -> None:
        self.now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
async def tidy() -> AsyncIterator[None]:
    """Fail a test that leaves a task running, or an exception that was never retrieved."""
    untold: list[str] = []

    def note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = "" if error is None else describe(error)  # an exception of a test may not have a text
        untold.append(f"{context.get('message')}: {text} {shown(context.get('task'))}")

    asyncio.get_running_loop().set_exception_handler(note)
    before = asyncio.all_tasks()
    yield

    def left() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - before - {asyncio.current_task()}

    try:
        await eventually("all tasks have ended", lambda: not left())
    except AssertionError:
        raise AssertionError(f"tasks are left: {left()}") from None
    gc.collect(1)  # so that a future with an unread exception reports it now
    await asyncio.sleep(0)
    assert not untold, untold


@dataclass(frozen=True)
class MakeQueue:
    """Opens queue objects, by default of the same queue; they are closed after the test at the latest."""

    url: str
    name: str
    opened: AsyncExitStack

    def __call__(
        self,
        *,
        name: str | None = None,
        url: str | None = None,
        return_to: str = "end",
        reply_timeout: float = LIMIT_SECONDS,
        clock: Callable[[], float] | None = None,
        shards: int | None = None,
        codec: Codecs = None,
    ) -> AsyncWorkQueue:
        queue = AsyncWorkQueue.from_url(
            url or self.url,
            name or self.name,
            return_to=return_to,
            reply_timeout=reply_timeout,
            clock=clock,
            shards=shards,
            codec=codec,
        )
        self.opened.push_async_exit(queue)
        return queue


@pytest.fixture
async def make_queue(redis_url: str, name: str) -> AsyncIterator[MakeQueue]:
    """Return a function that opens queue objects."""
    async with AsyncExitStack() as stack:
        yield MakeQueue(redis_url, name, stack)


@pytest.fixture
def queue(make_queue: MakeQueue, request: pytest.FixtureRequest) -> AsyncWorkQueue:
    """Return a queue object on the shared server, with the clock of the test if it asks for one."""
    return make_queue(clock=request.getfixturevalue("clock") if "clock" in request.fixturenames else None)


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()


@pytest.fixture
def plain(redis_url: str) -> Iterator[redis_py.Redis]:
    """Return a client for tests that run their own event loops."""
    with redis_py.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
async def own(make_server: MakeServer) -> EmbeddedServer:
    """Start a server that the test may configure."""
    return await make_server()


@pytest.fixture
async def admin(own: EmbeddedServer) -> AsyncIterator[Redis]:
    """Return a client of that server."""
    async with Redis.from_url(own.url) as client:
        yield client
