"""The autoscaler on simulated loads: the target is kept, with few workers and few requests.

`python -m tests.autoscale.simulation` prints the same for any load and rule.
"""

from __future__ import annotations

import numpy as np
import pytest

from leasequeue.autoscale import TierPolicy
from tests.autoscale.simulation.judge import ALL, OURS, RULES, compare, fewest
from tests.autoscale.simulation.load import Items, Load
from tests.autoscale.simulation.loads import one_job
from tests.autoscale.simulation.ours import Ours
from tests.autoscale.simulation.simulate import Outcome, simulate

#: What is wished: the share of items within the target, the multiple of the fewest worker-seconds, and how
#: often the requested units change per hour.
SHARE, RATIO, REQUESTS = 0.99, 1.2, 60
#: Where that is missed, what is reached. It weighs more in these short loads than in those of the benchmark.
MISSED: dict[str, tuple[float, float, float]] = {
    "a new queue": (0.98, RATIO, REQUESTS),  # its first run has to end until its run time is known
    "jobs of 1 ms": (0.97, 1.4, REQUESTS),  # the target is one pass: what came before the second is late
    "pre-emption": (0.97, 1.25, REQUESTS),  # a tier that vanishes is waited for, and then covered for a while
    "slow spin-up": (SHARE, 1.25, REQUESTS),  # a trend over so long a time is a guess
    "late reports": (SHARE, 1.25, REQUESTS),  # what comes after a jump is to be begun within half a minute
    "a short target": (SHARE, 1.25, REQUESTS),  # it is shorter than a spin-up
}
#: The same of the loads of the benchmark.
MISSED_LONG: dict[str, tuple[float, float, float]] = {
    "bursts": (SHARE, 1.25, REQUESTS),
    "slow spin-up": (0.98, 1.3, REQUESTS),
    "clumps": (SHARE, 1.35, REQUESTS),
}
#: These take longer, and are looked at with the long tests.
SLOW = {
    *("down and up", "a shared database", "one an hour", "a batch a night", "small and large"),
    "a long target",
}
#: The fewest worker-seconds of the short loads: what `judge.fewest` finds in a minute.
FEWEST = {
    "steady, small": 3_850,
    "steady, large": 204_450,
    "a new queue": 36_060,
    "jobs of 1 ms": 21_380,
    "jobs of 10 min": 319_700,
    "jobs of 1 h": 157_254,
    "unannounced jump": 56_290,
    "bursts": 39_210,
    "scheduled bursts": 90_280,
    "a day": 154_937,
    "slow spin-up": 277_141,
    "pre-emption": 214_200,
    "feeding queues": 120_303,
    "several jobs": 53_015,
    "100,000 at once": 1_904_310,
    "one item": 330,
    "down and up": 134_057,
    "saw-tooth": 85_030,
    "two days": 66_301,
    "weekend": 13_259,
    "heavy tail": 50_081,
    "slow hours": 29_164,
    "a shared database": 78_880,
    "late reports": 43_470,
    "uneven spin-up": 60_861,
    "one an hour": 630,
    "a batch a night": 167_770,
    "a deploy": 142_800,
    "a slow leak": 61_472,
    "small and large": 42_880,
    "clumps": 33_371,
    "a long target": 119_493,
    "a short target": 31_100,
}
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in ALL]


@pytest.mark.parametrize("name", NAMES)
def test_the_target_is_kept_with_few_workers_and_few_requests(name: str) -> None:
    load = ALL[name](short=True)
    outcome = simulate(load, RULES[OURS](load))
    share, ratio, requests = MISSED.get(name, (SHARE, RATIO, REQUESTS))
    assert outcome.within() >= share
    assert outcome.worker_seconds <= ratio * FEWEST[name]
    assert outcome.requests_per_hour() <= requests


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
def test_the_fewest_workers_of_the_short_loads_are_those_that_hindsight_finds(name: str) -> None:
    _, least = fewest(ALL[name](short=True))
    assert FEWEST[name] == pytest.approx(least, rel=0.001)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ALL)
def test_the_target_is_kept_with_few_workers_on_the_loads_of_the_benchmark(name: str) -> None:
    ours, _ = compare(ALL[name](short=False), (OURS,))
    share, ratio, requests = MISSED_LONG.get(name, (SHARE, RATIO, REQUESTS))
    assert ours.outcome.within() >= share
    assert ours.ratio <= ratio
    assert ours.outcome.requests_per_hour() <= requests


# ------------------------------------------------------------- bursts

#: A burst: how many items, and how long each runs (s).
COUNT, SECONDS = 3_600, 5.0
SPIN_UP = 30.0
#: How many times the workers that are needed are asked for at most: 1.1 of any burst up to a minute.
FACTOR = 1.5


def burst(length: float, phase: float, target: float) -> Outcome:
    """Simulate a burst, whose items come so many seconds long, so many seconds after a pass."""
    begin = 60.0 + phase
    items = Items(
        arrivals=begin + np.arange(COUNT) / COUNT * length,
        seconds=np.full(COUNT, SECONDS),
    )
    tier = TierPolicy(name="units", max_units=100_000, spin_up=SPIN_UP, slow_down=300.0)
    policy = one_job(target, tier)
    end = begin + length + target + 2 * SPIN_UP
    return simulate(Load(name="", jobs={"job": items}, policy=policy, end=end, jumps=(begin,)), Ours())


def needed(target: float) -> float:
    """Return how many workers begin the items in time, if they are asked for one pass after these came."""
    return COUNT * SECONDS / (target - SPIN_UP - Ours.every)


@pytest.mark.parametrize("length", [0, 2, 5, 10, 12, 15, 20, 30, 45, 60])
@pytest.mark.parametrize(
    "phases",
    [
        pytest.param((0.0, 9.9), id="at a pass"),
        pytest.param((1.5, 3.0, 4.5, 6.0, 7.5, 9.0), id="between", marks=pytest.mark.long),
    ],
)
def test_a_burst_gets_the_workers_that_it_needs_however_its_items_lie_between_passes(
    length: float, phases: tuple[float, ...]
) -> None:
    for phase in phases:
        outcome = burst(length, phase, 300.0)
        assert outcome.ready.max() <= FACTOR * needed(300.0), phase
        assert outcome.within() == 1.0, phase


@pytest.mark.parametrize("target", [120.0, 900.0, 3_600.0])
def test_the_same_holds_for_other_targets(target: float) -> None:
    for length in (12, 30):
        outcome = burst(length, 5.0, target)
        assert outcome.ready.max() <= FACTOR * needed(target)
        assert outcome.within() == 1.0
