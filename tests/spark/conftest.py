"""Fixtures of the tests of Spark: one session for all of them, and queues on the test server."""

from __future__ import annotations

from tests.queue.fixtures import clock, make_queue, queue
from tests.spark.session import spark

__all__ = ["clock", "make_queue", "queue", "spark"]
