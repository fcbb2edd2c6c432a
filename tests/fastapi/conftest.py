"""The fixtures of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from leasequeue import TaskQueue
from tests.fastapi.applications import client_of, with_router


@pytest.fixture
def tasks(redis_url: str, name: str) -> TaskQueue:
    """Return a task queue with a few tasks, as a module of an application has it."""
    tasks = TaskQueue.from_url(redis_url, name)

    @tasks.task
    async def double(number: int) -> int:
        return 2 * number

    return tasks


@pytest.fixture
async def client(tasks: TaskQueue) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of an application with the router, in the event loop of the test."""
    async with client_of(with_router(tasks)) as client:
        yield client
