"""Estimates for planning: the table of workers and waits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue import InvalidArgument
from leasequeue.autoscale import estimate


def test_the_fewest_workers_are_marked_with_what_they_keep() -> None:
    rows = estimate(rate=50, service_time=2, age_target=10)
    (fewest,) = (row for row in rows if row.fewest)
    assert fewest.workers == 101
    assert fewest.utilisation == pytest.approx(100 / 101)
    assert fewest.within >= 0.99
    assert fewest.p99_wait <= 10
    assert fewest.clear_in == 0
    too_few = rows[0]
    assert too_few.workers == 100
    assert (too_few.mean_wait, too_few.p99_wait, too_few.within) == (math.inf, math.inf, 0)


def test_the_table_shows_m_m_1_for_one_worker() -> None:
    (row,) = estimate(rate=0.8, service_time=1, age_target=5, workers=[1])
    assert row.mean_wait == pytest.approx(4)
    assert row.within == pytest.approx(1 - 0.8 * math.exp(-1))
    assert row.p99_wait == pytest.approx(5 * math.log(80))


@pytest.mark.seed("RWQ-B14")
def test_a_backlog_is_begun_within_the_target_once_the_workers_work() -> None:
    rows = estimate(rate=0, service_time=30, age_target=60, backlog=100_000)
    (fewest,) = (row for row in rows if row.fewest)
    assert fewest.workers == 50_000
    assert fewest.clear_in == pytest.approx(30 + 60)
    long = estimate(rate=0, service_time=3600, age_target=60, backlog=10)
    assert [row.workers for row in long if row.fewest] == [10]


def test_a_backlog_and_what_arrives_share_the_workers() -> None:
    (row,) = estimate(rate=50, service_time=2, age_target=10, backlog=10_000, spin_up=20, workers=[300])
    assert row.clear_in == pytest.approx(20 + 11_000 * 2 / 200)
    (row,) = estimate(rate=50, service_time=2, age_target=10, backlog=10_000, workers=[100])
    assert row.clear_in == math.inf


def test_nothing_to_do_is_an_estimate_too() -> None:
    first, *_ = estimate(rate=0, service_time=0, age_target=0)
    assert first.fewest
    assert (first.workers, first.utilisation, first.mean_wait, first.within) == (0, 0, 0, 1)
    (none,) = estimate(rate=1, service_time=1, age_target=1, backlog=1, workers=[0])
    assert (none.utilisation, none.mean_wait, none.clear_in, none.within) == (math.inf, math.inf, math.inf, 0)


@given(
    rate=st.floats(0, 1_000),
    service_time=st.floats(0, 10),
    age_target=st.floats(0, 3600),
    backlog=st.integers(0, 10**9),
    spin_up=st.floats(0, 600),
    variation=st.floats(0, 10),
)
def test_more_workers_never_wait_longer(
    *, rate: float, service_time: float, age_target: float, backlog: int, spin_up: float, variation: float
) -> None:
    rows = estimate(
        rate=rate,
        service_time=service_time,
        age_target=age_target,
        backlog=backlog,
        spin_up=spin_up,
        service_variation=variation,
    )
    assert sum(row.fewest for row in rows) == 1
    for fewer, more in itertools.pairwise(rows):
        assert fewer.workers < more.workers
        assert fewer.mean_wait >= more.mean_wait >= 0
        assert fewer.p99_wait >= more.p99_wait >= 0
        assert 0 <= fewer.within <= more.within + 1e-9 <= 1 + 2e-9
        assert fewer.clear_in >= more.clear_in >= 0


@pytest.mark.seed("RWQ-B15")
@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": -1},
        {"rate": math.inf},
        {"service_time": math.nan},
        {"age_target": -0.1},
        {"backlog": -1},
        {"spin_up": math.inf},
        {"confidence": 1},
        {"workers": [3, -1]},
    ],
)
def test_a_figure_out_of_its_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        estimate(**{"rate": 1, "service_time": 1, "age_target": 1, **wrong})


def test_what_arrives_while_workers_start_is_part_of_the_backlog() -> None:
    rows = estimate(rate=10, service_time=1, age_target=10, backlog=100, spin_up=20)
    assert [row.workers for row in rows if row.fewest] == [30]
