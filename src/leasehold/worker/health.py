"""Health by progress: a worker is well if it takes the work that waits, and keeps what it has taken."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError
from leasehold.queue.internals import release_arrivals

if TYPE_CHECKING:
    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.worker.executor import Executor
    from leasehold.worker.fetcher import Fetcher
    from leasehold.worker.handler import Handler
    from leasehold.worker.lease_renewer import LeaseRenewer

#: How often to look whether work waits while none is taken (s).
LOOK_SECONDS = 1.3
#: The event loop shows so often that it lives, and counts as blocked after so long (s).
BEAT_SECONDS = 0.25
BLOCKED_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a worker is doing, at one instant."""

    #: Whether it does what it is there for.
    ok: bool
    #: What is wrong, a sentence each; empty if all is well.
    reasons: tuple[str, ...]
    #: How many runs are under way, and how many items wait here to be begun.
    running: int
    waiting: int
    #: Seconds since it last took an item.
    took_ago: float


class Monitor:
    """Watches one worker from the background thread.

    Args:
        executor: Where its runs are.
        renewer: What keeps its leases.
        fetcher: What takes its work.
    """

    def __init__(self, executor: Executor, renewer: LeaseRenewer, fetcher: Fetcher) -> None:
        self._executor = executor
        self._renewer = renewer
        self._fetcher = fetcher
        self._beat_at = time.monotonic()
        #: Since when work waits that is not taken and how much, and since when a server does not answer.
        self._ignored: dict[AsyncWorkQueue, tuple[float, int]] = {}
        self._away: dict[AsyncWorkQueue, tuple[float, LeaseholdError]] = {}

    async def beat(self) -> None:
        """Show that the main event loop lives, until cancelled."""
        while True:
            self._beat_at = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    async def watch(self, queues: dict[Handler, AsyncWorkQueue]) -> None:
        """Look whether work waits that is not taken, until cancelled."""
        took_at = self._fetcher.took_at
        while True:
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - no secret
            idle = self._fetcher.took_at == took_at and self._executor.free > 0
            took_at = self._fetcher.took_at
            await asyncio.gather(*(self._look_at(queue, idle=idle) for queue in queues.values()))

    async def rescue(self, queues: dict[Handler, AsyncWorkQueue]) -> None:
        """While the event loop is blocked, send back what is on its way to it, until cancelled."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            if self.blocked_for() > 2 * BEAT_SECONDS:
                # Of errors `watch` tells, and the next turn tries again.
                returns = [release_arrivals(queue) for queue in queues.values()]
                await asyncio.gather(*returns, return_exceptions=True)

    def blocked_for(self) -> float:
        """For how many seconds the main event loop has shown no life."""
        return time.monotonic() - self._beat_at

    def health(self) -> Health:
        """How the worker is doing now; callable from any thread."""
        now = time.monotonic()
        reasons = [*self._trouble(now), *self._neglect(now)]
        if (blocked := self.blocked_for()) > BLOCKED_SECONDS:
            reasons.append(f"the event loop has been blocked for {blocked:.1f} s")
        return Health(
            ok=not reasons,
            reasons=tuple(reasons),
            running=len(self._executor.running),
            waiting=len(self._renewer.waiting),
            took_ago=now - self._fetcher.took_at,
        )

    async def _look_at(self, queue: AsyncWorkQueue, *, idle: bool) -> None:
        try:
            waiting = (await queue.counts()).waiting
        except LeaseholdError as error:
            self._away.setdefault(queue, (time.monotonic(), error))
            return
        self._away.pop(queue, None)
        if idle and waiting:
            since, _ = self._ignored.get(queue, (time.monotonic(), 0))
            self._ignored[queue] = (since, waiting)
        else:
            self._ignored.pop(queue, None)

    def _trouble(self, now: float) -> list[str]:
        found = [
            ("no work can be taken", self._fetcher.trouble),
            ("leases cannot be renewed", min(list(self._renewer.failing.values()), key=_since, default=None)),
            ("the server does not answer", min(list(self._away.values()), key=_since, default=None)),
        ]
        return [f"{what} for {now - trouble[0]:.1f} s: {trouble[1]}" for what, trouble in found if trouble]

    def _neglect(self, now: float) -> list[str]:
        """What waits though there is a free slot. Seen once, it may just have come."""
        return [
            f"{waiting} items of {queue.name} wait, and none has been taken for {now - since:.1f} s"
            for queue, (since, waiting) in list(self._ignored.items())
            if now - since > LOOK_SECONDS
        ]


def _since(trouble: tuple[float, LeaseholdError]) -> float:
    return trouble[0]
