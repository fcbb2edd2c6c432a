"""What the tests of the scripts share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.runs import Runs
from tests.lua.space import ME, Space

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub


@pytest.fixture
def space(redis: Redis, name: str) -> Space:
    """Give an empty key space of a queue."""
    return Space(redis, name)


@pytest.fixture
def runs(space: Space) -> Runs:
    """Give flow runs whose home queue is that key space."""
    return Runs(space)


@pytest.fixture
async def channel(space: Space) -> AsyncIterator[PubSub]:
    """Subscribe as a process that waits."""
    async with space.redis.pubsub() as channel:
        await channel.subscribe(space.key(f"push:{ME}"))
        await channel.get_message(timeout=120)
        yield channel


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the scripts on each kind of server."""
    for item in items:
        if item.nodeid.startswith("tests/lua/"):
            item.add_marker(pytest.mark.core)
