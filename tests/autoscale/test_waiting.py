"""The waiting times: published values, a simulated queue, and the edges."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue import InvalidArgument
from leasequeue.autoscale import estimate
from leasequeue.autoscale.waiting import (
    EXACT_LOAD,
    Demand,
    erlang_b,
    erlang_c,
    fewest_workers,
    longer_wait,
    mean_wait,
    wait_of_share,
)

if TYPE_CHECKING:
    from collections.abc import Callable


shares = st.floats(0, 0.999)
loads = st.floats(0.001, 3_000)


def waits_of(
    workers: int, gap: Callable[[], float], service: Callable[[], float], *, items: int
) -> list[float]:
    """Simulate one queue, first in, first out: return how long each item waits."""
    free = [0.0] * workers
    now, waits = 0.0, []
    for _ in range(items):
        now += gap()
        begin = max(now, free[0])
        waits.append(begin - now)
        heapq.heapreplace(free, begin + service())
    return waits


def plain_erlang_b(workers: int, load: float) -> float:
    """Add up all of Erlang's recursion, from no worker on."""
    blocked = 1.0
    for number in range(1, workers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked


@pytest.mark.parametrize(
    ("workers", "load"), [(1, 0.0101), (5, 1.361), (10, 4.461), (20, 12.031), (100, 84.064), (200, 179.74)]
)
def test_the_table_of_erlang_b_for_one_percent(workers: int, load: float) -> None:
    assert erlang_b(workers, load) == pytest.approx(0.01, rel=2e-3)


def test_one_worker_is_m_m_1_and_with_equal_service_times_half_of_it() -> None:
    """M/M/1: rho/(1 - rho) x S; M/D/1, by Pollaczek and Khinchine: half of it."""
    queue = Demand(rate=0.8, service_time=1)
    assert mean_wait(1, Demand(rate=0.8, service_time=1, service_variation=0)) == pytest.approx(2)
    (row,) = estimate(rate=0.8, service_time=1, age_target=5, workers=[1])
    assert row.mean_wait == mean_wait(1, queue) == pytest.approx(4)
    assert 1 - row.within == pytest.approx(longer_wait(1, queue, 5)) == pytest.approx(0.8 * math.exp(-1))
    assert row.p99_wait == pytest.approx(5 * math.log(80))


@pytest.mark.parametrize(("workers", "rate"), [(1, 0.6), (4, 2.8), (10, 7.0)])
def test_a_simulated_queue_waits_as_long_as_the_formulas_say(workers: int, rate: float) -> None:
    numbers = random.Random(workers)
    demand = Demand(rate=rate, service_time=1)
    waits = waits_of(workers, lambda: numbers.expovariate(rate), lambda: numbers.expovariate(1), items=60_000)
    assert fmean(waits) == pytest.approx(mean_wait(workers, demand), rel=0.15)
    for wait in (0.0, 0.5, 2.0):
        simulated = sum(each > wait for each in waits) / len(waits)
        assert simulated == pytest.approx(longer_wait(workers, demand, wait), abs=0.03)


def test_the_fewest_workers_keep_the_target_in_a_simulated_queue_and_one_less_does_not() -> None:
    numbers = random.Random(3)
    demand = Demand(rate=12.0, service_time=1, service_variation=0)
    fewest = fewest_workers(demand, wait=0.5, share=0.99)
    kept = []
    for workers in (fewest - 1, fewest):
        waits = waits_of(workers, lambda: numbers.expovariate(12.0), lambda: 1.0, items=60_000)
        kept.append(sum(each <= 0.5 for each in waits) / len(waits))
    assert kept[0] < 0.99 <= kept[1]


@given(workers=st.integers(0, 4_000), load=loads)
def test_the_short_sum_is_the_whole_sum(workers: int, load: float) -> None:
    assert erlang_b(workers, load) == pytest.approx(plain_erlang_b(workers, load), rel=1e-9, abs=1e-290)


@given(load=loads, spare=st.floats(1.001, 4), wait=st.floats(0, 100), service_time=st.floats(0.001, 3600))
def test_chances_are_chances_and_the_wait_of_a_share_is_the_inverse(
    load: float, spare: float, wait: float, service_time: float
) -> None:
    workers = math.ceil(load * spare)
    demand = Demand(rate=load / service_time, service_time=service_time)
    longer = longer_wait(workers, demand, wait)
    assert 0 <= longer <= erlang_c(workers, demand.load) <= 1
    if longer > 1e-9:
        assert wait_of_share(workers, demand, 1 - longer) == pytest.approx(wait, rel=1e-3, abs=1e-3)


@given(
    rate=st.floats(0.001, 1_000),
    service_time=st.floats(0.001, 100),
    wait=st.floats(0, 100),
    share=shares,
    variation=st.floats(0, 20),
)
def test_the_fewest_are_enough_and_one_less_is_not(
    rate: float, service_time: float, wait: float, share: float, variation: float
) -> None:
    if rate * service_time > 5_000:
        service_time = 5_000 / rate
    demand = Demand(rate=rate, service_time=service_time, service_variation=variation)
    fewest = fewest_workers(demand, wait=wait, share=share)
    assert longer_wait(fewest, demand, wait) <= 1 - share + 1e-9
    assert fewest - 1 <= demand.load or longer_wait(fewest - 1, demand, wait) > 1 - share - 1e-9


def test_the_limit_for_very_many_workers_continues_the_sum() -> None:
    for wait in (0.0, 0.001, 0.01, 1.0):
        below, above = (
            fewest_workers(Demand(rate=EXACT_LOAD * factor, service_time=1), wait=wait, share=0.99)
            for factor in (1, 1 + 1e-9)
        )
        assert abs(above - below) <= 2


def test_more_of_anything_needs_more_workers_up_to_absurd_loads() -> None:
    needed = [
        fewest_workers(Demand(rate=10.0**power, service_time=1), wait=1, share=0.99)
        for power in range(-6, 16)
    ]
    assert all(few <= many for few, many in pairwise(needed))
    assert needed[-1] >= 10**15


def test_no_work_and_too_few_workers_have_an_answer() -> None:
    nothing, something = Demand(rate=0, service_time=1), Demand(rate=2, service_time=1)
    assert fewest_workers(nothing, wait=1, share=0.99) == 0
    assert fewest_workers(Demand(rate=5, service_time=0), wait=0, share=0.99) == 1
    assert longer_wait(1, nothing, 0) == 0
    assert longer_wait(0, nothing, 0) == 1
    assert longer_wait(2, something, 100) == 1
    assert mean_wait(2, something) == wait_of_share(2, something, 0.5) == math.inf
    assert wait_of_share(3, something, 0.1) == 0
    assert wait_of_share(3, something, 1) == math.inf
    assert erlang_b(0, 0) == erlang_c(0, 0) == erlang_c(2, 2) == 1
    assert erlang_b(1, 0) == erlang_c(1, 0) == 0
    assert erlang_b(100_000, 1) == 0
    assert erlang_b(1_000_000, 1e9) == pytest.approx(0.999)


# ------------------------------------------------------------------------------------- estimates for planning


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
