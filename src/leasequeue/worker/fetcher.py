"""Fetch work: lease as many items from each queue as can start soon, and no more.

The fetcher measures how many runs finish per second, and leases as many items ahead as will start within
a short time: some hundred quick ones, and of slow ones none before a slot is free.

A queue that was found empty is watched: the server notifies this process of the next item. If there is room
for it, it is leased. If not, it returns to the front of the queue, where it wakes another worker, and the
queue is asked again when there is room. So an empty queue costs nothing, however many there are.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError, QueueClosed
from leasequeue.errors.log import Log
from leasequeue.queue.queue import engine_of, engines_of, lease_level, read_leases
from leasequeue.worker.dispatch import Dispatcher
from leasequeue.worker.refusals import Reminder, is_refusal
from leasequeue.worker.run import ActiveRun
from leasequeue.worker.stages import note_stages
from leasequeue.worker.turns import Source, Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.leasing import LeasedItem
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.acknowledger import Backlog
    from leasequeue.worker.executor import Executor
    from leasequeue.worker.handler import Consumer, Handler
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.turns import Order

#: How far ahead items are leased (s); far less than `lease_renewer.STALE_SECONDS`.
HORIZON_SECONDS = 0.03
#: How many items are leased ahead at any pace, at most, while the queue has all that it is asked for and they
#: can run one after the other within HORIZON_SECONDS. A call takes the server as long as 10 items, and where
#: many small workers call for their slots alone, replies take long and so keep the pace low.
FEW = 100
#: The maximum of items that wait for a slot.
MAX_WAITING = 1000
#: While more outcomes than this wait for the server, nothing is fetched.
MAX_UNACKNOWLEDGED = 5000
#: How long a call reserves room for what it may bring (s).
RESERVE_SECONDS = 0.5
#: The weight of a new measurement in the moving average of the pace.
WEIGHT_OF_NEW, WEIGHT_OF_FASTER = 0.3, 0.7
#: The pace is measured for as long as a run takes, but no shorter and no longer than this (s). Runs that
#: began together end together: in between, no end would seem to be near.
SHORTEST_MEASURE, LONGEST_MEASURE = 0.002, 0.06

log = Log("leasequeue.worker")


class Fetcher:
    """Keeps the slots of the executor supplied.

    `Turns` decides which queue is asked next. It calls `on_task` with each task whose
    error must stop the worker.

    Attributes:
        fetched_at: When items were last leased, by `time.monotonic()`.
        declared: Those whose limits are declared.
        quiet: Whether nothing more is to be fetched, until `resume`; after `stop`, always.
        failing: For each source that cannot be leased from: since when, by `time.monotonic()`, and why.
    """

    def __init__(
        self,
        order: Order,
        renewer: LeaseRenewer,
        executor: Executor,
        backlog: Backlog,
        on_task: Callable[[asyncio.Task[None]], None],
    ) -> None:
        #: The queues that are served, and their watchers.
        self._sources: dict[Consumer, Source] = {}
        self._watchers: dict[Source, _Watcher] = {}
        #: Those that are shards of a queue.
        self._siblings: dict[AsyncWorkQueue, list[Source]] = {}
        #: The places of all queues that were ever served: one that is served again has its place again.
        self._places: dict[Consumer, int] = {}
        self._turns = Turns((), order)
        self._renewer = renewer
        self._executor = executor
        self._backlog = backlog
        self._on_task = on_task
        self._loop = asyncio.get_running_loop()
        #: Done when a queue is closed, or when a server refuses the first calls.
        self._ended: asyncio.Future[None] = self._loop.create_future()
        #: How many runs the calls in flight may bring.
        self._requested = 0
        self._pace = 0.0
        self._measured = (time.monotonic(), 0)
        #: For how many seconds all runs had run then, how many follow each other in HORIZON_SECONDS, and for
        #: how long to measure (s).
        self._ran = 0.0
        self._in_a_row = 0
        self._window = SHORTEST_MEASURE
        #: Whether the last reply had all that was asked for.
        self._full = False
        #: How many items to lease ahead at the pace of the last measurement.
        self._most_ahead = 0
        #: Those that would have had an item delivered while there was no room.
        self._declined: dict[Source, None] = {}
        self.declared: set[Consumer] = set()
        self.fetched_at = time.monotonic()
        self.quiet = False
        self._stopped = False
        #: Whether it fetches at the end of this turn of the event loop.
        self._filling = False
        self.failing: dict[Source, tuple[float, LeasequeueError]] = {}
        #: Whether any source has been leased from.
        self._has_leased = False
        self._reminder = Reminder()

    async def run(self, consumers: Iterable[Consumer]) -> None:
        """Fetch work until cancelled, at first for these.

        Raises:
            QueueClosed: If one of the queues is closed.
            ServerRefused, ServerTooOld: If a server refuses before anything could be leased; if it does so
                later, it is asked again and again.
        """
        for consumer in consumers:
            self.add(consumer)
        try:
            await self._ended
        finally:
            self._ended.cancel()
            await asyncio.gather(*map(self.remove, [*self._sources]))

    def add(self, consumer: Consumer) -> None:
        """Serve a queue from now on."""
        if consumer in self._sources or self._ended.done():
            return
        queue = consumer.queue
        siblings = [] if queue.whole is queue else self._siblings.setdefault(queue.whole, [])
        place = siblings[0].place if siblings else self._places.get(consumer, len(self._places))
        self._places[consumer] = place
        source = self._sources[consumer] = Source(consumer, place, siblings)
        siblings.append(source)
        self._watchers[source] = _Watcher(self, source)
        self._turns.share(self._sources.values())
        self._turns.add(source)
        self._fill()

    async def remove(self, consumer: Consumer) -> None:
        """Fetch nothing more from a queue. What a call in flight has leased is released."""
        call = self.drop(consumer)
        if call is not None:
            await asyncio.wait([call])

    def drop(self, consumer: Consumer) -> asyncio.Task[None] | None:
        """Fetch nothing more from a queue, as `remove` does; return the call in flight, which ends soon."""
        source = self._sources.pop(consumer, None)
        if source is None:
            return None
        engines_of(consumer.queue).unwatch(self._watchers.pop(source))
        source.siblings.remove(source)
        self._turns.remove(source)
        self._turns.share(self._sources.values())
        self._declined.pop(source, None)
        self.failing.pop(source, None)
        if source.call is not None:
            source.call.cancel()
        return source.call

    def resume(self) -> None:
        """Fetch again, after `quiet` was set, unless the fetcher was stopped."""
        if self._stopped:
            return
        self.quiet = False
        self._fill()
        self.wake()

    def stop(self) -> None:
        """Take nothing more, from now on. What calls in flight lease, and what is delivered, is released."""
        self.quiet = self._stopped = True
        for source in self._sources.values():
            if source.call is not None:
                source.call.cancel()

    def wake(self) -> None:
        """Fetch if there is room now, and a queue that may have items."""
        # The quick check, since this is called after each run. The pace was no faster than measured.
        if self._turns:
            unclaimed = self._unclaimed()
            room = 0 if self.quiet else unclaimed + self._most_ahead - self._requested
            if not self._filling and room > 0 and (unclaimed > 0 or 2 * room >= self._most_ahead):
                # Runs that began together end together: one call is to fetch for all of them.
                self._filling = True
                self._loop.call_soon(self._fill)

        if self._declined and self._unclaimed() > 0:
            declined, self._declined = self._declined, {}
            for source in declined:
                self._watch(source)

    def accept(self, consumer: Consumer, leases: list[Lease]) -> None:
        """Start runs on items that were leased outside of the fetcher."""
        self._measure()
        self._start(_runs(consumer, leases))

    async def declare(self, consumer: Consumer) -> None:
        """Declare the limits of a consumer's tasks, before the first of its items is leased."""
        if consumer.limits and consumer not in self.declared:
            for limit in consumer.limits:
                await consumer.queue.limits._declare(limit)  # noqa: SLF001 - for the worker alone
            self.declared.add(consumer)

    def slow_down(self) -> None:
        """Fetch nothing ahead until the pace has been measured again: runs had to wait for too long."""
        self._pace = 0.0
        self._most_ahead = self._in_a_row = 0
        self.wake()

    def may_have_items(self, source: Source) -> bool:
        """Handle the news that a source may have an item; return whether it is being leased from now.

        While no slot is free, leave the item to a worker that can start it.
        """
        if not self._serves(source):
            return False
        self._turns.add(source, is_new=True)
        if self._unclaimed() > 0:
            self._fill()
        return source.call is not None

    def wanted_lease_ms(self, source: Source) -> int | None:
        """Return the lease time of an item that is delivered now, in ms; None: there is no room for it."""
        if self._unclaimed() > 0:
            return source.lease_ms
        self._declined[source] = None
        return None

    def delivered(self, source: Source, item: LeasedItem) -> bool:
        """Start a run on an item that was delivered; return whether there is room."""
        if self._unclaimed() <= 0:
            return False
        consumer = source.consumer
        if leases := read_leases(consumer.queue, [item], refuse=False):
            self._start(_runs(consumer, leases), at_once=True)
        return True

    def failed(self, source: Source, error: LeasequeueError) -> None:
        """Handle an error of a source: try again after a pause, or end if that is of no use."""
        if self._ended.done() or not self._serves(source):
            return
        if isinstance(error, QueueClosed) or (is_refusal(error) and not self._has_leased):
            self._ended.set_exception(error)
            return
        if is_refusal(error):
            self._reminder.log(f"{source.consumer.queue.name} cannot be leased from", error)
        elif source not in self.failing:
            log.warning("%s cannot be leased from: %s", source.consumer.queue.name, error)
        since, _ = self.failing.get(source, (time.monotonic(), error))
        self.failing[source] = (since, error)
        source.failing = True
        self._loop.call_later(source.backoff.next(), self._try_again, source)

    def _try_again(self, source: Source) -> None:
        if self._serves(source):
            self._turns.add(source)
            self._fill()

    def _serves(self, source: Source) -> bool:
        """Return whether a source has not been removed."""
        return self._sources.get(source.consumer) is source

    def _unclaimed(self) -> int:
        """Return how many slots are free and have no run waiting for them; 0 if nothing is to be fetched."""
        return 0 if self.quiet else self._executor.free - len(self._renewer.waiting)

    def _ahead(self) -> int:
        if self.quiet:
            return 0
        since, finished = self._measured
        if (passed := time.monotonic() - since) > HORIZON_SECONDS + self._window:
            # The measurement is old: since then the pace was no faster than this.
            pace = (self._executor.finished - finished + 1) / passed
            return min(self._most_ahead, self._ahead_at(pace))
        return self._most_ahead

    def _ahead_at(self, pace: float) -> int:
        """Return how many items to lease ahead at a pace, which is low if replies take longer than runs."""
        few = min(FEW, self._in_a_row) if self._full else 0
        return max(few, min(MAX_WAITING, int(pace * HORIZON_SECONDS)))

    def _room(self) -> int:
        """Return how many more runs may be fetched now."""
        unclaimed, ahead = self._unclaimed(), self._ahead()
        room, half = unclaimed + ahead - self._requested, (ahead + 1) // 2
        if room <= 0 or (room < half and unclaimed <= 0) or self._backlog.size >= MAX_UNACKNOWLEDGED:
            return 0
        if self._full and self._in_a_row and unclaimed > 0:
            return room  # the items ahead did not last until the reply
        # One half of the items ahead is fetched while the other is run.
        return min(room, max(half, self._executor.free))

    def _fill(self) -> None:
        """Lease from the sources whose turn it is, as long as there is room."""
        self._filling = False
        while self._turns and not self._ended.done() and (room := self._room()) > 0:
            # Else each small reply would lead to another small call, for ever.
            if room < self._requested // 4:
                return
            source = self._turns.begin(room, max(0, self._unclaimed()), self._pace)
            if source is None:
                return
            self._requested += source.asked
            source.reserve = self._loop.call_later(RESERVE_SECONDS, self._give_way, source)
            name = f"leasequeue fetch {source.consumer.name}"
            source.call = self._loop.create_task(self._fetch(source), name=name)
            self._on_task(source.call)

    def _give_way(self, source: Source) -> None:
        """Give room and turn of a call that takes long to others: its server may be away."""
        self._free_reserve(source)
        self._turns.give_way(source)
        self.wake()

    def _free_reserve(self, source: Source) -> None:
        if source.reserve is not None:
            source.reserve.cancel()
            source.reserve = None
            self._requested -= source.asked

    async def _fetch(self, source: Source) -> None:
        """Lease items that wait, for as many runs as the source may have now."""
        consumer, runs = source.consumer, list[ActiveRun]()
        count = source.asked * (consumer.batch or 1)
        try:
            await self.declare(consumer)
            leases, level = await lease_level(consumer.queue, count, source.lease_ms, whole=consumer.gathers)
            source.level = level or 0
            runs = _runs(consumer, leases)
        except LeasequeueError as error:
            source.level = 0
            self._turns.end(source, 0)
            self.failed(source, error)
            return
        finally:
            self._free_reserve(source)
            source.call = None
        self._has_leased = True
        if source in self.failing:
            since, _ = self.failing.pop(source)
            source.failing = False
            source.backoff.reset()
            away = time.monotonic() - since
            log.info("the server is back: %s can be leased from after %.1f s", consumer.queue.name, away)
        self._full = len(leases) == count
        self._measure()
        if leases:
            self._start(runs, at_once=len(runs) == 1 and self._executor.free > 0)
        # After the runs have started.
        self._loop.call_soon(self._go_on, source, len(runs), len(leases) < count)

    def _go_on(self, source: Source, runs: int, short: bool) -> None:  # noqa: FBT001 - call_soon gives no names
        """End a call that has brought so many runs. Watch the source if it is empty now."""
        if self._ended.done() or not self._serves(source):
            return
        self._turns.end(source, runs)
        if not (short and self._watch(source)):
            self._turns.go_on(source)
        self._fill()

    def _watch(self, source: Source) -> bool:
        """Wait for the next item of a source that is empty; return False if it may have items now."""
        if self._ended.done() or not self._serves(source):
            return False
        try:
            return engine_of(source.consumer.queue).leasing.watch(self._watchers[source])
        except QueueClosed as error:
            self.failed(source, error)
            return True

    def _start(self, runs: list[ActiveRun], *, at_once: bool = False) -> None:
        """Start runs; see `LeaseRenewer.add`."""
        self.fetched_at = time.monotonic()
        self._renewer.add(runs, at_once=at_once)
        self._executor.wake()

    def _measure(self) -> None:
        now, finished = time.monotonic(), self._executor.finished
        since, before = self._measured
        if now - since >= self._window:
            pace = (finished - before) / (now - since)
            weight = WEIGHT_OF_NEW if pace < self._pace else WEIGHT_OF_FASTER
            self._pace += weight * (pace - self._pace)
            ran = self._executor.ran
            if finished > before:
                mean = max(1e-6, (ran - self._ran) / (finished - before))
                self._in_a_row = int(HORIZON_SECONDS / mean)
                self._window = min(max(SHORTEST_MEASURE, mean), LONGEST_MEASURE)
            self._measured, self._ran = (now, finished), ran
        self._most_ahead = self._ahead_at(self._pace)


