"""The fixtures of this folder."""

from __future__ import annotations

from tests.queue.fixtures import admin, clock, make_queue, own, plain, queue, tidy
from tests.worker.conftest import tasks

__all__ = ["admin", "clock", "make_queue", "own", "plain", "queue", "tasks", "tidy"]
