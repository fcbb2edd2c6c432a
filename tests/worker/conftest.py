"""The fixtures of this folder."""

from __future__ import annotations

import pytest

from leasehold.testing import Clock
from tests.queue.fixtures import admin, make_queue, own, queue, tidy
from tests.worker.processes import processes

__all__ = ["admin", "clock", "make_queue", "own", "processes", "queue", "tidy"]


@pytest.fixture
def clock() -> Clock:
    """Give a clock that the test moves, for queues that are made with it."""
    return Clock()
