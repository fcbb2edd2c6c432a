"""Bursts get the workers that they need, however long they are and wherever they begin between two passes."""

from __future__ import annotations

import numpy as np
import pytest

from leasequeue.autoscale import TierPolicy
from tests.autoscale.simulation.load import Items, Load
from tests.autoscale.simulation.loads import one_job
from tests.autoscale.simulation.ours import Ours
from tests.autoscale.simulation.simulate import Outcome, simulate

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
def test_a_burst_gets_the_workers_that_it_needs_however_its_items_lie_between_passes(length: float) -> None:
    for phase in (0.0, 1.5, 3.0, 4.5, 6.0, 7.5, 9.0, 9.9):
        outcome = burst(length, phase, 300.0)
        assert outcome.ready.max() <= FACTOR * needed(300.0), phase
        assert outcome.within() == 1.0, phase


@pytest.mark.parametrize("target", [120.0, 900.0, 3_600.0])
def test_the_same_holds_for_other_targets(target: float) -> None:
    for length in (12, 30):
        outcome = burst(length, 5.0, target)
        assert outcome.ready.max() <= FACTOR * needed(target)
        assert outcome.within() == 1.0