class _Watcher:
    """What a queue object notifies of its items: the fetcher, about one source."""

    __slots__ = ("arrived", "delivered", "failed", "wanted_lease_ms")

    def __init__(self, fetcher: Fetcher, source: Source) -> None:
        self.arrived = partial(fetcher.may_have_items, source)
        self.failed = partial(fetcher.failed, source)
        self.wanted_lease_ms = partial(fetcher.wanted_lease_ms, source)
        self.delivered = partial(fetcher.delivered, source)


def _runs(consumer: Consumer, leases: list[Lease]) -> list[ActiveRun]:
    runs = _runs_for(consumer, leases)
    note_stages(runs, leases)
    return runs


def _runs_for(consumer: Consumer, leases: list[Lease]) -> list[ActiveRun]:
    if isinstance(consumer, Dispatcher):
        single, batches = consumer.assign(leases)
        runs = [ActiveRun(handler, (lease,)) for handler, lease in single]
        return [*runs, *(run for handler, some in batches.items() for run in _runs_of(handler, some))]
    return _runs_of(consumer.handlers[0], leases)


def _runs_of(handler: Handler, leases: list[Lease]) -> list[ActiveRun]:
    size = handler.batch
    if size is None:
        return [ActiveRun(handler, (lease,)) for lease in leases]
    by_group: dict[bytes | None, list[Lease]] = {}
    alone: list[Lease] = []
    for lease in leases:
        group = lease._group if handler.gathers else None  # noqa: SLF001 - of the queue
        # An item's last attempt is a separate run, so that its failure or crash affects no other item. What
        # was added without the group of its key may have any key.
        if lease.attempt >= handler.max_attempts or not (group or b"").startswith(handler.together):
            alone.append(lease)
        else:
            by_group.setdefault(group, []).append(lease)
    return [
        *(
            ActiveRun(handler, some[at : at + size])
            for some in by_group.values()
            for at in range(0, len(some), size)
        ),
        *(ActiveRun(handler, (lease,)) for lease in alone),
    ]
