"""Takes work: asks each queue for as many items as can be begun soon, and for no more.

How many that is, is measured: the runs that end per second, times a short while. So quick items are at hand
in hundreds when the last is done, and of slow ones none is taken before a slot is free for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Literal

from leasehold.errors import LeaseholdError, QueueClosed
from leasehold.log import Log
from leasehold.worker.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.queue.lease import Lease
    from leasehold.worker.executor import Executor
    from leasehold.worker.handler import Handler
    from leasehold.worker.lease_renewer import LeaseRenewer

#: Items are taken so long before they are expected to begin (s); far less than `lease_renewer.STALE_SECONDS`.
HORIZON_SECONDS = 0.03
#: The most items that wait to be begun, and the most of one trip.
MAX_WAITING = 1000
#: How much a new measurement of the pace counts.
WEIGHT_OF_NEW = 0.3
#: No pace is measured over a shorter time (s).
SHORTEST_MEASURE = 0.002
#: The first and the longest pause after an error (s).
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5

Order = Literal["weighted", "strict"]

log = Log("leasehold.worker")


class Source:
    """One queue that work is taken from."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        #: Whether it was found empty, and now waits for an item to come.
        self.waiting_for_items = False
        #: What it was given, in units of its weight: the next turn is that of the least.
        self.served = 0.0
        #: Whether it was found empty while no slot was free: it is asked again when one is.
        self.empty = False
        #: Since when nothing can be taken from it, by `time.monotonic()`, and why.
        self.trouble: tuple[float, LeaseholdError] | None = None
        self.asking: asyncio.Task[list[Lease]] | None = None


