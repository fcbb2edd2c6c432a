"""Rates of arrivals: they follow jumps, and not chance."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest

from leasequeue.autoscale.arrivals import ArrivalCounts, Count, arrivals, follow
from tests.autoscale.measured_job import Job, arrived

if TYPE_CHECKING:
    from leasequeue.autoscale import Signals


@pytest.mark.parametrize("rate", [0.2, 2, 50, 3_000])
def test_a_steady_rate_is_measured_more_exactly_with_time(rate: float) -> None:
    found = Job().steady(lambda _: rate, 400, Random(rate))
    late = [one.arrival_rate / rate for one in found[200:]]
    assert max(late) < 1 + 0.5 / math.sqrt(rate * 10) + 0.02
    assert min(late) > 1 - 0.5 / math.sqrt(rate * 10) - 0.02
    assert sum(one.arrival_variation for one in found) / 400 == pytest.approx(1, rel=0.25)
    assert sum(one.arrival_trend != 0 for one in found) < 12


@pytest.mark.parametrize(("before", "after"), [(1, 10), (50, 80), (10, 1), (50, 20), (0, 5), (5, 0)])
def test_a_jump_is_followed_in_two_passes(before: float, after: float) -> None:
    job = Job()
    job.steady(lambda _: before, 60, Random(4))
    one, two, *_ = job.steady(lambda _: after, 6, Random(5))
    assert two.arrival_rate == pytest.approx(after, rel=0.3)
    if after > before:
        assert one.arrival_rate == pytest.approx(before, rel=0.2), "one count may be a burst"


def test_a_burst_is_not_taken_for_a_rate() -> None:
    job = Job()
    job.steady(lambda _: 1, 60, Random(4))
    job.waiting += 2_000
    rates = [job.steady(lambda _: 1, 1, Random(at))[0].arrival_rate for at in range(30)]
    assert max(rates) < 1.2
    assert min(rates) > 0.8


def test_a_rate_that_begins_between_two_passes_is_followed_in_the_second() -> None:
    job = Job()
    job.steady(lambda _: 0, 60)
    job.leases += 2
    assert job.measure().arrival_rate < 0.01
    job.leases += 27
    assert job.measure().arrival_rate == 2.7
    # After a single item, so many at once may be a burst.
    other = Job()
    other.steady(lambda _: 0, 60)
    other.leases += 1
    other.measure()
    other.leases += 1_000
    assert other.measure().arrival_rate < 0.01


def test_a_count_that_is_high_next_to_a_very_high_one_confirms_it() -> None:
    """Few items that begin to come: 6 of them are far above nothing, and 3 are above it."""
    job = Job()
    job.steady(lambda _: 0, 60)
    job.leases += 6
    assert job.measure().arrival_rate < 0.01
    job.leases += 3
    assert job.measure().arrival_rate == pytest.approx(0.45)


def test_a_ramp_has_a_trend() -> None:
    job = Job()
    found = job.steady(lambda at: 100 + at * 0.05, 60)
    assert found[-1].arrival_rate == pytest.approx(100 + 600 * 0.05, rel=0.04)
    assert any(0.04 < one.arrival_trend < 0.06 for one in found)


def test_batches_are_a_variation() -> None:
    """20 items at once, at random times: the variance of the counts is 20 times the mean."""
    job, draw = Job(), Random(2)
    found: list[Signals] = []
    for _ in range(300):
        job.leases += 20 * arrived(draw, 5)
        found.append(job.measure())
    assert sum(one.arrival_variation for one in found[30:]) / 270 == pytest.approx(20, rel=0.3)
    assert sum(one.arrival_rate for one in found[30:]) / 270 == pytest.approx(10, rel=0.1)


def test_a_higher_rate_is_believed_as_far_as_it_has_lasted() -> None:
    trial, idle = 200.0, Count(10.0, 0.0)
    counts = ArrivalCounts()
    for _ in range(30):
        counts = follow(counts, idle, trial)
    believed = []
    for _ in range(30):
        counts = follow(counts, Count(10.0, 1_000.0), trial)
        believed.append(arrivals(counts, trial).rate)
    assert believed[0] == 0, "one count may be a burst"
    assert believed[1] == pytest.approx(2_000 / trial), "as if they came in the whole time"
    assert believed == sorted(believed)
    assert believed[18] == pytest.approx(95)
    assert believed[19:] == [pytest.approx(100)] * 11


def test_a_burst_of_several_counts_is_believed_as_if_it_were_spread() -> None:
    trial = 200.0
    counts = ArrivalCounts()
    for items in [0.0] * 30 + [300.0, 2_400.0, 900.0] + [0.0] * 10:
        counts = follow(counts, Count(10.0, items), trial)
        assert arrivals(counts, trial).rate <= 1.5 * 3_600 / trial
    assert arrivals(counts, trial).rate == 0


def test_a_rate_that_returns_to_what_it_was_is_believed_at_once() -> None:
    trial = 200.0
    counts = ArrivalCounts()
    for items in [100.0] * 60 + [20.0] * 30:
        counts = follow(counts, Count(10.0, items), trial)
    assert arrivals(counts, trial).rate == pytest.approx(2)
    assert arrivals(counts, 0.0).rate == pytest.approx(2), "a fall is believed at once"
