"""The fixtures of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import TaskQueue
from leasequeue.testing import Clock
from leasequeue.worker import health
from tests.queue.fixtures import admin, make_queue, own, plain, queue, tidy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["admin", "clock", "make_queue", "own", "plain", "queue", "tidy"]


@pytest.fixture
def clock() -> Clock:
    """Give a clock that the test moves, for queues that are made with it."""
    return Clock()


@pytest.fixture
async def tasks(redis_url: str, name: str) -> AsyncIterator[TaskQueue]:
    """Open a task queue on the queue of this test."""
    async with TaskQueue.from_url(redis_url, name) as tasks:
        yield tasks


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers check their health often."""
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.1)
