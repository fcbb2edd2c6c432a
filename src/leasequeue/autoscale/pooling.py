"""Several jobs in one deployment: shares of its workers, and what the jobs need together.

Jobs that share workers need fewer than the sum of what each would need alone: one worker is enough for ten
jobs of one item an hour. `pooled` describes the jobs as one, whose seconds of work are the sum of theirs. It
is a heuristic: it takes the items as if they waited in one line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.autoscale.answer import time_left
from leasequeue.autoscale.model import JobPolicy, Signals

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class PooledJob:
    """One job of a deployment."""

    signals: Signals
    policy: JobPolicy
    #: How long one item takes (s), above 0.
    service_time: float

    @property
    def age_target(self) -> float:
        """Its age target (s), above 0."""
        return max(self.policy.age_target, 1e-3)

    @property
    def waiting(self) -> int:
        """The items that wait and are to be done."""
        ignored = self.signals.abandoned if self.policy.ignore_abandoned else 0
        return max(0, self.signals.waiting - ignored)

    @property
    def begun(self) -> float:
        """The items per second that are to be begun: those that arrive, and those that wait."""
        return self.signals.arrival_rate + (self.waiting + self.signals.leased) / self.age_target


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Divide a number by weights, by largest remainder: the shares add up to it.

    Among equal remainders, the first ones are preferred. Weights of 0 share equally if there are no others.
    """
    whole = sum(map(Fraction, weights))  # exact, however large the numbers are
    exact = [
        total * (Fraction(weight) / whole if whole > 0 else Fraction(1, len(weights))) for weight in weights
    ]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts


def pooled(members: Sequence[PooledJob]) -> tuple[Signals, JobPolicy]:
    """Return one job that stands for all: its seconds of work are theirs, its age target is their smallest.

    What waits is counted in items of the mean service time, and less for a job whose age target is larger.
    """
    target = min(member.age_target for member in members)
    begun = math.fsum(member.begun for member in members)
    weights = [member.begun / begun if begun > 0 else 1 / len(members) for member in members]
    times = [member.service_time for member in members]
    mean = math.fsum(weight * time for weight, time in zip(weights, times, strict=True))
    square = math.fsum(
        weight * (1 + member.signals.service_variation) * member.service_time**2
        for weight, member in zip(weights, members, strict=True)
    )
    in_items = [time / mean for time in times]
    urgent = [part * target / member.age_target for part, member in zip(in_items, members, strict=True)]
    rates = [member.signals.arrival_rate for member in members]
    rate = math.fsum(rates)

    def total(parts: Sequence[float], values: Sequence[float]) -> float:
        return math.fsum(part * value for part, value in zip(parts, values, strict=True))

    variation = total(rates, [member.signals.arrival_variation for member in members])
    signals = Signals(
        waiting=math.ceil(total(urgent, [member.waiting for member in members]) - 1e-9),
        leased=sum(member.signals.leased for member in members),
        due_soon=math.ceil(total(urgent, [member.signals.due_soon for member in members]) - 1e-9),
        oldest_age=max(member.signals.oldest_age * target / member.age_target for member in members),
        arrival_rate=total(in_items, rates),
        arrival_trend=total(in_items, [member.signals.arrival_trend for member in members]),
        arrival_error=math.sqrt(
            math.fsum(
                (part * member.signals.arrival_error) ** 2
                for part, member in zip(in_items, members, strict=True)
            )
        ),
        arrival_variation=variation / rate if rate > 0 else 1.0,
        service_time=mean,
        service_variation=max(0.0, square / mean**2 - 1),
        ready=sum(member.signals.ready for member in members),
        requested=sum(member.signals.requested for member in members),
        coming=math.fsum(member.signals.coming or 0.0 for member in members),
    )
    confidence = max(member.policy.confidence for member in members)
    return signals, JobPolicy(age_target=target, service_time=mean, confidence=confidence)


def side_by_side(members: Sequence[PooledJob], spin_up: float) -> int:
    """Return how many workers all jobs take next to each other, since workers fetch from them in turns.

    Once the workers can work that are asked for now, each job has busy workers, and items that wait. While
    all that waits of one job is begun, no more items of each other job are; but these keep their workers
    busy, and the items of the other job that have just come are begun before the older ones of the one job.
    All times are taken as exponential.
    """
    lines = [_Line.of(member, spin_up) for member in members]
    seconds = math.fsum(
        # less what the present runs still take
        (member.signals.coming or 0.0) * spin_up - (member.signals.leased - line.kept) * line.time
        for member, line in zip(members, lines, strict=True)
    )
    begun = _begun_in_turns(lines, seconds) if seconds > 0 else 0.0
    lines = [line._replace(items=max(0.0, line.items - begun)) for line in lines]
    workers = math.fsum(line.busy for line in lines)
    for own in lines:
        if own.items > 0:
            others = (line.beside(own.items, own.left) for line in lines if line is not own)
            workers = max(workers, own.items * own.time / own.left + math.fsum(others))
    return math.ceil(workers - 1e-9)


def _begun_in_turns(lines: Sequence[_Line], seconds: float) -> float:
    """Return how many items of each job, or all that it has, so many seconds of workers begin."""
    begun, time = 0.0, math.fsum(line.time for line in lines)
    for line in sorted(lines, key=lambda line: line.items):
        if (work := (line.items - begun) * time) >= seconds:
            return begun + seconds / time
        begun, seconds, time = line.items, seconds - work, time - line.time
    return begun


class _Line(NamedTuple):
    """A job, once the workers can work that are asked for now."""

    time: float
    rate: float
    #: How many of the runs of now still last, how many workers are busy on average, how many items wait,
    #: and within which time (s) all these are to be begun.
    kept: float
    busy: float
    items: float
    left: float

    @classmethod
    def of(cls, member: PooledJob, spin_up: float) -> _Line:
        """Look ahead. The number of busy workers tends to rate x time, by the part of runs that end."""
        signals, time = member.signals, member.service_time
        still = math.exp(-spin_up / time)
        return cls(
            time=time,
            rate=signals.arrival_rate,
            kept=signals.leased * still,
            busy=signals.leased * still + signals.arrival_rate * time * (1 - still),
            items=member.waiting + signals.due_soon + signals.arrival_rate * spin_up,
            left=time_left(member.age_target, signals.oldest_age, spin_up),
        )

    def beside(self, items: float, within: float) -> float:
        """Return how many workers it takes on average while so many items of another job are begun."""
        still = self.time / within * (1 - math.exp(-within / self.time))
        begun = min(self.items + self.rate * within, items)
        return self.busy * still + begun * self.time / within * (1 - still)
