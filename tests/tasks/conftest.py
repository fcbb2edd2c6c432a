"""The fixtures of this folder."""

from __future__ import annotations

from tests.worker.conftest import clock, make_queue, queue, tasks, tidy

__all__ = ["clock", "make_queue", "queue", "tasks", "tidy"]
