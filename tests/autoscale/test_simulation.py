"""The autoscaler on simulated loads: the target is kept, with few workers and few requests.

`python -m tests.autoscale.simulation` prints the same for any load and rule.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from leasequeue.autoscale import JobPolicy, TierPolicy
from tests.autoscale.simulation.hindsight import hindsight, taut_string
from tests.autoscale.simulation.judge import ALL, INT32, KEDA, OURS, RULES, SEED, compare, fewest
from tests.autoscale.simulation.load import Items, Load
from tests.autoscale.simulation.loads import LOADS, one_job
from tests.autoscale.simulation.ours import Ours
from tests.autoscale.simulation.pool import BETWEEN, NOTICED, Line, Pool, Tier
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
    *("saw-tooth", "two days", "weekend", "heavy tail", "slow hours", "uneven spin-up", "a slow leak"),
    *("a day", "steady, large", "jobs of 1 h", "clumps", "a long target"),
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


@pytest.mark.parametrize(
    "length", [0, 12, 60, *(pytest.param(one, marks=pytest.mark.long) for one in (2, 5, 10, 15, 20, 30, 45))]
)
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


@pytest.mark.parametrize("target", [120.0, 900.0, pytest.param(3_600.0, marks=pytest.mark.long)])
def test_the_same_holds_for_other_targets(target: float) -> None:
    outcome = burst(12, 5.0, target)
    assert outcome.ready.max() <= FACTOR * needed(target)
    assert outcome.within() == 1.0


# ---------------------------------------------------------------------------------------------- the simulator


UNITS = TierPolicy(name="units", max_units=100, spin_up=30.0, slow_down=300.0)


def pool_of(arrivals: list[float], seconds: list[float], tier: TierPolicy = UNITS) -> tuple[Pool, Line, Tier]:
    line, its = Line("job", arrivals, seconds), Tier(tier)
    return Pool([line], [its], lambda: 1.0), line, its


def run(pool: Pool, until: float) -> None:
    """Move the clock from event to event."""
    now = 0.0
    while now < until:
        now = min(pool.next_event(now), until)
        pool.advance(now)
        pool.happen(now)


def test_items_begin_in_order_when_a_worker_is_free() -> None:
    pool, line, _ = pool_of([0.0, 1.0, 2.0, 50.0], [10.0, 3.0, 4.0, 1.0])
    pool.request(0, 2, 0.0)
    run(pool, 100.0)
    expected = [30.0, 30.0, 33.0 + BETWEEN, 50.0]  # two workers, after the spin-up
    assert line.begun == pytest.approx(expected)
    assert (line.ended, line.ran_seconds) == (4, 18.0)


def test_a_unit_that_is_stopped_ends_its_item_and_is_paid_until_then() -> None:
    pool, line, tier = pool_of([0.0, 0.0, 60.0], [100.0, 5.0, 1.0])
    pool.request(0, 2, 0.0)
    run(pool, 50.0)
    pool.request(0, 1, 50.0)  # the idle one stops
    run(pool, 70.0)
    assert line.waiting(70.0) == 1
    pool.request(0, 0, 70.0)
    run(pool, 200.0)
    assert line.ended == 2
    assert tier.requests == 3
    assert pool.worker_seconds(200.0) == pytest.approx((50 - 30) + (130 + BETWEEN - 30))


def test_the_items_of_a_unit_that_is_taken_away_run_again_on_the_next_one() -> None:
    pool, line, tier = pool_of([0.0, 40.0], [20.0, 20.0])
    tier.away = ((45.0, 100.0),)
    pool.request(0, 1, 0.0)
    run(pool, 47.0)
    assert line.waiting(47.0) == 2  # the first one, that ran, waits before the second
    run(pool, 200.0)
    assert line.begun[:2] == [30.0, 100.0]
    assert line.came[1] == 45.0 + NOTICED
    assert line.ended == 2


def test_several_queues_take_turns() -> None:
    lines = [Line(name, [0.0] * 4, [10.0] * 4) for name in ("a", "b")]
    pool = Pool(lines, [Tier(UNITS)], lambda: 1.0)
    pool.request(0, 1, 0.0)
    run(pool, 110.0)
    assert lines[0].begun == pytest.approx([at + 10 for at in lines[1].begun], abs=0.01) or lines[
        1
    ].begun == pytest.approx([at + 10 for at in lines[0].begun], abs=0.01)


@pytest.mark.long
@pytest.mark.seed("RWQ-B14")
def test_the_rules_answer_as_they_are_described() -> None:
    load = LOADS["100,000 at once"](short=False)
    found = {rule: simulate(load, RULES[rule](load)) for rule in (SEED, INT32, KEDA, OURS)}
    assert found[SEED].ready.max() == 50_000  # 100,000 x 30 s in 60 s
    assert found[INT32].ready.max() == 1, "32 bits overflow"
    assert found[KEDA].ready.max() < 50_000  # at most doubled each 15 s
    assert 50_000 <= found[OURS].ready.max() <= 60_000
    assert found[OURS].within() == 1.0


def test_the_taut_string_is_the_shortest_way_between_two_curves() -> None:
    upper = np.array([0.0, 0, 6, 6, 6, 6, 12, 12, 12])
    lower = np.array([0.0, 0, 0, 0, 4, 6, 6, 6, 12])
    string = taut_string(lower, upper)
    assert np.all(lower - 1e-9 <= string)
    assert np.all(string <= upper + 1e-9)
    assert string == pytest.approx([0, 0, 1.5, 3, 4.5, 6, 8, 10, 12])


@pytest.mark.parametrize(("service_time", "most"), [(None, 4), (1.0, 2)], ids=["measured", "given"])
def test_items_do_not_wait_for_the_end_of_a_long_run_that_holds_up_the_only_worker(
    service_time: float | None, most: int
) -> None:
    arrivals = np.arange(0.0, 12_000.0, 10.0)
    seconds = np.full(len(arrivals), 1.0)
    seconds[1_000] = 900.0
    policy = replace(one_job(), jobs={"job": JobPolicy(age_target=60.0, service_time=service_time)})
    load = Load(name="", jobs={"job": Items(arrivals=arrivals, seconds=seconds)}, policy=policy, end=12_000.0)
    outcome = simulate(load, Ours())
    assert outcome.waits("job").max() <= 60 + 30 + 10 + 30  # late, a pass, a start
    assert outcome.ready.max() <= most


@pytest.mark.long
def test_hindsight_needs_two_workers_for_two_items_a_second_of_one_second() -> None:
    arrivals = np.arange(0.0, 1800.0, 0.5)
    items = Items(arrivals=arrivals, seconds=np.full(len(arrivals), 0.99))
    best = hindsight(Load(name="", jobs={"job": items}, policy=one_job(), end=1800.0))
    assert best.within() >= 0.99
    assert best.worker_seconds == pytest.approx(2 * 1770, rel=0.01)


@pytest.mark.long
def test_hindsight_has_no_workers_for_an_unannounced_burst_before_a_spin_up_has_passed() -> None:
    items = Items(arrivals=np.full(1_000, 600.0), seconds=np.full(1_000, 30.0))
    load = Load(name="", jobs={"job": items}, policy=one_job(), end=1800.0, jumps=(600.0,))
    best = hindsight(load)
    assert best.begun["job"].min() >= 630.0
    assert best.within() >= 0.99
    assert 490 <= best.ready.max() <= 500  # two rounds of 30 s begin within 60 s


def test_an_item_that_never_begins_is_late() -> None:
    items = Items(arrivals=np.array([0.0, 10.0]), seconds=np.array([1.0, 1.0]))
    policy = one_job(60.0, TierPolicy(name="none", max_units=0, spin_up=0.0))
    load = Load(name="", jobs={"job": items}, policy=policy, end=100.0)
    outcome = simulate(load, RULES[SEED](load))
    assert outcome.within() == 0.0
    assert outcome.begun["job"].tolist() == [inf, inf]
