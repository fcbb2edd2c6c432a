"""Jobs that add work for other jobs: in which order they are looked at, and what will arrive from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasequeue.autoscale.model import Signals

#: What arrives within so many seconds may wait, and no more than usual waits.
_MOMENT = 10.0
#: By this part, rates that are measured may differ by chance.
_CHANCE = 0.2
#: A job that begins so many times what arrives works off what has waited.
_CATCHING_UP = 1.5


@dataclass(frozen=True, kw_only=True)
class Feeder:
    """What is known of a job that feeds others, once its own answer is known."""

    #: Its signals, with what will arrive from jobs that feed it.
    signals: Signals
    #: How long one item takes (s), above 0.
    service_time: float
    #: Workers that are ready for it, and those that it is going to have.
    ready: float
    future: float
    #: How long it takes until the latter are there (s).
    spin_up: float

    def present(self) -> float:
        """Return the items per second that it completes at present.

        While more waits than usual, all its workers are busy. Otherwise it completes what arrives, which
        varies less from pass to pass than the number of those that are busy.
        """
        rate, waiting = self.signals.arrival_rate, self.signals.waiting
        busy = self.signals.leased / self.service_time
        if waiting and (busy > _CATCHING_UP * rate or waiting > rate * max(self.service_time, _MOMENT)):
            return busy
        return rate or busy

    def coming(self, spin_up: float, target: float) -> float:
        """Return the items per second that it will complete when workers that are asked for now are ready.

        Args:
            spin_up: After how long these workers are ready (s).
            target: For how long an item may wait for them (s): what comes later than both is not looked at.
        """
        busy = float(self.signals.leased)
        idle = max(0.0, self.ready - busy)
        more = max(0.0, self.future - max(self.ready, busy))

        def within(delay: float) -> float:
            """Return 1 for what comes before the workers are ready, 0 for what comes after the look-ahead."""
            return min(1.0, max(0.0, (spin_up + target - delay) / target if target > 0 else 0.0))

        able = busy + idle * within(self.service_time) + more * within(self.spin_up + self.service_time)
        work = self.signals.waiting + self.signals.due_soon + self.signals.leased
        ahead = spin_up + target
        most = self.signals.arrival_rate + (work / ahead if ahead > 0 else 0.0)
        return min(able / self.service_time, most)


def in_order(children: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names of jobs so that each comes before its children; in a circle, by their names."""
    graph: dict[str, list[str]] = {name: [] for name in sorted(children)}
    for name in graph:
        for child in children[name]:
            if child in graph and child != name:
                graph[child].append(name)
    try:
        return [*TopologicalSorter(graph).static_order()]
    except CycleError:
        return [*graph]


def fed(signals: Signals, feeders: Sequence[tuple[Feeder, float]], spin_up: float, target: float) -> Signals:
    """Return the signals of a job with what will arrive from the jobs that feed it.

    What is measured to arrive contains what they complete at present. Only what they will complete besides
    is added, and what they will complete no longer is left out.

    Args:
        signals: What is measured.
        feeders: The jobs that feed it, and how many items of it one item of theirs adds on average.
        spin_up: After how long workers of the job that are asked for now are ready (s).
        target: Its age target (s).
    """
    if not feeders:
        return signals
    present = sum(average * feeder.present() for feeder, average in feeders)
    coming = sum(average * feeder.coming(spin_up, target) for feeder, average in feeders)
    rise = max(0.0, signals.arrival_rate - present) + coming - signals.arrival_rate
    if abs(rise) <= _CHANCE * signals.arrival_rate:
        return signals
    trend = signals.arrival_trend
    if trend * rise > 0 and spin_up > 0:  # the same change, seen in what arrived
        trend = trend - rise / spin_up if abs(trend) * spin_up > abs(rise) else 0.0
    return replace(signals, arrival_rate=signals.arrival_rate + rise, arrival_trend=trend)
