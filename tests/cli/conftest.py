"""The fixtures of this folder."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import leasehold
from tests.cli.worker_bench import bench
from tests.queue.fixtures import clock, make_queue, queue

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["bench", "clock", "leasehold", "make_queue", "queue"]


@pytest.fixture(autouse=True)
def _sigint_interrupts() -> Iterator[None]:
    """Give child processes the default action of SIGINT, which `nohup` and `trap '' INT` take away."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
