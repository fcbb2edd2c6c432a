"""The fixtures of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from tests.queue.fixtures import admin, clock, make_queue, own, plain, queue, tidy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

__all__ = ["admin", "clock", "make_queue", "own", "plain", "queue", "tidy"]


@pytest.fixture(params=[None, 4], ids=["plain", "shards"])
def either(make_queue: MakeQueue, request: pytest.FixtureRequest) -> AsyncWorkQueue:
    """Return what `queue` does, without and with shards."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    return make_queue(clock=clock, shards=request.param)


@pytest.fixture(params=[None, 4], ids=["plain", "shards"])
async def tasks(redis_url: str, name: str, request: pytest.FixtureRequest) -> AsyncIterator[TaskQueue]:
    """Open a task queue on the queue of this test, without and with shards: see also `ONE_QUEUE`."""
    async with TaskQueue.from_url(redis_url, name, shards=request.param) as tasks:
        yield tasks
