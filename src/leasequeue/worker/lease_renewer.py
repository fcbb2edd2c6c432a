"""Renew leases in the background thread, even while a handler blocks the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.worker.refusals import Reminder, is_refusal
from leasequeue.worker.run import by_consumer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.worker.handler import Consumer, Handler
    from leasequeue.worker.run import ActiveRun

#: A run that has waited for a slot so long is released, since another worker may be idle (s).
STALE_SECONDS = 0.07
#: How often to look for stale runs while some wait, and otherwise (s). The longer one also bounds renewals.
BUSY_TICK = 0.02
IDLE_TICK = 1.0
#: A lease is renewed when this share of it has passed.
RENEW_AFTER = 1 / 3

log = Log("leasequeue.worker")


class LeaseRenewer:
    """Holds the runs of a worker: renews their leases, and releases those that wait too long for a slot.

    The event loop and the background thread share its collections without a lock: each access is one
    operation on a dict or a deque. The background thread calls `on_lost` with a run and its lost lease, and
    `on_released` when it has released runs that waited too long.

    Attributes:
        held: The runs whose leases are renewed.
        waiting: Those of them that wait for a slot, in order.
        parked: Those of them that wait for a process, in order; only the event loop changes them.
        failing: For each handler whose leases cannot be renewed: since when, by `time.monotonic()`, and why.
    """

    def __init__(self, on_lost: Callable[[ActiveRun, Lease], None], on_released: Callable[[], None]) -> None:
        self.held: dict[ActiveRun, None] = {}
        self.waiting: deque[ActiveRun] = deque()
        self.parked: deque[ActiveRun] = deque()
        self.failing: dict[Handler, tuple[float, LeasequeueError]] = {}
        self._reminder = Reminder()
        self._on_lost = on_lost
        self._on_released = on_released
        self._idle = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        #: The handlers whose leases are being renewed.
        self._renewing: set[Handler] = set()
        #: Those whose leases are renewed at the next tick, as they could not be.
        self._again: set[Handler] = set()
        #: How often `renew_soon` was called, and for each tick how often that was so when it last looked.
        self._asked = 0
        self._looked: dict[float, int] = {}
        #: How often to look for leases to renew: a task for each tick, in a group.
        self._ticks: set[float] = set()
        self._tasks: asyncio.TaskGroup | None = None

    # ------------------------------------------------------------------ event loop of the worker

    def add(self, runs: Sequence[ActiveRun], *, at_once: bool = False) -> None:
        """Renew the leases of these runs from now on, and let the runs wait for a slot.

        With `at_once` they start at once, so that there is no need to look for stale ones.
        """
        for run in runs:
            self.held[run] = None
        self.waiting.extend(runs)
        if self._idle and not at_once and self._loop is not None:
            self._idle = False
            self._loop.call_soon_threadsafe(self._woken.set)

    def pop(self) -> ActiveRun | None:
        """Return the run that has waited longest, for which there is a slot now; None if none waits."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def pop_all(self) -> list[ActiveRun]:
        """Return the runs that have not started, in order; they will not be started."""
        return [*_popped(self.parked), *_popped(self.waiting)]

    def pop_of(self, consumer: Consumer) -> list[ActiveRun]:
        """Return the runs on items of one queue that have not started, in order; they will not be started."""
        found: list[ActiveRun] = []
        for runs in (self.parked, self.waiting):
            others: list[ActiveRun] = []
            for run in _popped(runs):
                (found if run.handler.consumer is consumer else others).append(run)
            runs.extend(others)
        return found

    def last_remaining(self) -> float:
        """Return in how many seconds the last lease expires."""
        held = list(self.held)
        return max((lease.remaining() for run in held for lease in run.leases), default=0.0)

    def held_of(self, consumer: Consumer) -> list[ActiveRun]:
        """Return the runs on items of one queue that are held."""
        return [run for run in [*self.held] if run.handler.consumer is consumer]

    def remove(self, run: ActiveRun) -> None:
        """Stop renewing the leases of a run."""
        self.held.pop(run, None)

    def renew_soon(self) -> None:
        """Renew all leases at the next tick, to learn which have been lost. Callable from any thread."""
        self._asked += 1

    # ------------------------------------------------------------------ background thread

    async def run(self, handlers: Sequence[Handler]) -> None:
        """Renew leases and release stale runs until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._renewing.clear()
        self._ticks.clear()
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self._watch_waiting())
            self.add_handlers(handlers)

    def add_handlers(self, handlers: Iterable[Handler]) -> None:
        """Renew the leases of these handlers, too."""
        for tick in {_tick(handler) for handler in handlers} - self._ticks:
            if self._tasks is not None:
                self._ticks.add(tick)
                self._tasks.create_task(self._keep_renewed(tick, self._tasks))

    async def _watch_waiting(self) -> None:
        while True:
            self._idle = not self.waiting
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_TICK if self._idle else BUSY_TICK):
                    await self._woken.wait()
            self._idle = False
            self._woken.clear()
            await self._release_stale()

    async def _release_stale(self) -> None:
        try:
            oldest = self.waiting[0].arrived
        except IndexError:
            return
        if time.monotonic() - oldest < STALE_SECONDS:
            return
        stale = by_consumer([*_popped(self.waiting)])
        await asyncio.gather(*(self._release(consumer, runs) for consumer, runs in stale.items()))

    async def _release(self, consumer: Consumer, runs: Sequence[ActiveRun]) -> None:
        try:
            await consumer.queue.release_many([lease for run in runs for lease in run.leases])
        except LeasequeueError:
            # The server is away: they wait again, and their leases are renewed.
            self.waiting.extendleft(reversed(runs))
            return
        for run in runs:
            self.remove(run)
        self._on_released()

    async def _keep_renewed(self, tick: float, tasks: asyncio.TaskGroup) -> None:
        """Renew the leases of the handlers with this tick."""
        while True:
            await asyncio.sleep(tick)
            due = self._due(tick)
            for handler in [one for one in self.failing if one not in due and one not in self._renewing]:
                if _tick(handler) == tick:
                    del self.failing[handler]
            for handler, entries in due.items():
                # A task for each handler: a server that is away must not delay renewals on another.
                if handler not in self._renewing:
                    self._renewing.add(handler)
                    self._again.discard(handler)
                    tasks.create_task(self._renew(handler, entries))

    def _due(self, tick: float) -> dict[Handler, list[tuple[ActiveRun, Lease]]]:
        """Return the leases to renew now of the handlers with this tick."""
        now = time.monotonic()
        everything = self._asked != self._looked.get(tick, 0)
        if not self._renewing:
            self._looked[tick] = self._asked
        found: dict[Handler, list[tuple[ActiveRun, Lease]]] = {}
        for run in list(self.held):
            handler = run.handler
            if _tick(handler) != tick or (run.deadline is not None and now >= run.deadline):
                continue
            is_asked = everything or handler in self._again
            latest = math.inf if is_asked else handler.lease_time * (1 - RENEW_AFTER)
            for lease in run.leases:
                if lease.remaining() < latest and not (run.lost and lease.token in run.lost):
                    found.setdefault(handler, []).append((run, lease))
        return found

    async def _renew(self, handler: Handler, due: Sequence[tuple[ActiveRun, Lease]]) -> None:
        queue = handler.queue
        try:
            answers = await queue.renew_many([lease for _, lease in due], handler.lease_time)
        except LeasequeueError as error:
            if is_refusal(error):
                self._reminder.log(f"the leases of {queue.name} cannot be renewed", error)
            elif handler not in self.failing:
                log.warning("the leases of %s cannot be renewed: %s", queue.name, error)
            since, _ = self.failing.get(handler, (time.monotonic(), error))
            self.failing[handler] = (since, error)
            if error.transient:
                self._again.add(handler)  # it may have been to learn at once of what was cancelled
            return
        finally:
            self._renewing.discard(handler)
        self.failing.pop(handler, None)
        for (run, lease), renewed in zip(due, answers, strict=True):
            if not renewed and run in self.held:
                self._on_lost(run, lease)


def _popped(runs: deque[ActiveRun]) -> Iterator[ActiveRun]:
    """Take all runs, of which the other thread may take some at the same time."""
    with contextlib.suppress(IndexError):
        while True:
            yield runs.popleft()


def _tick(handler: Handler) -> float:
    """Return how often to look for leases of a handler that are to be renewed, in seconds."""
    return min(IDLE_TICK, handler.lease_time * RENEW_AFTER / 3)
