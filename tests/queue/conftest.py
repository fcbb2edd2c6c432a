"""The fixtures of this folder."""

from __future__ import annotations

from tests.queue.fixtures import clock, make_queue, plain, queue, tidy

__all__ = ["clock", "make_queue", "plain", "queue", "tidy"]
