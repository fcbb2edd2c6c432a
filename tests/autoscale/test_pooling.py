"""What jobs need together whose items the same workers fetch in turns."""

from __future__ import annotations

from typing import Any

import pytest

from leasequeue.autoscale import JobPolicy, Signals
from leasequeue.autoscale.pooling import Member, side_by_side


def member(time: float, **seen: Any) -> Member:
    return Member(signals=Signals(**seen), policy=JobPolicy(age_target=60.0), service_time=time)


def test_what_waits_is_begun_before_what_comes_later() -> None:
    """The backlog of a large job is no more work than it does anyway; small jobs are next to none."""
    large = member(4.0, arrival_rate=6.0, leased=26, waiting=180, oldest_age=30.0, coming=26)
    small = [member(5.0, arrival_rate=0.004) for _ in range(12)]
    assert 24 <= side_by_side([large, *small], 30.0) <= 27


def test_items_of_other_jobs_come_between() -> None:
    """600 items of 0.2 s are begun by 2 workers in a minute. 200 of 3 s are meanwhile: these take 10."""
    short = member(0.2, waiting=600)
    long = member(3.0, waiting=200)
    assert side_by_side([short], 0.0) == 2
    assert side_by_side([long], 0.0) == 10
    assert side_by_side([short, long], 0.0) == pytest.approx(12, abs=1)
    # In turns with 20 short ones, no more than 20 of the long ones are.
    few = member(0.2, waiting=20)
    assert side_by_side([few, member(3.0, waiting=20, oldest_age=0.0)], 0.0) <= 2


def test_long_runs_are_busy_for_a_part_of_the_time_only() -> None:
    """Of 20 workers that have a run of 60 s, 20 (1 - 1/e) are busy on average within the next minute."""
    short = member(0.2, waiting=300)
    long = member(60.0, leased=20)
    assert side_by_side([long], 0.0) == 20
    assert side_by_side([short, long], 0.0) == 20
    many = member(0.2, waiting=6_000)
    assert side_by_side([many, long], 0.0) == pytest.approx(6_000 * 0.2 / 60 + 20 * 0.632, abs=1)
