"""The fixtures of this folder."""

from __future__ import annotations

from tests.cli.program import leasequeue
from tests.queue.fixtures import make_queue, queue, tidy

__all__ = ["leasequeue", "make_queue", "queue", "tidy"]
