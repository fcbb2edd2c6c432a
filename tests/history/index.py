"""Index a history by item, and pair each call with its answer."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from tests.history.events import STAGE_ENDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.history.events import Event, History, Kind


class Call(NamedTuple):
    """One call to the server about one item. Its effect, if any, was between the two times."""

    kind: Kind
    called_at: int
    #: Infinity if no answer was recorded.
    answered_at: float
    #: The server's answer. None: no answer was recorded, so the call may or may not have been applied.
    outcome: bool | None
    token: int
    #: Whether it is an add that the server refused, as the item was unfinished.
    found: bool = False

    @property
    def span(self) -> tuple[int, float]:
        """The time from the call to its answer."""
        return self.called_at, self.answered_at

    @property
    def applied(self) -> bool:
        """Whether the call was certainly applied."""
        return self.outcome is True

    @property
    def maybe_applied(self) -> bool:
        """Whether the call may have been applied."""
        return self.outcome is not False


class ObservedLease(NamedTuple):
    """One lease, as its holder recorded it."""

    token: int
    attempt: int
    called_at: int
    answered_at: int


@dataclass
class ItemHistory:
    """The history of one id in one queue: calls and runs in the order of time, leases in that of tokens."""

    queue: str
    id: str
    leases: list[ObservedLease] = field(default_factory=list)
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    begins: list[Event] = field(default_factory=list)
    ends: list[Event] = field(default_factory=list)

    def calls_of(self, *kinds: Kind) -> list[Call]:
        """Return the calls of these kinds, in the order in which they were made."""
        found = [call for kind in kinds for call in self.calls.get(kind, ())]
        return sorted(found, key=lambda call: call.called_at) if len(kinds) > 1 else found

    def adds(self) -> list[Call]:
        """Return the calls that may have started an incarnation."""
        return [call for call in self.calls_of("add", "requeue") if call.maybe_applied]

    def endings(self) -> list[Call]:
        """Return the calls that may have ended an incarnation: completions, final failures, cancellations.

        A call without an answer cannot have ended an incarnation later than that of its lease.
        """
        added = [call for call in self.adds() if call.applied]
        added_at = [call.called_at for call in added]
        leased_at = self.leased_at()
        found: list[Call] = []
        for call in self.calls_of("complete", "die", "cancel", *STAGE_ENDS):
            next_add = bisect_right(added_at, leased_at.get(call.token, math.inf))
            if call.outcome is None and next_add < len(added):
                if call.called_at <= added[next_add].answered_at:
                    found.append(call._replace(answered_at=added[next_add].answered_at))
            elif call.maybe_applied:
                found.append(call)
        return found

    def leased_at(self) -> dict[int, int]:
        """Return when each lease was received, by token."""
        return {lease.token: lease.answered_at for lease in self.leases}

    def endings_by_lease(self) -> Intervals:
        """Return intervals that `any_overlaps` compares with two times.

        One overlaps if the item may have been ended by the second time, under a lease that was received
        after the first.
        """
        leased_at = self.leased_at()
        return Intervals(
            (call.called_at, leased_at.get(call.token, call.answered_at)) for call in self.endings()
        )


class Intervals:
    """Intervals of time, to ask whether one of them overlaps another interval or lies within it."""

    def __init__(self, intervals: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(intervals)
        self._starts = [start for start, _ in ordered]
        ends = [end for _, end in ordered]
        self._latest = list(accumulate(ends, max))
        self._earliest = list(accumulate(reversed(ends), min))[::-1]

    def any_overlaps(self, start: float, end: float) -> bool:
        """Return whether an event in one of the intervals may have happened between `start` and `end`."""
        at = bisect_right(self._starts, end)
        return at > 0 and self._latest[at - 1] >= start

    def any_within(self, start: float, end: float) -> bool:
        """Return whether an event in one of the intervals must have happened between `start` and `end`."""
        at = bisect_left(self._starts, start)
        return at < len(self._starts) and self._earliest[at] <= end


class TokenIndex:
    """The tokens of a queue that were recorded.

    The others were issued to processes that were killed before they recorded them, or that never received
    the reply.
    """

    def __init__(self, leases: Iterable[ObservedLease]) -> None:
        by_answer = sorted(leases, key=lambda lease: lease.answered_at)
        self._tokens = sorted({lease.token for lease in by_answer})
        self._times = [lease.answered_at for lease in by_answer]
        self._highest = list(accumulate((lease.token for lease in by_answer), max))

    def unrecorded(self, after: int, before: int) -> int:
        """Return how many tokens between these two were not recorded."""
        recorded = bisect_left(self._tokens, before) - bisect_right(self._tokens, after)
        return max(0, before - after - 1 - recorded)

    def highest_by(self, time: float) -> int:
        """Return the highest token recorded before a time; 0 if there is none."""
        at = bisect_left(self._times, time)
        return self._highest[at - 1] if at else 0


class HistoryIndex:
    """All items of a history.

    Attributes:
        items: The history of each id of each queue.
        runs: That of each flow run, by its id.
        leases: The leases of each queue.
        tokens: The recorded tokens of each queue.
        exited: The names of the logs that end with `exit`.
        last_unanswered: When each log last recorded a call that got no answer.
    """

    def __init__(self, history: History) -> None:
        self._by_key: dict[tuple[str, str], ItemHistory] = {}
        self._pending: dict[tuple[object, ...], list[Event]] = {}
        self.leases: dict[str, list[ObservedLease]] = defaultdict(list)
        self.exited: set[str] = set()
        self.last_unanswered: dict[str, int] = {}
        for event in history.events:
            self._add(event)
        for calls in self._pending.values():
            for call in calls:
                self._add_call(call, math.inf, None, call.at)
        for item in self._by_key.values():
            item.leases.sort()
            for of_kind in item.calls.values():
                of_kind.sort(key=lambda call: call.called_at)
        self.items = list(self._by_key.values())
        self.runs = {item.id: item for item in self.items if item.calls_of("start", "run_retry")}
        self.tokens = {queue: TokenIndex(leases) for queue, leases in self.leases.items()}

    def _add(self, event: Event) -> None:
        if event.kind == "exit":
            self.exited.add(event.process)
        elif event.kind == "lease":
            called_at = event.at if event.called_at is None else event.called_at
            lease = ObservedLease(event.token or 0, event.attempt or 0, called_at, event.at)
            self.leases[event.queue].append(lease)
            self._item(event).leases.append(lease)
        elif event.kind == "begin":
            self._item(event).begins.append(event)
        elif event.kind == "end":
            self._item(event).ends.append(event)
        else:
            self._pair(event)

    def _pair(self, event: Event) -> None:
        """Keep a call until its answer comes, and pair an answer with its call."""
        key = (event.process, event.kind, event.queue, event.id, event.token)
        if event.called_at is None:
            self._pending.setdefault((*key, event.at), []).append(event)
            return
        calls = self._pending.get((*key, event.called_at))
        if calls:
            calls.pop(0)
        if isinstance(event.outcome, str):
            self.last_unanswered[event.process] = event.at
        if event.outcome == "unknown":
            self._add_call(event, math.inf, None, event.called_at)
        else:
            self._add_call(event, event.at, event.outcome is True, event.called_at)

    def _add_call(self, event: Event, answered_at: float, outcome: bool | None, called_at: int) -> None:  # noqa: FBT001 - internal
        found = event.kind == "add" and event.outcome is False
        call = Call(event.kind, called_at, answered_at, outcome, event.token or 0, found)
        self._item(event).calls[event.kind].append(call)

    def _item(self, event: Event) -> ItemHistory:
        key = (event.queue, event.id)
        if (item := self._by_key.get(key)) is None:
            item = self._by_key[key] = ItemHistory(*key)
        return item
