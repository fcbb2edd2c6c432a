"""The fixtures of this folder."""

from __future__ import annotations

from tests.queue.fixtures import make_queue, queue, tidy

__all__ = ["make_queue", "queue", "tidy"]
