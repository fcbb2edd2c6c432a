"""What the tests of Spark share: one session for all of them, and queues on the server of the tests."""

from __future__ import annotations

import os

import pytest

from tests.queue.fixtures import clock, make_queue, queue
from tests.spark.session import spark

__all__ = ["clock", "make_queue", "queue", "spark"]

HERE = os.path.dirname(__file__)  # noqa: PTH120 - compared with what pytest gives


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of Spark the time that they need."""
    for item in items:
        if str(item.path).startswith(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
