"""Loads on which the rule was not tuned: a description of each as data, and what makes loads of them.

They were written when the rule was there, and measured before it was changed again. The page about the
autoscaler in the documentation has both figures.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from leasequeue.autoscale import DeploymentPolicy, JobPolicy, Policy, TierPolicy
from tests.autoscale.simulation.load import Items, Load, along, run_times
from tests.autoscale.simulation.loads import HOUR, TIER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.autoscale.simulation.load import Times

    #: A line through points: an hour, and a value. Two points of one hour are a step.
    Points = tuple[tuple[float, float], ...]

#: The rate is the same for so many seconds.
GRAIN = 10.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one job."""

    #: Items per second; or how many come at once, at which hours.
    rate: Points = ()
    batches: Points = ()
    #: Whether the queue's schedule names the batches beforehand.
    scheduled: bool = False
    #: How many items come at once on average (geometric).
    clump: float = 1.0
    #: How long an item runs (s), its coefficient of variation, and whether it is lognormal, not gamma.
    seconds: Points = ((0.0, 5.0),)
    spread: float = 1.0
    lognormal: bool = False
    #: With so many busy workers, a run takes twice as long.
    crowd: float = inf
    target: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Described:
    """One load: its jobs, on one deployment, and what the platform does."""

    hours: float
    #: The hours that are simulated in tests.
    short: tuple[float, float]
    jobs: Mapping[str, Work]
    tier: TierPolicy = TIER
    #: At which hours a deploy stops all units and starts others.
    restarts: tuple[float, ...] = ()
    #: As in `Load`.
    spin_up_spread: float = 0.0
    heartbeat: float = 0.0


def _sine(hours: float, low: float, high: float, shift: float = 0.0, period: float = 24.0) -> Points:
    """Return a curve that is lowest at the hour `shift`, and again each `period`."""
    at = np.arange(0.0, hours + 0.01, period / 96)
    its = low + (high - low) * (1 - np.cos(2 * np.pi * (at - shift) / period)) / 2
    return tuple(zip(at.tolist(), its.tolist(), strict=True))


def _saw(hours: float, tooth: float, low: float, high: float) -> Points:
    starts = np.arange(0.0, hours, tooth).tolist()
    return tuple(point for at in starts for point in ((at, low), (at + tooth, high)))


DESCRIBED: Mapping[str, Described] = {
    "down and up": Described(
        hours=4,
        short=(0.75, 2.25),
        jobs={"job": Work(rate=((0, 10), (1, 10), (1, 2), (2, 2), (2, 10), (3, 10), (3, 2), (4, 2)))},
    ),
    "saw-tooth": Described(hours=4, short=(0, 1), jobs={"job": Work(rate=_saw(4, 2 / 3, 1, 9))}),
    "two days": Described(
        hours=24,
        short=(5.5, 6.5),
        jobs={
            "noon": Work(rate=_sine(24, 0.5, 6), seconds=((0, 2),)),
            "midnight": Work(rate=_sine(24, 0.2, 2, shift=12), seconds=((0, 10),)),
        },
    ),
    "weekend": Described(
        hours=48,
        short=(39.5, 40.5),
        jobs={
            "job": Work(
                rate=((0, 0.2), (4, 2), (8, 0.2), (8, 0.005), (40, 0.005), (40, 0.2), (44, 2), (48, 0.2)),
                seconds=((0, 20),),
            )
        },
    ),
    "heavy tail": Described(
        hours=4,
        short=(0, 0.5),
        jobs={"job": Work(rate=((0, 3),), seconds=((0, 10),), spread=2, lognormal=True)},
    ),
    "slow hours": Described(
        hours=8,
        short=(1.5, 2.5),
        jobs={"job": Work(rate=((0, 3),), seconds=((0, 2), (2, 2), (3, 8), (5, 8), (6, 2)))},
    ),
    "a shared database": Described(
        hours=4,
        short=(0.75, 1.75),
        jobs={"job": Work(rate=((0, 1), (2, 6), (4, 1)), seconds=((0, 4),), crowd=60)},
    ),
    "late reports": Described(
        hours=3,
        short=(0.75, 1.25),
        jobs={"job": Work(rate=((0, 2), (1, 2), (1, 10), (2, 10), (2, 2)), seconds=((0, 4),), target=30)},
        heartbeat=10,
    ),
    "uneven spin-up": Described(
        hours=4,
        short=(0.25, 1.25),
        jobs={"job": Work(rate=((0, 2), (1, 2), (1, 8), (2, 8), (4, 2)))},
        tier=replace(TIER, spin_up=60.0),
        spin_up_spread=0.5,
    ),
    "one an hour": Described(
        hours=48, short=(0, 2), jobs={"job": Work(rate=((0, 1 / 3600),), seconds=((0, 20),))}
    ),
    "a batch a night": Described(
        hours=30,
        short=(1.5, 2.5),
        jobs={
            "night": Work(
                batches=((2, 10_000), (26, 10_000)), scheduled=True, seconds=((0, 10),), target=600
            ),
            "day": Work(rate=((0, 1),), seconds=((0, 2),)),
        },
    ),
    "a deploy": Described(
        hours=4,
        short=(0.5, 1.5),
        jobs={"job": Work(rate=((0, 4),), seconds=((0, 10),))},
        restarts=(1, 2.5),
    ),
    "a slow leak": Described(
        hours=8, short=(3, 4), jobs={"job": Work(rate=((0, 10), (8, 0.5)), seconds=((0, 3),))}
    ),
    "small and large": Described(
        hours=3,
        short=(0, 0.5),
        jobs={
            **{f"small {n}": Work(rate=((0, 1 / 240),)) for n in range(12)},
            "large": Work(rate=((0, 6),), seconds=((0, 4),)),
        },
    ),
    "clumps": Described(
        hours=4, short=(0, 0.75), jobs={"job": Work(rate=((0, 4),), clump=20, seconds=((0, 3),))}
    ),
    "a long target": Described(
        hours=8,
        short=(6.5, 8),
        jobs={"job": Work(rate=((0, 0.5), (4, 4), (8, 0.5)), seconds=((0, 20),), target=900)},
        tier=replace(TIER, spin_up=120.0),
    ),
    "a short target": Described(
        hours=4,
        short=(0.5, 1),
        jobs={"job": Work(rate=_sine(4, 5, 40, period=2), seconds=((0, 0.5),), target=15)},
        tier=replace(TIER, spin_up=20.0),
    ),
}


