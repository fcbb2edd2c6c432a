"""Keeps leases alive, in the thread of the back office, whatever the handlers do to their event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.queue.lease import Lease
    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.worker.handler import Handler
    from leasehold.worker.run import Run

#: An item that has waited here so long, while another worker may be idle, is given back (s).
STALE_SECONDS = 0.07
#: How often to look while items wait, and at most otherwise (s).
LIVELY_TICK = 0.02
LAZY_TICK = 1.0
#: A lease is renewed when this share of it has passed.
RENEW_AFTER = 1 / 3

log = logging.getLogger("leasehold.worker")


class Keeper:
    """Knows all leases of a worker. It renews them, and gives back what has waited too long to be begun.

    The main loop and the back office share its collections without a lock: each touch is one step of a
    dict or a deque.

    Args:
        lost: Called in the back office's thread with a run and the lease that it has lost.
        gave_back: Called there when items were given back.
    """

    def __init__(self, *, lost: Callable[[Run, Lease], None], gave_back: Callable[[], None]) -> None:
        self.held: dict[Run, None] = {}
        self.waiting: deque[Run] = deque()
        self.dozing = False
        #: Since when renewals fail, by `time.monotonic()`, and with what.
        self.failing: tuple[float, LeaseholdError] | None = None
        self._lost = lost
        self._gave_back = gave_back
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked = asyncio.Event()
        self._queues: dict[Handler, AsyncWorkQueue] = {}

    # ------------------------------------------------------------------ main loop

    def take_in(self, runs: Sequence[Run]) -> None:
        """Runs have arrived: their leases are kept from now on, and they wait to be begun."""
        for run in runs:
            self.held[run] = None
        self.waiting.extend(runs)
        if self.dozing and len(runs) > 1 and self._loop is not None:
            # A lone one is begun at once. Of several, some may have to wait behind a handler that blocks.
            self.dozing = False
            self._loop.call_soon_threadsafe(self._poked.set)

    def next_run(self) -> Run | None:
        """The run that has waited longest, which is now begun; None if none waits."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def all_waiting(self) -> list[Run]:
        """The runs that have not begun, which now never will, in order."""
        found: list[Run] = []
        while (run := self.next_run()) is not None:
            found.append(run)
        return found

    def let_go(self, run: Run) -> None:
        """The run is settled."""
        self.held.pop(run, None)

    # ---------------------------------------------------------------- back office

    async def keep(self, queues: dict[Handler, AsyncWorkQueue]) -> None:
        """Renew and give back until cancelled.

        Args:
            queues: For each handler, its queue as an object of this thread.
        """
        self._loop = asyncio.get_running_loop()
        self._queues = queues
        while True:
            tick = self._tick()
            self.dozing = tick > LIVELY_TICK
            try:
                async with asyncio.timeout(tick):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self.dozing = False
            self._poked.clear()
            try:
                await self._give_back_stale()
                await self._renew_due()
                self.failing = None
            except LeaseholdError as error:
                if self.failing is None:
                    log.warning("leases cannot be renewed: %s", error)
                    self.failing = (time.monotonic(), error)
                await asyncio.sleep(0.1)

    async def give_back_all(self) -> int:
        """Give back every lease there is, begun or not: the process is about to end. Returns how many."""
        runs = list(self.held)
        given = 0
        for handler, some in _by_handler(runs):
            answers = await self._queues[handler].release_many(
                [lease for run in some for lease in run.leases]
            )
            given += sum(answers)
        return given

    def _tick(self) -> float:
        if self.waiting:
            return LIVELY_TICK
        shortest = min((handler.lease_time for handler in self._queues), default=LAZY_TICK)
        return min(LAZY_TICK, shortest * RENEW_AFTER / 3)

    async def _give_back_stale(self) -> None:
        try:
            oldest = self.waiting[0].arrived
        except IndexError:
            return
        if time.monotonic() - oldest < STALE_SECONDS:
            return
        stale = self.all_waiting()
        try:
            for handler, runs in _by_handler(stale):
                await self._queues[handler].release_many([lease for run in runs for lease in run.leases])
                for run in runs:
                    self.let_go(run)
        except LeaseholdError:
            # Away with the server: those that could not be given back go on waiting here, kept alive.
            self.waiting.extendleft(run for run in reversed(stale) if run in self.held)
            raise
        self._gave_back()

    async def _renew_due(self) -> None:
        now = time.monotonic()
        due = [
            (run, lease)
            for run in list(self.held)
            if run.limit is None or now < run.limit
            for lease in run.leases
            if lease.remaining() < run.handler.lease_time * (1 - RENEW_AFTER)
            and not (run.lost and lease.token in run.lost)
        ]
        due.sort(key=lambda pair: id(pair[0].handler))
        for handler, pairs in groupby(due, key=lambda pair: pair[0].handler):
            some = list(pairs)
            leases = [lease for _, lease in some]
            answers = await self._queues[handler].renew_many(leases, handler.lease_time)
            for (run, lease), renewed in zip(some, answers, strict=True):
                if not renewed and run in self.held:
                    self._lost(run, lease)


def _by_handler(runs: Sequence[Run]) -> list[tuple[Handler, list[Run]]]:
    found: dict[Handler, list[Run]] = {}
    for run in runs:
        found.setdefault(run.handler, []).append(run)
    return list(found.items())
