"""A history, sorted for the rules: by item, with each call and its answer put together."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasehold.testing.history.events import Event, History, Kind

#: Kinds of calls: these have an answer, or were never answered.
CALLS = frozenset({"add", "requeue", "complete", "retry", "die", "release", "drop", "renew"})


class Call(NamedTuple):
    """One call to the server about one item: it had its effect, if any, between the two times."""

    kind: Kind
    asked: int
    #: Infinity: there was no answer.
    answered: float
    #: What the server said; None: there was no answer, it may or may not have happened.
    outcome: bool | None
    token: int

    @property
    def span(self) -> tuple[int, float]:
        """The time in which it happened."""
        return self.asked, self.answered

    @property
    def sure(self) -> bool:
        """Whether it certainly happened."""
        return self.outcome is True

    @property
    def possible(self) -> bool:
        """Whether it may have happened."""
        return self.outcome is not False


class ObservedLease(NamedTuple):
    """One lease, as its holder learned of it."""

    token: int
    attempt: int
    asked: int
    answered: int


@dataclass
class ItemHistory:
    """Everything about one id of one queue, in the order of time; leases in the order of their numbers."""

    queue: str
    id: str
    leases: list[ObservedLease] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    begins: list[Event] = field(default_factory=list)
    ends: list[Event] = field(default_factory=list)

    def calls_of(self, *kinds: Kind) -> list[Call]:
        """The calls of some kinds, in the order in which they were asked for."""
        found = [call for kind in kinds for call in self.calls.get(kind, ())]
        return sorted(found, key=lambda call: call.asked) if len(kinds) > 1 else found

    def possible_adds(self) -> list[Call]:
        """The calls that may have begun an incarnation."""
        return [call for call in self.calls_of("add", "requeue") if call.possible]

    def possible_ends(self) -> list[Call]:
        """The calls that may have ended one.

        One without an answer cannot have ended a later incarnation than that of its lease.
        """
        born = [call for call in self.possible_adds() if call.sure]
        asked = [call.asked for call in born]
        leased_at = self.leased_at()
        found: list[Call] = []
        for call in self.calls_of("complete", "die"):
            at = bisect_right(asked, leased_at.get(call.token, math.inf))
            if call.outcome is None and at < len(born):
                if call.asked <= born[at].answered:
                    found.append(call._replace(answered=born[at].answered))
            elif call.possible:
                found.append(call)
        return found

    def leased_at(self) -> dict[int, int]:
        """When each lease had been given."""
        return {lease.token: lease.answered for lease in self.leases}

    def end_intervals(self) -> Intervals:
        """To ask whether a lease from a time on may have led to an end by another time."""
        leased_at = self.leased_at()
        return Intervals(
            (call.asked, leased_at.get(call.token, call.answered)) for call in self.possible_ends()
        )


class Intervals:
    """Stretches of time, to be asked whether one of them overlaps or lies within another."""

    def __init__(self, stretches: Iterable[tuple[float, float]]) -> None:
        spans = sorted(stretches)
        self._starts = [start for start, _ in spans]
        ends = [end for _, end in spans]
        self._latest = list(accumulate(ends, max))
        self._earliest = list(accumulate(reversed(ends), min))[::-1]

    def any_overlaps(self, start: float, end: float) -> bool:
        """Whether one of them may have happened between these two times."""
        at = bisect_right(self._starts, end)
        return at > 0 and self._latest[at - 1] >= start

    def any_within(self, start: float, end: float) -> bool:
        """Whether one of them must have happened between these two times."""
        at = bisect_left(self._starts, start)
        return at < len(self._starts) and self._earliest[at] <= end


class TokenIndex:
    """The tokens of a queue that somebody has told of.

    The others were given to processes that died before they could, or that never had the answer.
    """

    def __init__(self, leases: Iterable[ObservedLease]) -> None:
        by_answer = sorted(leases, key=lambda lease: lease.answered)
        self._seen = sorted({lease.token for lease in by_answer})
        self._times = [lease.answered for lease in by_answer]
        self._highest = list(accumulate((lease.token for lease in by_answer), max))

    def unobserved(self, after: int, before: int) -> int:
        """How many numbers between these two nobody has told of."""
        seen = bisect_left(self._seen, before) - bisect_right(self._seen, after)
        return max(0, before - after - 1 - seen)

    def highest_by(self, time: float) -> int:
        """A number that had been given out by then; 0 if none is known."""
        at = bisect_left(self._times, time)
        return self._highest[at - 1] if at else 0


class HistoryIndex:
    """All items of a history.

    Attributes:
        all: One item for each id of each queue.
        leases: The leases of each queue.
        left: The names of the logs that ended with `exit`.
        last_outage: When a log last told that a call did not get through.
    """

    def __init__(self, history: History) -> None:
        self._by_key: dict[tuple[str, str], ItemHistory] = {}
        self._open: dict[tuple[object, ...], list[Event]] = {}
        self.leases: dict[str, list[ObservedLease]] = defaultdict(list)
        self.exited: set[str] = set()
        self.last_outage: dict[str, int] = {}
        for event in history.events:
            self._take(event)
        for asks in self._open.values():
            for ask in asks:
                self._note_call(ask, math.inf, None, ask.at)
        for item in self._by_key.values():
            item.leases.sort()
            for calls in item.calls.values():
                calls.sort(key=lambda call: call.asked)
        self.items = list(self._by_key.values())
        self.tokens = {queue: TokenIndex(leases) for queue, leases in self.leases.items()}

    def _take(self, event: Event) -> None:
        if event.kind == "exit":
            self.exited.add(event.by)
        elif event.kind == "lease":
            asked = event.at if event.asked is None else event.asked
            lease = ObservedLease(event.token or 0, event.attempt or 0, asked, event.at)
            self.leases[event.queue].append(lease)
            self._item(event).leases.append(lease)
        elif event.kind == "begin":
            self._item(event).begins.append(event)
        elif event.kind == "end":
            self._item(event).ends.append(event)
        else:
            self._take_call(event)

    def _take_call(self, event: Event) -> None:
        about = (event.by, event.kind, event.queue, event.id, event.token)
        if event.asked is None:
            self._open.setdefault((*about, event.at), []).append(event)
            return
        asks = self._open.get((*about, event.asked))
        if asks:
            asks.pop(0)
        if isinstance(event.outcome, str):
            self.last_outage[event.by] = event.at
        if event.outcome == "unknown":
            self._note_call(event, math.inf, None, event.asked)
        else:
            self._note_call(event, event.at, event.outcome is True, event.asked)

    def _note_call(self, event: Event, answered: float, outcome: bool | None, asked: int) -> None:  # noqa: FBT001 - internal
        call = Call(event.kind, asked, answered, outcome, event.token or 0)
        self._item(event).calls[event.kind].append(call)

    def _item(self, event: Event) -> ItemHistory:
        key = (event.queue, event.id)
        if (item := self._by_key.get(key)) is None:
            item = self._by_key[key] = ItemHistory(*key)
        return item
