"""The fixtures of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from leasequeue.testing import Clock
from tests.queue.fixtures import make_queue, queue, tidy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["clock", "make_queue", "queue", "tidy"]


@pytest.fixture
def clock() -> Clock:
    """Give a clock that the test moves."""
    return Clock()


@pytest.fixture
async def tasks(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Open a task queue on the queue of this test."""
    async with TaskQueue.from_url(redis_url, name) as tasks:
        yield tasks
