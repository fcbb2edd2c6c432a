"""The rules that a right history keeps. Each takes time that grows with the history, and little more."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from leasehold.testing.history.lives import Held, Life, Lives, Spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from leasehold.testing.history.events import FinalState, History
    from leasehold.testing.history.lives import Numbers


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
    lives = Lives(history)
    states = {final.queue: final for final in finals}
    found = [
        Violation(name, life.queue, life.id, detail, at)
        for name, rule in RULES.items()
        for life, detail, at in rule(lives, states)
    ]
    return sorted(found, key=lambda one: math.inf if one.at is None else one.at)


def _lost(lives: Lives, finals: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """What was added is completed, a dead letter, or still there; dead letters stay until they are taken."""
    for life in lives.all:
        final = finals.get(life.queue)
        if final is None:
            continue
        added = [call.asked for call in life.births() if call.sure]
        # From its last adding on, a lease must have led to an end.
        ended = not added or life.ends_after().any_overlaps(added[-1], math.inf)
        if not ended and life.id not in final.unfinished:
            yield life, "was added, has not ended since, and is not in the queue", None
        deaths = [call for call in life.of("die") if call.sure]
        if deaths and life.id not in final.dead:
            taken = [call for call in life.of("requeue", "drop") if call.possible]
            if not any(call.answered > deaths[-1].asked for call in taken):
                yield life, "became a dead letter that is not there, and nobody took it away", None


def _twice(lives: Lives, finals: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """Between two ends of an item it was added anew; after the last, it is gone."""
    for life in lives.all:
        granted = life.granted()
        sure = sorted((call for call in life.deaths() if call.sure), key=lambda call: call.token)
        # Until when it was added, when it was to end, and when that showed.
        windows: list[tuple[float, int, int | None]] = [
            (granted.get(call.token, call.answered), call.asked, int(call.answered)) for call in sure
        ]
        final = finals.get(life.queue)
        if windows and final is not None and life.id in final.unfinished:
            windows.append((math.inf, 0, None))
        births = life.births()
        open_births: list[float] = []
        at, since = 0, 0
        for until, asked, seen in windows:
            while at < len(births) and births[at].asked <= until:
                heapq.heappush(open_births, births[at].answered)
                at += 1
            while open_births and open_births[0] < since:
                heapq.heappop(open_births)
            if open_births:
                heapq.heappop(open_births)
            elif seen is None:
                yield life, "is in the queue, but was not added again after it had ended", None
            else:
                yield life, "completed or dead once more, but was not added again in between", seen
            since = asked


def _readded(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """Between two adds that were told True the item has ended."""
    for life in lives.all:
        ends = life.ends_after()
        sure = [call for call in life.births() if call.sure]
        for earlier, later in pairwise(sure):
            if not ends.any_overlaps(earlier.asked, later.answered):
                yield life, "added once more while it was there", int(later.answered)


def _numbers(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """A lease that was asked for after another had been given has a greater number, and its own."""
    given: set[tuple[str, int]] = set()
    for life in lives.all:
        numbers = lives.numbers.get(life.queue)
        for lease in life.leases:
            if (life.queue, lease.token) in given:
                yield life, f"token {lease.token} was given twice", lease.answered
            given.add((life.queue, lease.token))
            highest = numbers.known_by(lease.asked) if numbers else 0
            if highest > lease.token:
                yield life, f"got number {lease.token} when {highest} had been given", lease.answered


def _begins(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """No handler begins after its item's completion was acknowledged.

    But for one case, which the protocol allows: an earlier holder, whose lease had ended, completes the
    item while a later one has it in hand and is about to begin.
    """
    for life in lives.all:
        done = sorted((call for call in life.of("complete") if call.sure), key=lambda call: call.token)
        if not done:
            continue
        tokens = [call.token for call in done]
        births = Spans(call.span for call in life.births())
        # The earliest answer to a completion with this number or a later one.
        first = list(accumulate((call.answered for call in reversed(done)), min))[::-1]
        leases = {lease.token: lease for lease in life.leases}
        for begin in life.begins:
            token = begin.token or 0
            at = bisect_left(tokens, token)
            if at < len(done) and first[at] < begin.at:
                yield life, f"began under number {token} after it was completed", begin.at
            lease, before = leases.get(token), done[at - 1] if at else None
            if (
                lease is not None
                and before is not None
                and lease.asked > before.answered
                and not births.any_overlaps(before.asked, lease.answered)
            ):
                yield life, f"leased and begun (number {token}) after it was completed", begin.at


def _holders(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """Renewing, failing and giving back are for the current holder alone."""
    for life in lives.all:
        tokens = [lease.token for lease in life.leases]
        # When the first lease from this one on was given.
        taken = list(accumulate((lease.answered for lease in reversed(life.leases)), min))[::-1]
        for call in life.of("renew", "retry", "die", "release"):
            at = bisect_left(tokens, call.token + 1)
            if call.sure and at < len(tokens) and taken[at] < call.asked:
                detail = f"number {call.token} could {call.kind} when {tokens[at]} or a later one held it"
                yield life, detail, int(call.answered)


class _Attempts:
    """What the number of an attempt may be, from what happened since the lease before."""

    def __init__(self, life: Life, numbers: Numbers) -> None:
        self._numbers = numbers
        self._may_end = Spans(call.span for call in life.deaths())
        self._ended = Spans(call.span for call in life.deaths() if call.sure)
        self._births = life.births()
        self._released: dict[int, bool] = {}
        for call in life.of("release"):
            if call.possible:
                self._released[call.token] = call.sure or self._released.get(call.token, False)

    def first(self, lease: Held) -> tuple[int, int]:
        born = self._births[0].asked if self._births else 0
        return 1, 1 + self._numbers.unseen(self._numbers.known_by(born), lease.token)

    def after(self, before: Held, lease: Held) -> tuple[int, int]:
        """The least and the most."""
        unseen = self._numbers.unseen(before.token, lease.token)
        if self._ended.any_within(before.answered, lease.asked):
            return 1, 1 + unseen
        released = self._released.get(before.token)
        least = before.attempt + (released is None)
        most = before.attempt + (released is not True) + unseen
        if self._may_end.any_overlaps(before.asked, lease.answered):
            return 1, most
        return least, most


def _attempts(life: Life, lives: Lives) -> Iterator[tuple[Held, int, int]]:
    """Each lease of an item, with the least and the most that its `attempt` may be."""
    if life.leases:
        rule = _Attempts(life, lives.numbers[life.queue])
        yield life.leases[0], *rule.first(life.leases[0])
        for before, lease in zip(life.leases, life.leases[1:], strict=False):
            yield lease, *rule.after(before, lease)


def _counted(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """A lease that was not given back is an attempt, also when its worker died."""
    for life in lives.all:
        for lease, least, _most in _attempts(life, lives):
            if lease.attempt < least:
                detail = f"number {lease.token} is attempt {lease.attempt}, not {least} or more"
                yield life, detail, lease.answered


def _not_counted(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """What was given back, as an interrupted run is, was no attempt."""
    for life in lives.all:
        for lease, _least, most in _attempts(life, lives):
            if lease.attempt > most:
                detail = f"number {lease.token} is attempt {lease.attempt}, not {most} or less"
                yield life, detail, lease.answered


def _released(lives: Lives, _: Mapping[str, FinalState]) -> Iterator[tuple[Life, str, int | None]]:
    """A worker that interrupts a run gives its item back before it leaves, as long as the server answers."""
    for life in lives.all:
        settled = {call.token for call in life.of("release")}
        settled |= {call.token for call in life.of("renew") if not call.possible}
        for end in life.ends:
            interrupted = end.outcome == "interrupted" and end.by in lives.left
            if interrupted and end.token not in settled and lives.cut_off_at.get(end.by, 0) < end.at:
                yield life, f"number {end.token} was interrupted and not given back", end.at


#: Each rule by its name, which a violation bears.
RULES: Mapping[str, Callable[[Lives, Mapping[str, FinalState]], Iterator[tuple[Life, str, int | None]]]] = {
    "nothing is lost": _lost,
    "one True per incarnation": _twice,
    "no item is added while it is there": _readded,
    "tokens grow": _numbers,
    "nothing begins when it is completed": _begins,
    "only the holder decides": _holders,
    "every attempt is counted": _counted,
    "what was given back was no attempt": _not_counted,
    "interrupted runs are given back": _released,
}
