"""What the tests of the scripts share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import Space

if TYPE_CHECKING:
    from redis.asyncio import Redis


@pytest.fixture
def space(redis: Redis, name: str) -> Space:
    """Give an empty key space of a queue."""
    return Space(redis, name)
