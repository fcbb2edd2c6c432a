"""Fixtures of the tests of Spark: one session for all of them, and queues on the test server."""

from __future__ import annotations

import os

import pytest

from tests.queue.fixtures import clock, make_queue, queue
from tests.spark.session import spark

__all__ = ["clock", "make_queue", "queue", "spark"]

HERE = os.path.dirname(__file__)  # noqa: PTH120 - compared with a path of pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout of the tests of Spark."""
    for item in items:
        if str(item.path).startswith(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
