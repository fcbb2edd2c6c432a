"""Fetch work: lease as many items from each queue as can start soon, and no more.

The fetcher measures how many runs finish per second, and leases as many items ahead as will start within
a short time: some hundred quick ones, and of slow ones none before a slot is free.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Literal

from leasehold.errors import LeaseholdError, QueueClosed
from leasehold.log import Log
from leasehold.retry import Backoff
from leasehold.worker.run import ActiveRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.queue.lease import Lease
    from leasehold.worker.coordinator import Coordinator
    from leasehold.worker.executor import Executor
    from leasehold.worker.handler import Handler
    from leasehold.worker.lease_renewer import LeaseRenewer

#: How far ahead items are leased (s); far less than `lease_renewer.STALE_SECONDS`.
HORIZON_SECONDS = 0.03
#: The maximum of items that wait for a slot, and of one call.
MAX_WAITING = 1000
#: The weight of a new measurement in the moving average of the pace.
WEIGHT_OF_NEW = 0.3
#: The pace is not measured over a shorter time (s).
SHORTEST_MEASURE = 0.002
#: The first and the longest pause after an error (s).
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5

Order = Literal["weighted", "strict"]

log = Log("leasehold.worker")


class Source:
    """A queue that work is fetched from.

    Attributes:
        handler: Its handler.
        waiting_for_items: Whether it was found empty, and a blocking call waits for an item.
        empty: Whether it was found empty while no slot was free. It is asked again when one is.
        served: How many runs it was given, divided by its weight. The source with the least is next.
        call: The call in flight.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.waiting_for_items = False
        self.empty = False
        self.served = 0.0
        self.call: asyncio.Task[list[Lease]] | None = None


