"""The rules that a right history keeps. Each takes time that grows with the history, and little more."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from leasehold.testing.history.index import HistoryIndex, Intervals, ItemHistory, ObservedLease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from leasehold.testing.history.events import FinalState, History
    from leasehold.testing.history.index import TokenIndex


class Violation(NamedTuple):
    """A rule that was broken."""

    #: The name of the rule: a key of `RULES`.
    rule: str
    queue: str
    id: str
    #: What happened, as a sentence.
    detail: str
    #: When it showed, by `time.monotonic_ns()`; None: only in the end.
    at: int | None = None

    def __str__(self) -> str:
        when = "in the end" if self.at is None else f"at {self.at / 1e9:.6f}"
        return f"{self.rule}: item {self.id!r} of {self.queue!r}, {when}: {self.detail}"


def check(history: History, *finals: FinalState) -> list[Violation]:
    """Look for everything in a history that the queue and the worker promise not to happen.

    Calls without an answer, and leases that nobody told of because their process was killed, are given the
    benefit of the doubt. Everything else has to fit. `RULES` names the rules.

    Args:
        history: What the processes wrote down; of each queue, all of those that added, leased or settled.
        finals: What is left of each queue. Of a queue without it, loss and return are not looked for.

    Returns:
        What was wrong, in the order of time; nothing in a right history.
    """
    index = HistoryIndex(history)
    states = {final.queue: final for final in finals}
    found = [
        Violation(name, item.queue, item.id, detail, at)
        for name, rule in RULES.items()
        for item, detail, at in rule(index, states)
    ]
    return sorted(found, key=lambda one: math.inf if one.at is None else one.at)


def _lost(
    index: HistoryIndex, finals: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """What was added is completed, a dead letter, or still there; dead letters stay until they are taken."""
    for item in index.items:
        final = finals.get(item.queue)
        if final is None:
            continue
        added = [call.asked for call in item.possible_adds() if call.sure]
        # From its last adding on, a lease must have led to an end.
        ended = not added or item.end_intervals().any_overlaps(added[-1], math.inf)
        if not ended and item.id not in final.unfinished:
            yield item, "was added, has not ended since, and is not in the queue", None
        deaths = [call for call in item.calls_of("die") if call.sure]
        if deaths and item.id not in final.dead:
            taken = [call for call in item.calls_of("requeue", "drop") if call.possible]
            if not any(call.answered > deaths[-1].asked for call in taken):
                yield item, "became a dead letter that is not there, and nobody took it away", None


def _twice(
    index: HistoryIndex, finals: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """Between two ends of an item it was added anew; after the last, it is gone."""
    for item in index.items:
        leased_at = item.leased_at()
        sure = sorted((call for call in item.possible_ends() if call.sure), key=lambda call: call.token)
        # Until when it was added, when it was to end, and when that showed.
        windows: list[tuple[float, int, int | None]] = [
            (leased_at.get(call.token, call.answered), call.asked, int(call.answered)) for call in sure
        ]
        final = finals.get(item.queue)
        if windows and final is not None and item.id in final.unfinished:
            windows.append((math.inf, 0, None))
        possible_adds = item.possible_adds()
        open_adds: list[float] = []
        at, since = 0, 0
        for until, asked, seen in windows:
            while at < len(possible_adds) and possible_adds[at].asked <= until:
                heapq.heappush(open_adds, possible_adds[at].answered)
                at += 1
            while open_adds and open_adds[0] < since:
                heapq.heappop(open_adds)
            if open_adds:
                heapq.heappop(open_adds)
            elif seen is None:
                yield item, "is in the queue, but was not added again after it had ended", None
            else:
                yield item, "completed or dead once more, but was not added again in between", seen
            since = asked


def _readded(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """Between two adds that were told True the item has ended."""
    for item in index.items:
        ends = item.end_intervals()
        sure = [call for call in item.possible_adds() if call.sure]
        for earlier, later in pairwise(sure):
            if not ends.any_overlaps(earlier.asked, later.answered):
                yield item, "added once more while it was there", int(later.answered)


def _tokens(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """A lease that was asked for after another had been given has a greater number, and its own."""
    given: set[tuple[str, int]] = set()
    for item in index.items:
        numbers = index.tokens.get(item.queue)
        for lease in item.leases:
            if (item.queue, lease.token) in given:
                yield item, f"token {lease.token} was given twice", lease.answered
            given.add((item.queue, lease.token))
            highest = numbers.highest_by(lease.asked) if numbers else 0
            if highest > lease.token:
                yield item, f"got number {lease.token} when {highest} had been given", lease.answered


def _begins(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """No handler begins after its item's completion was acknowledged.

    But for one case, which the protocol allows: an earlier holder, whose lease had ended, completes the
    item while a later one has it in hand and is about to begin.
    """
    for item in index.items:
        done = sorted((call for call in item.calls_of("complete") if call.sure), key=lambda call: call.token)
        if not done:
            continue
        tokens = [call.token for call in done]
        possible_adds = Intervals(call.span for call in item.possible_adds())
        # The earliest answer to a completion with this number or a later one.
        first = list(accumulate((call.answered for call in reversed(done)), min))[::-1]
        leases = {lease.token: lease for lease in item.leases}
        for begin in item.begins:
            token = begin.token or 0
            at = bisect_left(tokens, token)
            if at < len(done) and first[at] < begin.at:
                yield item, f"began under number {token} after it was completed", begin.at
            lease, before = leases.get(token), done[at - 1] if at else None
            if (
                lease is not None
                and before is not None
                and lease.asked > before.answered
                and not possible_adds.any_overlaps(before.asked, lease.answered)
            ):
                yield item, f"leased and begun (number {token}) after it was completed", begin.at


def _holders(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """Renewing, failing and giving back are for the current holder alone."""
    for item in index.items:
        tokens = [lease.token for lease in item.leases]
        # When the first lease from this one on was given.
        taken = list(accumulate((lease.answered for lease in reversed(item.leases)), min))[::-1]
        for call in item.calls_of("renew", "retry", "die", "release"):
            at = bisect_left(tokens, call.token + 1)
            if call.sure and at < len(tokens) and taken[at] < call.asked:
                detail = f"number {call.token} could {call.kind} when {tokens[at]} or a later one held it"
                yield item, detail, int(call.answered)


class _Attempts:
    """What the number of an attempt may be, from what happened since the lease before."""

    def __init__(self, item: ItemHistory, numbers: TokenIndex) -> None:
        self._tokens = numbers
        self._may_end = Intervals(call.span for call in item.possible_ends())
        self._ended = Intervals(call.span for call in item.possible_ends() if call.sure)
        self._possible_adds = item.possible_adds()
        self._released: dict[int, bool] = {}
        for call in item.calls_of("release"):
            if call.possible:
                self._released[call.token] = call.sure or self._released.get(call.token, False)

    def first(self, lease: ObservedLease) -> tuple[int, int]:
        born = self._possible_adds[0].asked if self._possible_adds else 0
        return 1, 1 + self._tokens.unobserved(self._tokens.highest_by(born), lease.token)

    def after(self, before: ObservedLease, lease: ObservedLease) -> tuple[int, int]:
        """The least and the most."""
        unobserved = self._tokens.unobserved(before.token, lease.token)
        if self._ended.any_within(before.answered, lease.asked):
            return 1, 1 + unobserved
        released = self._released.get(before.token)
        least = before.attempt + (released is None)
        most = before.attempt + (released is not True) + unobserved
        if self._may_end.any_overlaps(before.asked, lease.answered):
            return 1, most
        return least, most


def _attempts(item: ItemHistory, index: HistoryIndex) -> Iterator[tuple[ObservedLease, int, int]]:
    """Each lease of an item, with the least and the most that its `attempt` may be."""
    if item.leases:
        rule = _Attempts(item, index.tokens[item.queue])
        yield item.leases[0], *rule.first(item.leases[0])
        for before, lease in zip(item.leases, item.leases[1:], strict=False):
            yield lease, *rule.after(before, lease)


def _counted(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """A lease that was not given back is an attempt, also when its worker died."""
    for item in index.items:
        for lease, least, _most in _attempts(item, index):
            if lease.attempt < least:
                detail = f"number {lease.token} is attempt {lease.attempt}, not {least} or more"
                yield item, detail, lease.answered


def _not_counted(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """What was given back, as an interrupted run is, was no attempt."""
    for item in index.items:
        for lease, _least, most in _attempts(item, index):
            if lease.attempt > most:
                detail = f"number {lease.token} is attempt {lease.attempt}, not {most} or less"
                yield item, detail, lease.answered


def _released(
    index: HistoryIndex, _: Mapping[str, FinalState]
) -> Iterator[tuple[ItemHistory, str, int | None]]:
    """A worker that interrupts a run gives its item back before it leaves, as long as the server answers."""
    for item in index.items:
        settled = {call.token for call in item.calls_of("release")}
        settled |= {call.token for call in item.calls_of("renew") if not call.possible}
        for end in item.ends:
            interrupted = end.outcome == "interrupted" and end.by in index.exited
            if interrupted and end.token not in settled and index.last_outage.get(end.by, 0) < end.at:
                yield item, f"number {end.token} was interrupted and not given back", end.at


#: Each rule by its name, which a violation bears.
RULES: Mapping[
    str, Callable[[HistoryIndex, Mapping[str, FinalState]], Iterator[tuple[ItemHistory, str, int | None]]]
] = {
    "nothing is lost": _lost,
    "one True per incarnation": _twice,
    "no item is added while it is there": _readded,
    "tokens grow": _tokens,
    "nothing begins when it is completed": _begins,
    "only the holder decides": _holders,
    "every attempt is counted": _counted,
    "what was given back was no attempt": _not_counted,
    "interrupted runs are given back": _released,
}
