"""The fixtures of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from tests.queue.fixtures import admin, clock, make_queue, own, plain, queue, tidy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["admin", "clock", "make_queue", "own", "plain", "queue", "tidy"]


@pytest.fixture
async def tasks(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Open a task queue on the queue of this test."""
    async with TaskQueue.from_url(redis_url, name) as tasks:
        yield tasks