class Fetcher:
    """Keeps the slots of the executor supplied.

    With the order `"strict"`, the queue of an earlier handler goes before all later ones. With `"weighted"`,
    queues with work share the slots by their weights.

    Attributes:
        fetched_at: When items were last leased, by `time.monotonic()`.
        failing: For each source that cannot be leased from: since when, by `time.monotonic()`, and why.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        order: Order,
        renewer: LeaseRenewer,
        executor: Executor,
        coordinator: Coordinator,
    ) -> None:
        self._sources = [Source(handler) for handler in handlers]
        self._strict = order == "strict"
        self._renewer = renewer
        self._executor = executor
        self._coordinator = coordinator
        #: How many runs the calls in flight may bring.
        self._requested = 0
        self._pace = 0.0
        self._measured = (time.monotonic(), 0)
        self._concurrency = executor.free
        #: While more runs than this wait, no source may fetch.
        self._enough = self._concurrency
        self._waiting_for_room: dict[Source, asyncio.Future[None]] = {}
        self.fetched_at = time.monotonic()
        self.failing: dict[Source, tuple[float, LeaseholdError]] = {}

    async def run(self) -> None:
        """Fetch work until cancelled.

        Raises:
            QueueClosed: If one of the queues is closed.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for source in self._sources:
                    tasks.create_task(self._fetch_from(source), name=f"leasehold fetch {source.handler.name}")
        except* QueueClosed as closed:
            raise closed.exceptions[0] from None

    def wake(self) -> None:
        """Let sources fetch that wait for room, if there is room now."""
        if not self._waiting_for_room or len(self._renewer.waiting) > self._enough:
            return  # the quick check, since this is called after each run
        for source, future in list(self._waiting_for_room.items()):
            if not future.done() and self._allowed(source) > 0:
                future.set_result(None)

    def accept(self, handler: Handler, leases: list[Lease]) -> None:
        """Start runs on items that were leased outside of the fetcher."""
        self._arrived(next(one for one in self._sources if one.handler is handler), leases)

    def slow_down(self) -> None:
        """Fetch nothing ahead until the pace has been measured again: runs had to wait for too long."""
        self._pace = 0.0
        self.wake()

    def _room(self) -> int:
        """Return how many more runs may be fetched."""
        return self._unclaimed() + self._ahead() - self._requested

    def _unclaimed(self) -> int:
        """Return how many slots are free and have no run waiting for them."""
        return self._executor.free - len(self._renewer.waiting)

    def _ahead(self) -> int:
        pace = self._pace
        since, finished = self._measured
        if (passed := time.monotonic() - since) > HORIZON_SECONDS:
            # The measurement is old: since then the pace was no faster than this.
            pace = min(pace, (self._executor.finished - finished + 1) / passed)
        return min(MAX_WAITING, int(pace * HORIZON_SECONDS))

    def _allowed(self, source: Source) -> int:
        """Return how many runs this source may fetch now."""
        room, half = self._room(), (self._ahead() + 1) // 2
        if not self._coordinator.may_fetch() or room <= 0 or (room < half and self._unclaimed() <= 0):
            return 0
        # One half of the items ahead is fetched while the other is run.
        room = min(room, max(half, self._executor.free))
        if source.empty and self._unclaimed() <= 0:
            return 0
        if len(self._sources) == 1:
            return room
        active = [one for one in self._sources if not (one.waiting_for_items or one in self.failing)]
        if self._strict:
            before = self._sources[: self._sources.index(source)]
            return 0 if any(one in active for one in before) else room
        if any(one.served < source.served for one in active if one in self._waiting_for_room):
            return 0
        total = sum(one.handler.weight for one in active) or source.handler.weight
        return max(1, int(room * min(1.0, source.handler.weight / total)))

    async def _fetch_from(self, source: Source) -> None:
        backoff = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        while True:
            try:
                await self._fetch(source)
                backoff.reset()
            except QueueClosed:
                raise
            except LeaseholdError as error:
                source.waiting_for_items = False
                if source not in self.failing:
                    log.warning("%s cannot be leased from: %s", source.handler.queue.name, error)
                    self.failing[source] = (time.monotonic(), error)
                    self.wake()
                await backoff.wait()

    async def _fetch(self, source: Source) -> None:
        """Lease the items that wait; if there are none, wait for the first that is added.

        Do not wait while no slot is free: leave items that are added later to workers that can start them.
        """
        runs = await self._wait_for_room(source)
        source.empty = False
        can_start = self._unclaimed() > 0
        if len(self._sources) > 1 or not can_start or source in self.failing:
            if await self._lease(source, runs, block=False):
                self._stop_waiting_for_items(source)
                return
            source.waiting_for_items = True
            source.empty = not can_start
            self.wake()
            if source.empty:
                return
            runs = max(1, min(runs, self._room()))
        await self._lease(source, runs, block=True)
        self._stop_waiting_for_items(source)

    def _stop_waiting_for_items(self, source: Source) -> None:
        if source.waiting_for_items:
            source.waiting_for_items = False
            others = [one.served for one in self._sources if one is not source and not one.waiting_for_items]
            source.served = max(source.served, min(others, default=source.served))

    async def _wait_for_room(self, source: Source) -> int:
        """Wait until this source may fetch; return how many runs."""
        while (runs := self._allowed(source)) <= 0:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for_room[source] = future
            try:
                await future
            finally:
                del self._waiting_for_room[source]
        return runs

    async def _lease(self, source: Source, runs: int, *, block: bool) -> bool:
        """Lease items for so many runs; return whether there were any."""
        handler = source.handler
        count = min(MAX_WAITING, runs * (handler.batch or 1))
        reserved = runs if not source.waiting_for_items else 0
        self._requested += reserved
        call = asyncio.create_task(handler.queue.lease_many(count, handler.lease_time, block=block))
        source.call = call
        try:
            leases = await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.cancelled() and not (task is not None and task.cancelling()):
                return False  # `_arrived` cancelled it, as there is no room any more
            if call.done() and not call.cancelled() and call.exception() is None:
                # The items were leased at the moment of the stop: they are released with all others.
                self._renewer.add(_runs(handler, call.result()))
            raise
        finally:
            self._requested -= reserved
            source.call = None
        self.failing.pop(source, None)
        if leases:
            self._arrived(source, leases)
        return bool(leases)

    def _arrived(self, source: Source, leases: list[Lease]) -> None:
        runs = _runs(source.handler, leases)
        source.served += len(runs) / source.handler.weight
        self.fetched_at = time.monotonic()
        self._measure()
        self._renewer.add(runs, at_once=len(runs) == 1 and self._executor.free > 0)
        self._executor.wake()
        if len(self._sources) > 1 and self._unclaimed() <= 0:
            for other in self._sources:
                if other.waiting_for_items and other.call is not None:
                    other.call.cancel()

    def _measure(self) -> None:
        now, finished = time.monotonic(), self._executor.finished
        since, before = self._measured
        if now - since >= SHORTEST_MEASURE:
            pace = (finished - before) / (now - since)
            self._pace += WEIGHT_OF_NEW * (pace - self._pace)
            self._enough = self._concurrency + (self._ahead() + 1) // 2
            self._measured = (now, finished)


def _runs(handler: Handler, leases: list[Lease]) -> list[ActiveRun]:
    size = handler.batch
    if size is None:
        return [ActiveRun(handler, (lease,)) for lease in leases]
    # An item's last attempt is a separate run, so that its failure or crash affects no other item.
    together = [lease for lease in leases if lease.attempt < handler.max_attempts]
    alone = [lease for lease in leases if lease.attempt >= handler.max_attempts]
    return [
        *(ActiveRun(handler, together[at : at + size]) for at in range(0, len(together), size)),
        *(ActiveRun(handler, (lease,)) for lease in alone),
    ]
