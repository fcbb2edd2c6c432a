"""Decide which queue a worker leases from next, and how many runs it may get.

In strict order, the queue of an earlier handler goes before all later ones. In weighted order, queues with
work take turns, by deficit round robin: in each turn, a queue gets runs in proportion to its weight. A turn
takes some milliseconds at the present pace, so that a call leases many items however many queues have work.

What a turn costs does not depend on the number of queues, only on that of the shards of its queue. In both
orders these share a place. The replies say which level each has next: while one has a higher level, each of
the others gets a few runs in its turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING, Literal

from leasequeue.durations import Backoff, to_ms
from leasequeue.queue.leasing import MAX_ITEMS, UNKNOWN

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from leasequeue.worker.handler import Consumer

Order = Literal["weighted", "strict"]

#: How long a turn takes, and all turns of a round together (s), unless that would be fewer runs than these.
TURN_SECONDS, ROUND_SECONDS, MIN_RUNS = 0.01, 0.4, MAX_ITEMS
#: No turn is longer than this, with few runs either (s).
MAX_TURN_SECONDS = 0.03
#: The shards of a queue that have a lower level than another one get a turn, too, so that their items do not
#: starve, and new ones of a high level are found: a turn of this part of its runs, for all of them together.
PART_BEHIND = 4


class Source:
    """A queue that work is leased from.

    Attributes:
        consumer: What its items are leased for.
        place: Its place among the consumers.
        lease_ms: For how long its items are leased, in ms.
        call: The call in flight.
        asked: How many runs that may bring.
        turn: How many runs its turn brings.
        credit: How many of them are left.
        most: How many runs one call may bring.
        is_ready: Whether it is among those that can have the next turn.
        is_new: Whether an item has arrived after it was empty.
        reserve: Frees the room that the call has reserved, after a while.
        failing: Whether the last call failed.
        level: The level of what it brings next, as far as that is known.
        siblings: The sources that are shards of the same queue, and itself.
        backoff: How long to wait after an error.
    """

    __slots__ = (
        "asked",
        "backoff",
        "call",
        "consumer",
        "credit",
        "failing",
        "is_new",
        "is_ready",
        "lease_ms",
        "level",
        "most",
        "place",
        "reserve",
        "siblings",
        "turn",
    )

    def __init__(self, consumer: Consumer, place: int, siblings: list[Source]) -> None:
        self.consumer = consumer
        self.level = UNKNOWN
        self.siblings = siblings
        self.place = place
        self.call: asyncio.Task[None] | None = None
        self.lease_ms = to_ms("lease_time", consumer.lease_time)
        self.asked = 0
        self.credit = self.turn = 0.0
        self.most = max(1, MAX_ITEMS // (consumer.batch or 1))
        self.is_ready = self.is_new = self.failing = False
        self.reserve: asyncio.TimerHandle | None = None
        self.backoff = Backoff()

    @property
    def turn_over(self) -> bool:
        """Whether its turn is over: the few runs that are left are added to its next turn."""
        return self.credit < max(1.0, self.turn / 4)


class Turns:
    """The queues that may have items, in the order of their turns.

    Args:
        sources: All queues.
        order: The order.
    """

    def __init__(self, sources: Sequence[Source], order: Order) -> None:
        self._strict = order == "strict"
        self._lowest = self._lowest_share = 1.0
        self.share(sources)
        #: Those that can have the next turn; in strict order a heap, by their places.
        self._ready: deque[Source] = deque()
        self._places: list[tuple[int, int, Source]] = []
        #: By it, sources with the same place have turns, too.
        self._added = itertools.count()
        #: Those with a call in flight.
        self._called: dict[Source, None] = {}
        #: The one of them whose turn is not over when that call has ended.
        self._current: Source | None = None

    def share(self, sources: Iterable[Source]) -> None:
        """Share the slots among these sources, by their weights: all that there are now."""
        weights = [source.consumer.weight for source in sources]
        if weights:
            self._lowest = min(weights)
            self._lowest_share = self._lowest * len(weights) / sum(weights)

    def remove(self, source: Source) -> None:
        """Let a source that has no call in flight have no further turn."""
        self.end(source, 0)
        if source.is_ready:
            source.is_ready = False
            if self._strict:
                self._places = [one for one in self._places if one[-1] is not source]
                heapq.heapify(self._places)
            else:
                self._ready.remove(source)

    def __bool__(self) -> bool:
        """Return whether the next call may begin now."""
        return bool(self._places or (self._ready and self._current is None))

    def add(self, source: Source, *, is_new: bool = False) -> None:
        """Let a source that may have items have a turn, after those that are ready.

        Args:
            source: The source.
            is_new: Whether an item has arrived after it was empty: there are hardly many.
        """
        source.is_new = is_new
        if source.is_ready or source in self._called:
            return
        source.is_ready = True
        if self._strict:
            heapq.heappush(self._places, (source.place, next(self._added), source))
        else:
            self._ready.append(source)

    def begin(self, room: int, free: int, pace: float) -> Source | None:
        """Begin the next call: set how many runs it is to bring, and return its source, or None.

        Args:
            room: How many runs may be fetched, at least 1.
            free: How many of them can start at once.
            pace: How many runs finish in a second.
        """
        if self._strict:
            return self._begin_strict(room)
        if not self._ready or self._current is not None:
            return None
        source = self._ready.popleft()
        active = len(self._ready) + len(self._called) + 1
        if source.turn_over:
            source.turn = self._runs_of_turn(source, active, free, pace)
            source.credit += source.turn
        self._call(source, room if active == 1 else min(room, int(source.credit)))
        left = source.credit - source.asked
        if active > 1 and left >= max(1.0, source.turn / 4) and not source.failing:
            self._current = source
        return source

    def end(self, source: Source, runs: int) -> None:
        """End a call that has brought so many runs. The turn has ended if there were fewer than asked for."""
        self._called.pop(source, None)
        if self._current is source:
            self._current = None
        source.credit = max(0.0, source.credit - runs) if runs >= source.asked else 0.0

    def give_way(self, source: Source) -> None:
        """Let others have their turns while a call takes long."""
        source.level = 0
        if self._current is source:
            self._current = None

    def go_on(self, source: Source) -> None:
        """Let a source that may have more items have the rest of its turn, or its next turn."""
        if self._strict or source.turn_over:
            self.add(source)
        elif not source.is_ready:
            source.is_ready = True
            self._ready.appendleft(source)

    def _begin_strict(self, room: int) -> Source | None:
        if not self._places:
            return None
        place, _, source = self._places[0]
        if any(one.place < place and not one.failing for one in self._called):
            return None  # an earlier queue may have items
        heapq.heappop(self._places)
        self._call(source, room)
        return source

    def _call(self, source: Source, runs: int) -> None:
        source.is_ready = False
        if source.is_new:
            runs = (runs + 3) // 4  # leave room for items that arrive in other queues
            source.is_new = False
        if self._is_behind(source):
            runs = max(1, min(runs, source.most) // (PART_BEHIND * len(source.siblings)))
            source.credit = float(runs)
        # A queue whose server is away must not hold room that others could use.
        source.asked = 1 if source.failing else min(runs, source.most)
        self._called[source] = None

    def _is_behind(self, source: Source) -> bool:
        """Return whether another shard of its queue may have items of a higher level."""
        return len(source.siblings) > 1 and any(
            (one.level > source.level or source.level == UNKNOWN) and (one.is_ready or one in self._called)
            for one in source.siblings
            if one is not source
        )

    def _runs_of_turn(self, source: Source, active: int, free: int, pace: float) -> float:
        """Return how many runs a turn brings: on average over the sources so many, by their weights."""
        runs = max(
            pace * min(TURN_SECONDS, ROUND_SECONDS / active),
            min(MIN_RUNS, pace * MAX_TURN_SECONDS),
            free / active,
        )
        # At least one for the source with the lowest weight.
        return max(1.0, runs * self._lowest_share) * source.consumer.weight / self._lowest
