"""The fixtures of this folder."""

from __future__ import annotations

from tests.cli.program import leasequeue
from tests.cli.worker_bench import bench, user_code
from tests.queue.fixtures import clock, make_queue, queue

__all__ = ["bench", "clock", "leasequeue", "make_queue", "queue", "user_code"]
