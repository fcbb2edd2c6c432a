"""Fixtures of the tests of queues, beside the servers of tests/conftest.py."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from leasehold import AsyncWorkQueue
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class MakeQueue(Protocol):
    """Open another queue object; it is closed after the test at the latest."""

    def __call__(
        self,
        *,
        name: str | None = None,
        url: str | None = None,
        return_to: str = "end",
        reply_timeout: float = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> AsyncWorkQueue: ...


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
        untold.append(f"{context.get('message')}: {context.get('exception')!r} {context.get('task') or ''}")

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


@pytest.fixture
async def make_queue(redis_url: str, name: str) -> AsyncIterator[MakeQueue]:
    """Return a function that opens queue objects, without arguments of the same queue."""
    async with AsyncExitStack() as stack:

        def make(
            *,
            name: str | None = None,
            url: str | None = None,
            return_to: str = "end",
            reply_timeout: float = 10.0,
            clock: Callable[[], float] | None = None,
        ) -> AsyncWorkQueue:
            queue = AsyncWorkQueue.from_url(
                url or redis_url, name or usual, return_to=return_to, reply_timeout=reply_timeout, clock=clock
            )
            stack.push_async_exit(queue)
            return queue

        usual = name
        yield make


@pytest.fixture
def queue(make_queue: MakeQueue) -> AsyncWorkQueue:
    """Return a queue object on the shared server."""
    return make_queue()


@pytest.fixture
def clock() -> Clock:
    """Return a clock that the test moves."""
    return Clock()
