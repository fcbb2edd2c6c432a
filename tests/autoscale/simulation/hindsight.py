"""The fewest workers by hindsight: what a rule could have asked for that knew all items.

The work of an item can be done from when it comes to wait (or from one spin-up after an unannounced jump:
`Load.known`), and one worker that begins it within the target ends it by then plus its run time. The work
done by a time so lies between two curves. Of all ways between them, the *taut string* changes its slope
least: it has the lowest peaks that keep all deadlines, and it spreads what can wait (the schedule of Yao,
Demers and Shenker 1995, for deadlines in the order of arrival). Its slope, rounded up to whole units, is how
many workers are needed, if they start at once. As a rule may scale in only after `slow_down`, so must
hindsight: it keeps the largest of this time.

This takes work for a liquid, so it can be too few. It is simulated: where items are late, units are added,
until 99 % of the items begin within the target. The same is done with other beginnings: the slope times a
factor; as few as possible as late as possible (`_lazy`), which is cheaper where units stay anyway; what runs
if all items begin at once, or all late, which is cheaper where runs are long; a constant number. The cheapest
of these that keeps the target is taken. No real rule can do the same: it neither knows the items, nor do its
workers start at once.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from tests.autoscale.simulation.simulate import Outcome, World, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.autoscale.simulation.load import Load, Times

#: The time between two changes (s), and the share of items that must begin within the target.
STEP, SHARE = 10.0, 0.99
#: How often units are added, or a factor is halved, until the target is kept.
TRIES, HALVINGS = 40, 7
#: So many steps ahead are looked at when units are asked for as late as possible.
AHEAD = (10, 30, 90)


class Schedule:
    """A rule that follows given units."""

    every, first = STEP, 0.0

    def __init__(self, units: Mapping[str, Times]) -> None:
        self._units = units

    def decide(self, world: World, now: float) -> Mapping[tuple[str, int], int]:
        """Return the units of this time."""
        return {
            (name, 0): int(its[min(int(now / STEP), len(its) - 1)])
            for name, its in self._units.items()
            if name in world.pools
        }


def hindsight(load: Load) -> Outcome:
    """Return what comes of a load with the fewest workers by hindsight."""
    free = _without_spin_up(load)
    units: dict[str, Times] = {}
    for name in load.policy.deployments:  # those that feed others come first
        units = {**units, name: _Search(load, free, name, units).cheapest()}
    return replace(simulate(free, Schedule(units)), load=load)


def _without_spin_up(load: Load) -> Load:
    """Return the load on one tier whose units start at once, as many as are wished."""
    deployments = {
        name: replace(
            one, tiers=(replace(one.tiers[0], min_units=0, max_units=10**9, spin_up=0.0),), steady_share=0.0
        )
        for name, one in load.policy.deployments.items()
    }
    policy = replace(load.policy, deployments=deployments)
    return replace(load, policy=policy, lifetimes={}, away={}, restarts=(), heartbeat=0.0)


class _Search:
    """A search for the cheapest units of one deployment over time, given those of the ones that feed it."""

    def __init__(self, load: Load, free: Load, name: str, before: Mapping[str, Times]) -> None:
        self._load = load
        self._free = free
        self._name = name
        self._before = before
        self._tier = load.policy.deployments[name].tiers[0]
        self._jobs = load.policy.deployments[name].jobs
        self._cells = int(self._tier.slow_down / STEP)
        self._least = inf
        self._best: Times | None = None

    def cheapest(self) -> Times:
        """Return the cheapest units that keep the target."""
        came = simulate(self._free, Schedule(self._before)).came if self._before else {}
        curves = _curves(self._load, self._jobs, came)
        lower, upper = (curve / self._tier.workers_per_unit for curve in curves)
        steps = int(self._load.end / STEP) + 1
        slope = np.diff(taut_string(lower, upper))[:steps] / STEP
        foreseen = _foreseen(self._load, self._jobs, upper)
        for ahead in AHEAD:
            self._repair(_lazy(lower, upper, foreseen, self._cells, ahead)[:steps])
        for share in (0.0, 0.9):
            self._repair(_running(self._load, self._jobs, came, share)[:steps] / self._tier.workers_per_unit)
        self._repair(_whole(slope))
        self._scale(slope)
        self._hold(slope)
        assert self._best is not None
        return self._best

    def _try(self, units: Times) -> tuple[float, Outcome] | None:
        """Return the share of items within the target; None: these units are not cheaper than the best."""
        if 0.0 in self._load.jumps:
            units[: int(self._tier.spin_up / STEP)] = 0.0  # nothing was known before the load began
        if np.sum(units[:-1]) * STEP * self._tier.workers_per_unit >= self._least:
            return None
        schedule = Schedule({**self._before, self._name: units})
        outcome = replace(simulate(self._free, schedule), load=self._load)
        cost = outcome.pools[self._name]
        share = outcome.within(self._jobs)
        if share >= SHARE and cost < self._least:
            self._least, self._best = cost, units
        return share, outcome

    def _repair(self, units: Times) -> None:
        """Add units where items are late, until the target is kept."""
        units = _whole(units)
        for _ in range(TRIES):
            tried = self._try(_window(units, self._cells))
            if tried is None or tried[0] >= SHARE:
                return
            more = np.zeros(len(units) + 1)
            for job in self._jobs:
                known = self._load.known(job, tried[1].came[job])
                target = self._load.policy.jobs[job].age_target
                late = known[tried[1].begun[job] - known > target]
                first = np.minimum((late / STEP).astype(int), len(units) - 1)
                last = np.minimum(((late + target) / STEP).astype(int) + 1, len(units))
                np.add.at(more, first, 1)
                np.add.at(more, last, -1)
            units += np.where(np.cumsum(more)[:-1] > 0, 1 + np.floor(units * 0.02), 0)

    def _scale(self, slope: Times) -> None:
        """Look for the smallest factor of the slope that keeps the target."""
        low, high = 0.5, 4.0
        for _ in range(HALVINGS):
            factor = (low + high) / 2
            tried = self._try(_window(_whole(slope * factor), self._cells))
            low, high = (low, factor) if tried is None or tried[0] >= SHARE else (factor, high)

    def _hold(self, slope: Times) -> None:
        """Look for the smallest constant number of units."""
        low, high = int(np.mean(slope)), int(np.max(slope)) * 2 + 1
        while low < high - 1:
            number = (low + high) // 2
            tried = self._try(np.full(len(slope), float(number)))
            low, high = (low, number) if tried is None or tried[0] >= SHARE else (number, high)


def _whole(units: Times) -> Times:
    return np.ceil(units - 1e-6)


def _window(units: Times, cells: int) -> Times:
    """Return the largest of this and so many cells before."""
    largest = units.copy()
    for shift in range(1, min(cells, len(units) - 1) + 1):
        np.maximum(largest[shift:], units[:-shift], out=largest[shift:])
    return largest


def _foreseen(load: Load, jobs: tuple[str, ...], upper: Times) -> Times:
    """Return up to which work hindsight may look ahead in each step: not beyond an unannounced jump."""
    foreseen = np.full(len(upper), upper[-1])
    for jump in sorted(load.jumps, reverse=True):
        end = int((jump + load.spin_up(jobs[0])) / STEP)
        foreseen[:end] = upper[end]
    return foreseen


def _lazy(lower: Times, upper: Times, foreseen: Times, cells: int, ahead: int) -> Times:
    """Return the fewest units, in each step, that keep the deadlines of so many steps ahead if they stay.

    What they do beyond that, as units are kept for a time, needs not be done later.
    """
    units = np.zeros(len(lower) - 1)
    done = 0.0
    for step in range(len(units)):
        missing = np.minimum(lower[step + 1 : step + 1 + ahead], foreseen[step]) - done
        units[step] = np.ceil(max(0.0, np.max(missing / np.arange(1, len(missing) + 1))) / STEP - 1e-6)
        there = np.max(units[max(0, step - cells) : step + 1])
        done = min(upper[step + 1], done + there * STEP)
    return units


def _running(load: Load, jobs: tuple[str, ...], came: Mapping[str, Times], share: float) -> Times:
    """Return how many items run in each step if each begins when so much of its target has passed."""
    steps = int(load.end / STEP) + 2
    change = np.zeros(steps + 1)
    for job in jobs:
        known, _, seconds = _work(load, job, came)
        first = ((known + share * load.policy.jobs[job].age_target) / STEP).astype(int)
        last = first + np.maximum(1, np.ceil(seconds / STEP)).astype(int)
        np.add.at(change, np.minimum(first, steps), 1)
        np.add.at(change, np.minimum(last, steps), -1)
    return np.cumsum(change)


def _curves(load: Load, jobs: tuple[str, ...], came: Mapping[str, Times]) -> tuple[Times, Times]:
    """Return the work that must, and that can, have been done by the end of each step (s)."""
    known, due, work = (
        np.concatenate(its) for its in zip(*(_work(load, job, came) for job in jobs), strict=True)
    )
    steps = int(max(load.end, due.max(initial=0.0)) / STEP) + 2
    # What is done in a step must be known at its start.
    upper = _done_by(known + STEP, work, steps)
    return np.minimum(_done_by(due, work, steps), upper), upper


def _work(load: Load, job: str, came: Mapping[str, Times]) -> tuple[Times, Times, Times]:
    """Return from when, and until when, the work of each item can be done (s), and how long it takes (s)."""
    items = load.jobs[job]
    arrivals, seconds = items.arrivals, items.seconds
    if len(items.child_seconds):
        added = came[job]
        arrivals = np.sort(added)
        seconds = np.resize(items.child_seconds, len(added))
    known = load.known(job, arrivals)
    return known, known + load.policy.jobs[job].age_target + seconds, seconds


def _done_by(at: Times, work: Times, steps: int) -> Times:
    """Return the sum of the work by the end of each step."""
    cells = np.ceil(at / STEP).astype(int)
    return np.cumsum(np.bincount(np.minimum(cells, steps - 1), work, steps))


def taut_string(lower: Times, upper: Times) -> Times:
    """Return the string that is pulled taut between two curves, from their start to their common end."""
    string = np.zeros(len(upper))
    at, height = 0, upper[0]
    string[0] = height
    while at < len(upper) - 1:
        reach = 256
        while True:
            steps = np.arange(1, min(reach, len(upper) - 1 - at) + 1)
            most = (upper[at + steps] - height) / steps
            least = (lower[at + steps] - height) / steps
            flattest, steepest = np.minimum.accumulate(most), np.maximum.accumulate(least)
            crossed = np.flatnonzero(steepest > flattest + 1e-9)
            if len(crossed) or at + reach >= len(upper) - 1:
                break
            reach *= 4
        if not len(crossed):
            # Nothing is in the way of the straight line to the end.
            touch, slope = len(steps), most[-1]
        elif least[crossed[0]] > flattest[crossed[0]] + 1e-9 and least[crossed[0]] == steepest[crossed[0]]:
            touch = 1 + int(np.flatnonzero(most[: crossed[0] + 1] <= flattest[crossed[0]])[-1])
            slope = flattest[crossed[0]]
        else:
            touch = 1 + int(np.flatnonzero(least[: crossed[0] + 1] >= steepest[crossed[0]])[-1])
            slope = steepest[crossed[0]]
        string[at + 1 : at + touch + 1] = height + slope * steps[:touch]
        at, height = at + touch, height + slope * touch
    return string
