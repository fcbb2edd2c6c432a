"""Renew leases in the background thread, even while a handler blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError
from leasehold.log import Log
from leasehold.worker.acknowledger import Acknowledger

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

log = Log("leasehold.worker")


class LeaseRenewer:
    """Knows all leases of a worker. It renews them, and gives back what has waited too long to be begun.

    The main loop and the background thread share its collections without a lock: each touch is one step of a
    dict or a deque.

    Args:
        lost: Called in the background thread's thread with a run and the lease that it has lost.
        on_released: Called there when items were given back.
    """

    def __init__(self, *, lost: Callable[[Run, Lease], None], on_released: Callable[[], None]) -> None:
        self.held: dict[Run, None] = {}
        self.waiting: deque[Run] = deque()
        self.dozing = False
        #: Whose renewals fail, since when by `time.monotonic()`, and with what.
        self.failing: dict[Handler, tuple[float, LeaseholdError]] = {}
        self._lost = lost
        self._on_released = on_released
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked = asyncio.Event()
        self._queues: dict[Handler, AsyncWorkQueue] = {}

    # ------------------------------------------------------------------ main loop

    def take_in(self, runs: Sequence[Run], *, at_once: bool = False) -> None:
        """Runs have arrived: their leases are kept from now on, and they wait to be begun.

        Args:
            runs: What has arrived.
            at_once: Whether they will be begun at once, so that nobody has to watch how long they wait.
        """
        for run in runs:
            self.held[run] = None
        self.waiting.extend(runs)
        if self.dozing and not at_once and self._loop is not None:
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

    # ---------------------------------------------------------------- background thread

    async def keep(self, queues: dict[Handler, AsyncWorkQueue]) -> None:
        """Renew and give back until cancelled.

        Args:
            queues: For each handler, its queue as an object of this thread.
        """
        self._loop = asyncio.get_running_loop()
        self._queues = queues
        # Each by itself: one server that is away must cost no lease on another.
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_waiting())
            for handler, queue in queues.items():
                tasks.create_task(self._keep_renewed(handler, queue))

    async def release_all(self) -> int:
        """Give back every lease there is, as the process is about to end. Returns how many.

        Runs that have ended and could not be settled in the main loop are settled from here.
        """
        acknowledgers = []
        for handler, runs in _by_handler(list(self.held)):
            acknowledger = Acknowledger(handler, self, lambda: None, queue=self._queues[handler])
            for run in runs:
                run.unsettled = len(run.leases)  # the server may know of some; to hear again does no harm
                if run.outcomes:
                    acknowledger.add(run)
            acknowledger.release([run for run in runs if not run.outcomes])
            acknowledgers.append(acknowledger)
        await asyncio.gather(*(acknowledger.drained() for acknowledger in acknowledgers))
        return sum(acknowledger.released for acknowledger in acknowledgers)

    async def _watch_waiting(self) -> None:
        while True:
            self.dozing = not self.waiting
            try:
                async with asyncio.timeout(LAZY_TICK if self.dozing else LIVELY_TICK):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self.dozing = False
            self._poked.clear()
            await self._release_stale()

    async def _release_stale(self) -> None:
        try:
            oldest = self.waiting[0].arrived
        except IndexError:
            return
        if time.monotonic() - oldest < STALE_SECONDS:
            return
        stale = _by_handler(self.all_waiting())
        await asyncio.gather(*(self._release(handler, runs) for handler, runs in stale))

    async def _release(self, handler: Handler, runs: Sequence[Run]) -> None:
        try:
            await self._queues[handler].release_many([lease for run in runs for lease in run.leases])
        except LeaseholdError:
            # Away with the server: they go on waiting here, kept alive.
            self.waiting.extendleft(reversed(runs))
            return
        for run in runs:
            self.let_go(run)
        self._on_released()

    async def _keep_renewed(self, handler: Handler, queue: AsyncWorkQueue) -> None:
        tick = min(LAZY_TICK, handler.lease_time * RENEW_AFTER / 3)
        while True:
            await asyncio.sleep(tick)
            try:
                await self._renew_due(handler, queue)
                self.failing.pop(handler, None)
            except LeaseholdError as error:
                if handler not in self.failing:
                    log.warning("the leases of %s cannot be renewed: %s", queue.name, error)
                    self.failing[handler] = (time.monotonic(), error)

    async def _renew_due(self, handler: Handler, queue: AsyncWorkQueue) -> None:
        now = time.monotonic()
        due = [
            (run, lease)
            for run in list(self.held)
            if run.handler is handler and (run.limit is None or now < run.limit)
            for lease in run.leases
            if lease.remaining() < handler.lease_time * (1 - RENEW_AFTER)
            and not (run.lost and lease.token in run.lost)
        ]
        if not due:
            return
        answers = await queue.renew_many([lease for _, lease in due], handler.lease_time)
        for (run, lease), renewed in zip(due, answers, strict=True):
            if not renewed and run in self.held:
                self._lost(run, lease)


def _by_handler(runs: Sequence[Run]) -> list[tuple[Handler, list[Run]]]:
    found: dict[Handler, list[Run]] = {}
    for run in runs:
        found.setdefault(run.handler, []).append(run)
    return list(found.items())
