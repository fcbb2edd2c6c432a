"""What a simulated load is: the items of its jobs, what is wished, and what the platform does."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from leasequeue.autoscale import Policy

    Times = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Items:
    """The items of one job."""

    #: When they come to wait (s), sorted, and how long each runs (s).
    arrivals: Times
    seconds: Times
    #: How many items are moved as one; `seconds` is of all of them.
    weight: int = 1
    #: Whether the queue's schedule names them beforehand.
    scheduled: bool = False
    #: How many items of other jobs each adds when it ends; and how long those run that others add to this.
    children: Mapping[str, Times] = field(default_factory=dict)
    child_seconds: Times = field(default_factory=lambda: np.zeros(0))
    #: With so many busy workers, a run takes twice as long.
    crowd: float = inf


@dataclass(frozen=True, kw_only=True)
class Load:
    """One load."""

    name: str
    jobs: Mapping[str, Items]
    policy: Policy
    #: For how long it is simulated (s).
    end: float
    #: When more begins to arrive than anything before has announced.
    jumps: tuple[float, ...] = (0.0,)
    #: Whether the queues have done items before, so that their run times are known.
    known_before: bool = True
    #: By deployment and tier: for how long a unit lives on average (s); and when the platform has none.
    lifetimes: Mapping[tuple[str, str], float] = field(default_factory=dict)
    away: Mapping[tuple[str, str], tuple[tuple[float, float], ...]] = field(default_factory=dict)
    #: When all units are stopped, and others started in their place (s).
    restarts: tuple[float, ...] = ()
    #: By which part of it spin-up times are longer or shorter, at random.
    spin_up_spread: float = 0.0
    #: How often each worker says what it did (s); 0: all that they do is known at once.
    heartbeat: float = 0.0

    def spin_up(self, job: str) -> float:
        """Return the spin-up time of the first tier that does a job (s)."""
        deployment = next(one for one in self.policy.deployments.values() if job in one.jobs)
        return deployment.tiers[0].spin_up

    def mean_seconds(self) -> dict[str, float]:
        """Return how long an item of each job runs, the true mean (s)."""
        return {
            name: float(np.mean(np.concatenate([its.seconds, its.child_seconds]))) / its.weight
            for name, its in self.jobs.items()
        }

    def known(self, job: str, arrivals: Times) -> Times:
        """Return from when the waits of items count (s).

        Nothing has workers for an unannounced jump sooner than one spin-up after it. The items that arrive in
        this time are waited for from its end on.
        """
        known = arrivals.copy()
        for jump in self.jumps:
            end = jump + self.spin_up(job)
            known[(arrivals >= jump) & (arrivals < end)] = end
        return known


def at_random(rng: np.random.Generator, rate: float, first: float, last: float) -> Times:
    """Return arrivals at random (Poisson), so many per second."""
    count = rng.poisson(rate * (last - first))
    return np.sort(rng.uniform(first, last, count))


def along(rng: np.random.Generator, rates: Times, every: float) -> Times:
    """Return arrivals at random along a curve: the rate in each interval of so many seconds."""
    counts = rng.poisson(rates * every)
    starts = np.repeat(np.arange(len(rates)) * every, counts)
    return np.sort(starts + rng.uniform(0, every, len(starts)))


def run_times(rng: np.random.Generator, mean: float, count: int, spread: float = 1.0) -> Times:
    """Return run times (s) whose mean and coefficient of variation are given: gamma, or all the same."""
    if not spread:
        return np.full(count, mean)
    shape = 1 / spread**2
    return rng.gamma(shape, mean / shape, count)
