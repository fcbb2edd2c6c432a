"""The fixtures of this folder."""

from __future__ import annotations

import pytest

from leasehold import TaskQueue
from tests.worker.processes import processes

__all__ = ["processes"]


@pytest.fixture
def tasks(redis_url: str, name: str) -> TaskQueue:
    """Return a task queue with a few tasks, as a module of an application has it."""
    tasks = TaskQueue.from_url(redis_url, name)

    @tasks.task
    async def double(number: int) -> int:
        return 2 * number

    return tasks