def load_of(described: Described, *, short: bool, seed: int = 0) -> Load:
    """Return the load that is described, or the part of it that tests simulate."""
    first, last = (HOUR * hour for hour in (described.short if short else (0.0, described.hours)))
    rng = np.random.default_rng([seed, 17])
    jobs = {name: _items(work, rng, first, last) for name, work in described.jobs.items()}
    steps = [
        at
        for work in described.jobs.values()
        for at in (*_steps(work.rate), *(() if work.scheduled else (hour for hour, _ in work.batches)))
    ]
    jumps = sorted({at * HOUR - first for at in (*steps, *described.restarts)})
    deployment = DeploymentPolicy(name="all", jobs=tuple(described.jobs), tiers=(described.tier,))
    return Load(
        name="",
        jobs=jobs,
        policy=Policy(
            jobs={name: JobPolicy(age_target=work.target) for name, work in described.jobs.items()},
            deployments={"all": deployment},
        ),
        end=last - first,
        jumps=(0.0, *(at for at in jumps if 0 < at < last - first)),
        restarts=tuple(at * HOUR - first for at in described.restarts if first < at * HOUR < last),
        spin_up_spread=described.spin_up_spread,
        heartbeat=described.heartbeat,
    )


def _steps(points: Points) -> list[float]:
    """Return the hours of steps upward: nothing has announced them."""
    return [
        after[0]
        for before, after in itertools.pairwise(points)
        if before[0] == after[0] and after[1] > before[1]
    ]


def _value(points: Points, hours: Times) -> Times:
    at, its = np.array(points).T
    return np.asarray(np.interp(hours, at, its), dtype=np.float64)


def _items(work: Work, rng: np.random.Generator, first: float, last: float) -> Items:
    """Return the items of a job from one time to another."""
    found = [np.full(int(count), hour * HOUR) for hour, count in work.batches]
    if work.rate:
        rates = _value(work.rate, np.arange(first, last, GRAIN) / HOUR + 1e-9) / work.clump
        moments = along(rng, rates, GRAIN) + first
        found.append(np.repeat(moments, rng.geometric(1 / work.clump, len(moments))))
    arrivals = np.sort(np.concatenate(found))
    arrivals = arrivals[(arrivals >= first) & (arrivals < last)]
    if work.lognormal:
        sigma = log(1 + work.spread**2) ** 0.5
        parts = rng.lognormal(-(sigma**2) / 2, sigma, len(arrivals))
    else:
        parts = run_times(rng, 1.0, len(arrivals), work.spread)
    seconds = _value(work.seconds, arrivals / HOUR) * parts
    return Items(arrivals=arrivals - first, seconds=seconds, scheduled=work.scheduled, crowd=work.crowd)


HELD_OUT: dict[str, Callable[..., Load]] = {
    name: partial(load_of, described) for name, described in DESCRIBED.items()
}
