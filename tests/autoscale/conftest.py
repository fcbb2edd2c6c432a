"""The fixtures of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from tests.autoscale.scaling import Platform
from tests.queue.fixtures import make_queue, queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["make_queue", "queue"]


@pytest.fixture
async def tasks(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Open a task queue on the queue of this test."""
    async with TaskQueue.from_url(redis_url, name) as tasks:
        yield tasks


@pytest.fixture
def platform() -> Platform:
    """Give the back ends of the autoscalers of this test, in memory."""
    return Platform()
