"""What a row has shown, judged from what its clients recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.failover.workload import PARTS, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.failover.workload import Workload

#: A pause of redis-py's client that is longer is an outage (s).
OUTAGE_SECONDS = 0.5


@dataclass(frozen=True)
class Verdict:
    """One round of a row.

    Attributes:
        plain: The longest outage of redis-py's own client (s).
        ours: The longest time in which a part was not served (s).
        behind: The longest time in which a part was not served though redis-py's client was (s).
        part: Which part that was.
        parts: The same of each part.
        lost: Items that were acknowledged, and are gone.
        doubled: Items that were completed twice in one branch of history.
        tokens: How many tokens were issued again.
        answers: What servers answered, and how often.
        problems: What must not have happened.
        unserved: Whether redis-py's client was not served again in time, which is no fault of ours: the parts
            are judged by themselves.
    """

    row: str
    plain: float
    ours: float
    behind: float
    part: str
    parts: dict[str, float]
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    tokens: int
    answers: dict[str, int]
    problems: tuple[str, ...] = field(default=())
    unserved: bool = False

    def __str__(self) -> str:
        """Return a row of the table."""
        met = " ".join(f"{word}:{count}" for word, count in sorted(self.answers.items()))
        met += " (redis-py's own client was not served again)" if self.unserved else ""
        return (
            f"{self.row:34} | {self.plain:8.1f} | {self.ours:6.1f} | {self.behind:6.1f} {self.part:13} | "
            f"{len(self.lost):4} | {len(self.doubled):7} | {self.tokens:6} | {met}"
        )

    def json(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


HEADER = f"{'row':34} | redis-py |   ours | {'behind redis-py (s)':20} | lost | doubled | tokens | answers"


@dataclass(frozen=True)
class Course:
    """What is known about a round besides its history.

    Attributes:
        begun: When the fault began, by `time.monotonic()`.
        ended: When the round ended.
        safe: Items that all replicas had before the fault.
        last: The address of the server that has the queues in the end; empty: the same as at first.
        left: Items that were not done in the end.
    """

    begun: float
    ended: float
    safe: frozenset[str]
    last: str
    left: frozenset[str]
    stopped: tuple[str, ...] = ()


def judge(row: str, workload: Workload, course: Course, *, may_lose: bool) -> Verdict:
    """Judge a round.

    Args:
        row: Its name.
        workload: What has happened.
        course: What is known besides.
        may_lose: Whether the fault may undo what no replica had.
    """
    outages = _outages(workload.served[PLAIN], course)
    silences = {part: [*_silences(workload.served[part], outages, course)] for part in PARTS}
    late = {part: round(max(one for _, one in ones), 2) for part, ones in silences.items()}
    part = max(late, key=late.__getitem__)
    lost, doubled = _lost(workload, course), _doubled(workload, course, may_lose=may_lose)
    stopped = [part for part in course.stopped if part != PLAIN]
    problems = [*workload.errors, *(f"{part} was not served again" for part in stopped)]
    problems += [f"{one} was completed twice: {_story(workload, one, course)}" for one in doubled]
    problems += [f"{one} was not done" for one in sorted(course.left)]
    problems += [f"{one} was given up: {_story(workload, one, course)}" for one in sorted(workload.dead)]
    if not may_lose:
        problems += [f"{one} was lost: {_story(workload, one, course)}" for one in (*lost, *workload.unknown)]
    problems += [
        f"{one} was lost, though {why}: {_story(workload, one, course)}"
        for one, why in _wrongly_lost(workload, course, lost)
    ]
    return Verdict(
        row,
        max((until - since for since, until in outages), default=0.0),
        max(length for ones in silences.values() for length, _ in ones),
        late[part],
        part,
        late,
        tuple(lost),
        tuple(doubled),
        _tokens_again(workload),
        dict(workload.answers),
        tuple(problems),
        unserved=PLAIN in course.stopped,
    )


def _outages(served: Sequence[float], course: Course) -> list[tuple[float, float]]:
    times = [at for at in served if course.begun - 1 < at < course.ended] + [course.ended]
    return [(one, other) for one, other in pairwise(times) if other - one > OUTAGE_SECONDS]


def _silences(
    served: Sequence[float], outages: list[tuple[float, float]], course: Course
) -> Iterable[tuple[float, float]]:
    """Yield how long a part was not served, and the longest time of it in which redis-py's client was."""
    before = [at for at in served if at <= course.begun][-1:]
    during = [at for at in served if course.begun < at < course.ended]
    for since, until in pairwise([*before, *during, course.ended]):
        inside = [at for outage in outages for at in outage if since < at < until]
        inside = [since, *inside, until]
        if any(begin <= since < end for begin, end in outages):
            del inside[0]
        if any(begin < until <= end for begin, end in outages):
            del inside[-1]
        served_times = zip(inside[::2], inside[1::2], strict=True)
        yield until - since, max((end - begin for begin, end in served_times), default=0.0)


def _lost(workload: Workload, course: Course) -> list[str]:
    added = {event.id for event in workload.events if event.kind == "add" and isinstance(event.outcome, bool)}
    ran = {event.id for event in workload.events if event.kind == "complete" and event.outcome is True}
    return sorted(added - workload.done - workload.dead - ran - course.left)


def _wrongly_lost(workload: Workload, course: Course, lost: list[str]) -> Iterable[tuple[str, str]]:
    """Yield what no fail-over may undo, and why not."""
    for event in workload.events:
        if event.kind == "add" and isinstance(event.outcome, bool) and event.id in lost:
            if event.id in course.safe:
                yield event.id, "all replicas had it"
            elif course.last and event.process == course.last:
                yield event.id, "the server that stayed had it"


def _doubled(workload: Workload, course: Course, *, may_lose: bool) -> list[str]:
    """Return items that were completed more often than added, by one server between two faults."""
    completed: dict[str, Counter[object]] = defaultdict(Counter)
    adds = Counter[str]()
    for event in workload.events:
        if event.kind == "complete" and event.outcome is True:
            branch = (event.process, event.at / 1e9 > course.begun) if may_lose else None
            completed[event.id][branch] += 1
        elif event.kind == "add" and event.outcome in (True, "unknown"):
            adds[event.id] += 1  # one without an answer may have been applied
    return sorted(one for one, counts in completed.items() if max(counts.values()) > max(adds[one], 1))


def _tokens_again(workload: Workload) -> int:
    leases: dict[tuple[str, int | None], set[object]] = defaultdict(set)
    for event in workload.events:
        if event.kind == "lease":
            leases[event.queue, event.token].add((event.id, event.called_at))
    return sum(len(ones) > 1 for ones in leases.values())


def _story(workload: Workload, item_id: str, course: Course) -> str:
    """Return what happened to an item, when (s after the fault began), and at which server."""
    events = [event for event in workload.events if event.id == item_id]
    return "; ".join(
        f"{event.at / 1e9 - course.begun:+.2f} {event.kind} {event.outcome} {event.token} at {event.process}"
        for event in events
    )