class Fetcher:
    """Keeps the slots supplied.

    Args:
        handlers: Whose queues; under `"strict"`, an earlier one goes before all later ones.
        order: `"strict"`, or `"weighted"`: queues with work share the slots by their weights.
        renewer: Takes in what arrives.
        executor: Runs it.
        may_go_on: Whether outcomes are being settled as fast as runs end.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        order: Order,
        renewer: LeaseRenewer,
        executor: Executor,
        may_go_on: Callable[[], bool],
    ) -> None:
        self._sources = [Source(handler) for handler in handlers]
        self._strict = order == "strict"
        self._renewer = renewer
        self._executor = executor
        self._may_go_on = may_go_on
        self._asked = 0
        self._pace = 0.0
        self._measured = (time.monotonic(), 0)
        self._concurrency = executor.free
        #: While more than this wait, nobody may ask.
        self._plenty = self._concurrency
        self._waiting_for_room: dict[Source, asyncio.Future[None]] = {}
        #: When items were last taken, by `time.monotonic()`.
        self.took_at = time.monotonic()

    async def run(self) -> None:
        """Take work until cancelled.

        Raises:
            QueueClosed: If somebody has closed one of the queues.
        """
        try:
            async with asyncio.TaskGroup() as feeds:
                for source in self._sources:
                    feeds.create_task(self._feed(source), name=f"leasehold feed {source.handler.name}")
        except* QueueClosed as closed:
            raise closed.exceptions[0] from None

    def look(self) -> None:
        """Something has ended: let those ask who wait for room."""
        if not self._waiting_for_room or len(self._renewer.waiting) > self._plenty:
            return  # the quick way, as this is asked after each run
        for source, future in list(self._waiting_for_room.items()):
            if not future.done() and self._allowed(source) > 0:
                future.set_result(None)

    def take_in(self, handler: Handler, leases: list[Lease]) -> None:
        """Begin what somebody else has leased from the queue of a handler."""
        self._arrived(next(one for one in self._sources if one.handler is handler), leases)

    def slow_down(self) -> None:
        """Items had to wait too long: take no more ahead until the pace has been measured anew."""
        self._pace = 0.0
        self.look()

    @property
    def trouble(self) -> tuple[float, LeaseholdError] | None:
        """Since when, by `time.monotonic()`, nothing can be taken from one of the queues, and why."""
        troubles = [source.trouble for source in self._sources if source.trouble is not None]
        return min(troubles, key=lambda trouble: trouble[0], default=None)

    def room(self) -> int:
        """How many more runs may be taken."""
        return self._executor.free + self._ahead() - len(self._renewer.waiting) - self._asked

    def _unclaimed(self) -> int:
        """How many slots are free that nothing waits for."""
        return self._executor.free - len(self._renewer.waiting)

    def _ahead(self) -> int:
        pace = self._pace
        since, finished = self._measured
        if (passed := time.monotonic() - since) > HORIZON_SECONDS:
            # Nothing has been measured for a while: it was no faster than this since.
            pace = min(pace, (self._executor.finished - finished + 1) / passed)
        return min(MAX_WAITING, int(pace * HORIZON_SECONDS))

    def _allowed(self, source: Source) -> int:
        """How many runs this source may ask for now."""
        room, half = self.room(), (self._ahead() + 1) // 2
        if not self._may_go_on() or room <= 0 or (room < half and self._unclaimed() <= 0):
            return 0
        # One half of what is taken ahead is on its way while the other is run.
        room = min(room, max(half, self._executor.free))
        if source.empty and self._unclaimed() <= 0:
            return 0
        if len(self._sources) == 1:
            return room
        active = [one for one in self._sources if not (one.waiting_for_items or one.trouble)]
        if self._strict:
            return 0 if any(one in active for one in self._before(source)) else room
        if any(
            one.served < source.served
            for one in active
            if one is not source and one in self._waiting_for_room
        ):
            return 0
        total = sum(one.handler.weight for one in active) or source.handler.weight
        return max(1, int(room * min(1.0, source.handler.weight / total)))

    def _before(self, source: Source) -> list[Source]:
        return self._sources[: self._sources.index(source)]

    async def _feed(self, source: Source) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._take(source)
                pause = FIRST_PAUSE
            except QueueClosed:
                raise
            except LeaseholdError as error:
                source.waiting_for_items = False
                if source.trouble is None:
                    log.warning("%s takes no work: %s", source.handler.queue.name, error)
                    source.trouble = (time.monotonic(), error)
                    self.look()
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
                pause = min(LONGEST_PAUSE, pause * 2)

    async def _take(self, source: Source) -> None:
        """Ask once: for what is there and, if that is nothing, for the first that comes.

        While no slot is free, only for what is there: what comes is better left to those who can begin it.
        """
        runs = await self._turn(source)
        source.empty = False
        can_begin = self._unclaimed() > 0
        if len(self._sources) > 1 or not can_begin or source.trouble is not None:
            if await self._ask(source, runs, block=False):
                self._stop_waiting_for_items(source)
                return
            source.waiting_for_items = True
            source.empty = not can_begin
            self.look()
            if source.empty:
                return
            runs = max(1, min(runs, self.room()))
        await self._ask(source, runs, block=True)
        self._stop_waiting_for_items(source)

    def _stop_waiting_for_items(self, source: Source) -> None:
        if source.waiting_for_items:
            source.waiting_for_items = False
            others = [one.served for one in self._sources if one is not source and not one.waiting_for_items]
            source.served = max(source.served, min(others, default=source.served))

    async def _turn(self, source: Source) -> int:
        """Wait until this source may ask; returns for how many runs."""
        while (runs := self._allowed(source)) <= 0:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_room[source] = future
            try:
                await future
            finally:
                del self._waiting_for_room[source]
        return runs

    async def _ask(self, source: Source, runs: int, *, block: bool) -> bool:
        handler = source.handler
        count = min(MAX_WAITING, runs * (handler.batch or 1))
        reserved = runs if not source.waiting_for_items else 0
        self._asked += reserved
        asking = asyncio.create_task(handler.queue.lease_many(count, handler.lease_time, block=block))
        source.asking = asking
        try:
            leases = await asking
        except asyncio.CancelledError:
            if asking.cancelled() and not _being_cancelled():
                return False  # recalled, as there is no room any more
            if asking.done() and not asking.cancelled() and asking.exception() is None:
                # Leased in the very moment of the stop: not to be begun, but to be given back with the rest.
                self._renewer.take_in(_runs(handler, asking.result()))
            raise
        finally:
            self._asked -= reserved
            source.asking = None
        source.trouble = None
        if leases:
            self._arrived(source, leases)
        return bool(leases)

    def _arrived(self, source: Source, leases: list[Lease]) -> None:
        runs = _runs(source.handler, leases)
        source.served += len(runs) / source.handler.weight
        self.took_at = time.monotonic()
        self._measure()
        self._renewer.take_in(runs, at_once=len(runs) == 1 and self._executor.free > 0)
        self._executor.wake()
        if len(self._sources) > 1 and self._unclaimed() <= 0:
            for other in self._sources:
                if other.waiting_for_items and other.asking is not None:
                    other.asking.cancel()

    def _measure(self) -> None:
        now, finished = time.monotonic(), self._executor.finished
        since, before = self._measured
        if now - since >= SHORTEST_MEASURE:
            pace = (finished - before) / (now - since)
            self._pace += WEIGHT_OF_NEW * (pace - self._pace)
            self._plenty = self._concurrency + (self._ahead() + 1) // 2
            self._measured = (now, finished)


def _runs(handler: Handler, leases: list[Lease]) -> list[Run]:
    size = handler.batch
    if size is None:
        return [Run(handler, (lease,)) for lease in leases]
    # The last attempt of an item is a run of its own: what fails or kills others with it ends alone.
    together = [lease for lease in leases if lease.attempt < handler.max_attempts]
    alone = [lease for lease in leases if lease.attempt >= handler.max_attempts]
    return [
        *(Run(handler, together[at : at + size]) for at in range(0, len(together), size)),
        *(Run(handler, (lease,)) for lease in alone),
    ]


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
