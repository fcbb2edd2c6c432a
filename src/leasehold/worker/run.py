"""One run of a handler: the leases it works on, and how it ends."""

from __future__ import annotations

import enum
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from concurrent.futures import Future
    from typing import Any

    from leasehold.queue.lease import Lease
    from leasehold.worker.handler import Handler
    from leasehold.worker.outcomes import Outcome


class Cut(enum.Enum):
    """Why a run is ended from outside."""

    LOST = "its lease was lost"
    LIMIT = "its time limit has passed"
    STOP = "the worker stops"


class Run:
    """One run of a handler, from the arrival of its items to their outcome. Middleware is given it.

    Attributes:
        handler: What runs.
        leases: The items that it works on: one, or those of a batch.
        arrived: When they were leased, by `time.monotonic()`.
        began: When the handler was called, by the same clock; 0 before.
        limit: When its time is up, by `time.monotonic()`; None before it has begun, or if there is no limit.
        cut: Why it was ended from outside, or None.
        lost: The numbers of those leases that are known to be lost.
    """

    __slots__ = (
        "_timer",
        "arrived",
        "began",
        "cut",
        "handler",
        "leases",
        "limit",
        "lost",
        "outcomes",
        "task",
        "thread",
        "unsettled",
    )

    def __init__(self, handler: Handler, leases: Sequence[Lease]) -> None:
        self.handler = handler
        self.leases = leases
        self.arrived = time.monotonic()
        self.began = 0.0
        self.limit: float | None = None
        self.cut: Cut | None = None
        self.lost: set[int] | None = None
        self.outcomes: Sequence[Outcome] = ()
        self.task: asyncio.Task[None] | None = None
        #: The thread that goes on although the run was cancelled, by the worker or by middleware.
        self.thread: Future[Any] | None = None
        self.unsettled = len(leases)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lease(self) -> Lease:
        """The item of a run that is no batch; the first of a batch."""
        return self.leases[0]

    @property
    def attempt(self) -> int:
        """The number of this attempt, beginning with 1: runs that were given back do not count."""
        return self.leases[0].attempt

    @property
    def facts(self) -> dict[str, object]:
        """What a log line says of it besides its text."""
        return {
            "queue": self.handler.queue.name,
            "handler": self.handler.name,
            "item": self.leases[0].id if len(self.leases) == 1 else [lease.id for lease in self.leases],
            "attempt": self.attempt,
        }

    def begin(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> bool:
        """The handler is about to be called, in this task; False if it must not be, as a lease has ended.

        That happens when the process stood still, or the server was away. Another may have the item by now.
        """
        self.began = time.monotonic()
        for lease in self.leases:
            if lease.remaining() <= 0:
                return False
        self.task = task
        timeout = self.handler.timeout
        if timeout is not None:
            self.limit = self.began + timeout
            self._timer = loop.call_later(timeout, self.end_early, Cut.LIMIT)
        return True

    def over(self) -> None:
        """The handler has ended; from here on nothing can cut the run short."""
        # While its outcome waits for the server, its lease is kept whatever its limit was.
        self.task = self.limit = None
        if self._timer is not None:
            self._timer.cancel()

    def end_early(self, why: Cut) -> None:
        """Cancel the handler, if it is still at work."""
        if self.task is not None and self.cut is None:
            self.cut = why
            self.task.cancel()

    def lose(self, lease: Lease) -> None:
        """One of the leases is another's now: its outcome is nobody's business any more."""
        self.lost = (self.lost or set()) | {lease.token}
        if len(self.lost) == len(self.leases):
            self.end_early(Cut.LOST)

    def __repr__(self) -> str:
        ids = ", ".join(repr(lease.id) for lease in self.leases[:3])
        more = f" and {len(self.leases) - 3} more" if len(self.leases) > 3 else ""
        return f"<run of {self.handler.name} on {ids}{more}>"
