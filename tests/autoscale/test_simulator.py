"""The simulator that judges the autoscaler: its queues, its units, the other rules, and hindsight."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from leasequeue.autoscale import DeploymentPolicy, JobPolicy, Policy, TierPolicy
from tests.autoscale.simulation.hindsight import hindsight, taut_string
from tests.autoscale.simulation.judge import INT32, KEDA, RULES, SEED
from tests.autoscale.simulation.load import Items, Load
from tests.autoscale.simulation.loads import LOADS, one_job
from tests.autoscale.simulation.pool import BETWEEN, NOTICED, Line, Pool, Tier
from tests.autoscale.simulation.simulate import simulate

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


def test_the_other_rules_answer_as_they_are_described() -> None:
    load = LOADS["100,000 at once"](short=False)
    most = {rule: simulate(load, RULES[rule](load)).ready.max() for rule in (SEED, INT32, KEDA)}
    assert most[SEED] == 50_000  # 100,000 x 30 s in 60 s
    assert most[KEDA] < 50_000  # at most doubled each 15 s


@pytest.mark.seed("RWQ-B14")
def test_the_seeds_32_bits_overflow_where_ours_answers_50_000() -> None:
    load = LOADS["100,000 at once"](short=False)
    assert simulate(load, RULES[INT32](load)).ready.max() == 1
    ours = simulate(load, RULES["leasequeue"](load))
    assert 50_000 <= ours.ready.max() <= 60_000
    assert ours.within() == 1.0


def test_the_taut_string_is_the_shortest_way_between_two_curves() -> None:
    upper = np.array([0.0, 0, 6, 6, 6, 6, 12, 12, 12])
    lower = np.array([0.0, 0, 0, 0, 4, 6, 6, 6, 12])
    string = taut_string(lower, upper)
    assert np.all(lower - 1e-9 <= string)
    assert np.all(string <= upper + 1e-9)
    assert string == pytest.approx([0, 0, 1.5, 3, 4.5, 6, 8, 10, 12])


def test_hindsight_needs_two_workers_for_two_items_a_second_of_one_second() -> None:
    arrivals = np.arange(0.0, 1800.0, 0.5)
    items = Items(arrivals=arrivals, seconds=np.full(len(arrivals), 0.99))
    best = hindsight(Load(name="", jobs={"job": items}, policy=one_job(), end=1800.0))
    assert best.within() >= 0.99
    assert best.worker_seconds == pytest.approx(2 * 1770, rel=0.01)


def test_hindsight_has_no_workers_for_an_unannounced_burst_before_a_spin_up_has_passed() -> None:
    items = Items(arrivals=np.full(1_000, 600.0), seconds=np.full(1_000, 30.0))
    load = Load(name="", jobs={"job": items}, policy=one_job(), end=1800.0, jumps=(600.0,))
    best = hindsight(load)
    assert best.begun["job"].min() >= 630.0
    assert best.within() >= 0.99
    assert 490 <= best.ready.max() <= 500  # two rounds of 30 s begin within 60 s


def test_an_item_that_never_begins_is_late() -> None:
    items = Items(arrivals=np.array([0.0, 10.0]), seconds=np.array([1.0, 1.0]))
    tier = TierPolicy(name="none", max_units=0, spin_up=0.0)
    policy = Policy(
        jobs={"job": JobPolicy(age_target=60)},
        deployments={"job": DeploymentPolicy(name="job", jobs=("job",), tiers=(tier,))},
    )
    outcome = simulate(
        Load(name="", jobs={"job": items}, policy=policy, end=100.0),
        RULES[SEED](Load(name="", jobs={"job": items}, policy=policy, end=100.0)),
    )
    assert outcome.within() == 0.0
    assert outcome.begun["job"].tolist() == [inf, inf]
