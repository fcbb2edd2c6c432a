"""The simulated workers of one deployment, and the queues that they work off.

A queue is first in, first out. To be fast, a load may move several items as one (`Line.weight`): they
arrive together, and one worker runs them one after the other.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from math import exp, inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasequeue.autoscale import TierPolicy
    from tests.autoscale.simulation.reports import Reports

#: What a worker needs between two runs (s): to complete one item and to lease the next.
BETWEEN = 0.001
#: How soon the items of a worker that was taken away wait again (s): its connections have ended.
NOTICED = 2.0


@dataclass
class Line:
    """The queue of one job: items that arrive at known times, and those that other jobs add."""

    name: str
    arrivals: list[float]
    seconds: list[float]
    weight: int = 1
    #: Whether the arrivals are in the schedule beforehand.
    scheduled: bool = False
    #: With so many busy workers, a run takes twice as long.
    crowd: float = inf
    #: What each worker says of its runs; None: they say it at once, as if they were one.
    reports: Reports | None = None
    #: Called with the number of runs that have ended before, and when one more has ended.
    spawn: Callable[[int, float], None] | None = None
    #: How many of the arrivals have begun.
    position: int = 0
    #: Arrival and seconds: of items that other jobs added, and of those that a dead worker had.
    added: list[tuple[float, float]] = field(default_factory=list)
    front: deque[tuple[float, float]] = field(default_factory=deque)
    #: Of each run: when its item came to wait, and when it began.
    came: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    #: Of the runs that have ended.
    ended: int = 0
    ran_seconds: float = 0.0
    ran_squares: float = 0.0

    def next_at(self) -> float:
        """Return when the next item to begin came, or will come, to wait."""
        own = self.arrivals[self.position] if self.position < len(self.arrivals) else inf
        if not self.added and not self.front:
            return own
        added = self.added[0][0] if self.added else inf
        return min(own, added, self.front[0][0] if self.front else inf)

    def take(self, at: float) -> tuple[float, float]:
        """Take the next item: when it came to wait, and how long it runs."""
        if self.front and self.front[0][0] <= at:
            return self.front.popleft()
        own = self.arrivals[self.position] if self.position < len(self.arrivals) else inf
        if self.added and self.added[0][0] < own:
            return heapq.heappop(self.added)
        self.position += 1
        return own, self.seconds[self.position - 1]

    def waiting(self, now: float) -> int:
        """Return how many items wait."""
        own = bisect_right(self.arrivals, now, lo=self.position) - self.position
        others = sum(at <= now for at, _ in self.added) + sum(at <= now for at, _ in self.front)
        return (own + others) * self.weight

    def due_within(self, now: float, horizon: float) -> int:
        """Return how many scheduled items will come to wait within so many seconds."""
        if not self.scheduled:
            return 0
        first, last = (bisect_right(self.arrivals, at, lo=self.position) for at in (now, now + horizon))
        return (last - first) * self.weight

    def never_begun(self) -> list[float]:
        """Return when the items came to wait that have not begun."""
        return self.arrivals[self.position :] + [at for at, _ in (*self.added, *self.front)]


@dataclass(eq=False)
class Unit:
    """What a back end starts and stops."""

    ready_at: float
    workers: list[int] = field(default_factory=list)


@dataclass
class Tier:
    """The units of one tier."""

    policy: TierPolicy
    #: How long a unit lives on average until the platform takes it away (s).
    lifetime: float = inf
    #: From, to: when the platform takes all units away, and starts none until the end.
    away: tuple[tuple[float, float], ...] = ()
    #: By which part of it spin-up times are longer or shorter.
    spread: float = 0.0
    requested: int = 0
    #: How often the requested number was changed.
    requests: int = 0
    starting: list[Unit] = field(default_factory=list)
    ready: list[Unit] = field(default_factory=list)

    def is_away(self, now: float) -> bool:
        """Whether the platform starts no units."""
        return any(first <= now < last for first, last in self.away)


class Run(NamedTuple):
    """One run of an item, or of several that are moved as one."""

    end: float
    number: int
    worker: int
    line: Line
    came: float
    start: float
    seconds: float


class Pool:
    """The units of a deployment, their workers, and the queues that they serve in turns."""

    def __init__(
        self,
        lines: Sequence[Line],
        tiers: Sequence[Tier],
        lifetime: Callable[[], float],
        restarts: Sequence[float] = (),
    ) -> None:
        self.lines = list(lines)
        self.tiers = list(tiers)
        self._restarts = deque(sorted(restarts))
        #: When units began to be paid for, when they were not any more, and how many workers they had.
        self.paid: list[tuple[float, float, int]] = []
        self._lifetime = lifetime  # random, its mean is 1
        self._free: list[tuple[float, int]] = []  # of each worker: when it is free
        self._free_at: dict[int, float] = {}
        self._gone: set[int] = set()
        self._runs: list[Run] = []
        self._run_of: dict[int, Run] = {}
        self._lost: set[int] = set()
        self._deaths: list[tuple[float, int, Tier, Unit]] = []
        self._numbers = 0
        self._turn = 0

    def advance(self, until: float) -> None:
        """Begin all items whose turn comes before a time, and end those that end by then."""
        free, gone, number = self._free, self._gone, self._numbers
        only = self.lines[0]
        several = len(self.lines) > 1
        while free:
            free_at, worker = free[0]
            if worker in gone:
                heapq.heappop(free)
                gone.remove(worker)
                continue
            line = self._whose_turn(free_at) if several else only
            start = max(free_at, line.next_at())
            if start >= until:
                break
            came, seconds = line.take(start)
            if line.crowd < inf:
                self._end_runs(start)
                seconds *= 1 + len(self._runs) / line.crowd
            end = start + seconds + BETWEEN
            number += 1
            run = Run(end, number, worker, line, came, start, seconds)
            heapq.heapreplace(free, (end, worker))
            heapq.heappush(self._runs, run)
            self._free_at[worker] = end
            self._run_of[worker] = run
            line.came.append(came)
            line.begun.append(start)
        self._numbers = number
        self._end_runs(until)

    def _whose_turn(self, free_at: float) -> Line:
        """Return the queue from which a worker takes its next item: they take turns."""
        heads = [line.next_at() for line in self.lines]
        for step in range(1, len(heads) + 1):
            number = (self._turn + step) % len(heads)
            if heads[number] <= free_at:
                self._turn = number
                return self.lines[number]
        return self.lines[heads.index(min(heads))]

    def _end_runs(self, now: float) -> None:
        runs = self._runs
        while runs and runs[0].end <= now:
            run = heapq.heappop(runs)
            if run.number in self._lost:
                self._lost.remove(run.number)
                continue
            line = run.line
            if line.spawn is not None:
                line.spawn(line.ended, run.end)
            line.ended += 1
            line.ran_seconds += run.seconds
            line.ran_squares += run.seconds**2 / line.weight
            if line.reports is not None:
                line.reports.ended.append(run)

    def running(self, line: Line) -> list[Run]:
        """Return the runs of a queue's items."""
        return [run for run in self._runs if run.line is line and run.number not in self._lost]

    def workers(self) -> Iterable[int]:
        """Return the numbers of the workers."""
        return self._free_at

    # ------------------------------------------------------------------------------------------- units

    def next_event(self, now: float) -> float:
        """Return when a unit becomes ready, or is taken away, next."""
        ready = [unit.ready_at for tier in self.tiers for unit in tier.starting[:1] if unit.ready_at > now]
        away = [at for tier in self.tiers for period in tier.away for at in period if at > now]
        deploys = [at for at in self._restarts if at > now]
        return min([inf, *ready, *away, *deploys, *(death[0] for death in self._deaths[:1])])

    def happen(self, now: float) -> None:
        """Let the units become ready, and be taken away, whose time it is."""
        while self._deaths and self._deaths[0][0] <= now:
            _, _, tier, unit = heapq.heappop(self._deaths)
            if unit in tier.ready:
                self._kill(tier, [unit], now)
        while self._restarts and self._restarts[0] <= now:
            self._restarts.popleft()
            for tier in self.tiers:
                for unit in tier.ready:
                    self._leave(unit, self._ended(unit, now))
                tier.ready.clear()
                self._start(tier, now)
        for tier in self.tiers:
            if tier.is_away(now):
                self._kill(tier, tier.ready, now)
                continue
            started = sum(unit.ready_at <= now for unit in tier.starting)
            for unit in tier.starting[:started]:
                self._enter(tier, unit, now)
            del tier.starting[:started]

    def _enter(self, tier: Tier, unit: Unit, now: float) -> None:
        unit.ready_at = now
        tier.ready.append(unit)
        for _ in range(tier.policy.workers_per_unit):
            self._numbers += 1
            unit.workers.append(self._numbers)
            self._free_at[self._numbers] = now
            heapq.heappush(self._free, (now, self._numbers))
        if tier.lifetime < inf:
            self._numbers += 1
            dies = now + tier.lifetime * self._lifetime()
            heapq.heappush(self._deaths, (dies, self._numbers, tier, unit))

    def request(self, number: int, units: int, now: float) -> None:
        """Ask a tier for so many units. Those that are stopped end their items first."""
        tier = self.tiers[number]
        units = max(tier.policy.min_units, min(tier.policy.max_units, units))
        if units != tier.requested:
            tier.requested = units
            tier.requests += 1
        self._start(tier, now)
        surplus = len(tier.starting) + len(tier.ready) - units
        if surplus <= 0:
            return
        cancelled = min(surplus, len(tier.starting))
        del tier.starting[len(tier.starting) - cancelled :]
        surplus -= cancelled
        if surplus:
            ended = {unit: self._ended(unit, now) for unit in tier.ready}
            tier.ready.sort(key=lambda unit: (-ended[unit], unit.ready_at))
            for unit in tier.ready[len(tier.ready) - surplus :]:
                self._leave(unit, ended[unit])
            del tier.ready[len(tier.ready) - surplus :]

    def _ended(self, unit: Unit, now: float) -> float:
        """Return when a unit has ended its items."""
        return max(now, *map(self._free_at.__getitem__, unit.workers))

    def _start(self, tier: Tier, now: float) -> None:
        for _ in range(tier.requested - len(tier.starting) - len(tier.ready)):
            factor = 1.0
            if tier.spread:  # from 1 - spread to 1 + spread, each as likely
                factor += tier.spread * (1 - 2 * exp(-self._lifetime()))
            tier.starting.append(Unit(now + factor * tier.policy.spin_up))
        if tier.spread:
            tier.starting.sort(key=lambda unit: unit.ready_at)

    def _leave(self, unit: Unit, at: float) -> None:
        self.paid.append((unit.ready_at, at, len(unit.workers)))
        self._gone.update(unit.workers)
        for worker in unit.workers:
            del self._free_at[worker]

    def _kill(self, tier: Tier, units: Sequence[Unit], now: float) -> None:
        """Take units away from under their items; the platform starts others in their place."""
        for unit in list(units):
            for worker in unit.workers:
                run = self._run_of.get(worker)
                if run is not None and run.end > now:
                    self._lost.add(run.number)
                    run.line.front.append((now + NOTICED, run.seconds))
            self._leave(unit, now)
            tier.ready.remove(unit)
        self._start(tier, now)

    def workers_ready(self) -> int:
        """Return how many workers there are that are not asked to stop."""
        return sum(len(tier.ready) * tier.policy.workers_per_unit for tier in self.tiers)

    def worker_seconds(self, until: float) -> float:
        """Return for how many seconds workers were there in all, whether they ran items or not."""
        there = [(unit.ready_at, until, len(unit.workers)) for tier in self.tiers for unit in tier.ready]
        return sum(
            (min(last, until) - first) * workers
            for first, last, workers in self.paid + there
            if first < until
        )
