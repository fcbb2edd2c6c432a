"""The fixtures of this folder."""

from __future__ import annotations

import pytest

from tests.autoscale.scaling import Platform
from tests.queue.fixtures import make_queue, queue
from tests.worker.conftest import tasks

__all__ = ["make_queue", "queue", "tasks"]


@pytest.fixture
def platform() -> Platform:
    """Give the back ends of the autoscalers of this test, in memory."""
    return Platform()
