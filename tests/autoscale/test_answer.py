"""The answer: how many workers a job needs, for loads of any size and for numbers that make no sense."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.autoscale import JobPolicy, Signals, wanted_workers

POLICY = JobPolicy(age_target=60)
anything = st.one_of(st.floats(), st.just(0.0), st.floats(0, 1e6))
counts = st.integers(0, 1_000_000)
signals = st.builds(
    Signals,
    waiting=counts,
    leased=st.integers(0, 10_000),
    due_soon=st.integers(0, 10_000),
    oldest_age=st.floats(0, 10_000),
    arrival_rate=st.floats(0, 100),
    arrival_trend=st.floats(-1, 1),
    arrival_variation=st.floats(0, 10),
    service_time=st.floats(0.001, 3600),
    service_variation=st.floats(0, 10),
    ready=st.integers(0, 10_000),
    requested=st.integers(0, 10_000),
)
policies = st.builds(JobPolicy, age_target=st.floats(0, 3600), confidence=st.floats(0, 0.999))


def workers(seen: Signals, policy: JobPolicy = POLICY, *, spin_up: float = 30) -> int:
    """Return the answer's number alone."""
    return wanted_workers(seen, policy, spin_up=spin_up).workers


@pytest.mark.seed("RWQ-B14")
def test_a_hundred_thousand_items_of_half_a_minute_need_fifty_thousand_workers() -> None:
    answer = wanted_workers(Signals(waiting=100_000), JobPolicy(age_target=60, service_time=30), spin_up=30)
    assert answer.workers == answer.for_backlog == 50_000
    assert "100,000 items of 30 s" in answer.why


@pytest.mark.seed("RWQ-B14")
@pytest.mark.parametrize("waiting", [10**3, 10**6, 10**9, 2**31, 2**53, 10**12])
def test_any_backlog_is_answered_in_proportion(waiting: int) -> None:
    assert workers(Signals(waiting=waiting, service_time=30)) == pytest.approx(waiting / 2, rel=1e-6)


def test_nothing_needs_nothing_and_anything_needs_one() -> None:
    assert workers(Signals(service_time=1)) == 0
    assert workers(Signals(service_time=1, leased=1, ready=5)) == 0
    assert workers(Signals(service_time=1, waiting=1)) == 1
    assert workers(Signals(service_time=1, arrival_rate=0.01)) == 1
    assert workers(Signals(service_time=1, due_soon=1)) == 1


def test_the_rate_needs_more_workers_than_are_busy_on_average() -> None:
    answer = wanted_workers(Signals(arrival_rate=100, service_time=1), POLICY, spin_up=30)
    assert answer.workers == answer.for_rate == 101
    there = Signals(arrival_rate=100, service_time=1, ready=125, requested=125)
    assert workers(there, JobPolicy(age_target=0)) == 125


@pytest.mark.seed("RWQ-T7")
def test_a_predicted_queue_of_nothing_asks_for_nothing() -> None:
    """What waits will be done by workers that are ready when new ones can work."""
    seen = Signals(waiting=100, service_time=1, ready=10, requested=10, leased=10)
    answer = wanted_workers(seen, POLICY, spin_up=30)
    assert answer.for_forecast == 0
    assert answer.workers == 2
    assert wanted_workers(replace(seen, waiting=1_000), POLICY, spin_up=30).for_forecast == 12


@pytest.mark.seed("RWQ-B15")
@given(
    seen=st.builds(
        Signals,
        waiting=counts,
        leased=st.integers(-5, 5),
        abandoned=st.integers(-5, 5),
        due_soon=st.integers(-5, 5),
        oldest_age=anything,
        arrival_rate=anything,
        arrival_trend=anything,
        arrival_variation=anything,
        service_time=st.one_of(st.none(), anything),
        service_variation=anything,
        ready=st.integers(-5, 5),
        requested=st.integers(-5, 5),
    ),
    age_target=anything,
    service_time=st.one_of(st.none(), anything),
    confidence=anything,
    spin_up=anything,
    ignored=st.booleans(),
)
def test_numbers_that_make_no_sense_have_an_answer(
    *,
    seen: Signals,
    age_target: float,
    service_time: float | None,
    confidence: float,
    spin_up: float,
    ignored: bool,
) -> None:
    policy = JobPolicy(
        age_target=age_target, service_time=service_time, confidence=confidence, ignore_abandoned=ignored
    )
    assert workers(seen, policy, spin_up=spin_up) >= 0


@given(seen=signals, policy=policies, spin_up=st.floats(0, 600), factor=st.floats(1, 100))
def test_more_that_waits_arrives_or_takes_longer_never_needs_fewer(
    seen: Signals, policy: JobPolicy, spin_up: float, factor: float
) -> None:
    seen = replace(seen, due_soon=0)  # a higher rate explains more of what becomes due
    before = workers(seen, policy, spin_up=spin_up)
    assert before >= 0
    assert seen.service_time is not None
    for more in (
        replace(seen, waiting=math.ceil(seen.waiting * factor)),
        replace(seen, arrival_rate=seen.arrival_rate * factor),
        replace(seen, service_time=seen.service_time * factor),
        replace(seen, oldest_age=seen.oldest_age * factor),
    ):
        assert workers(more, policy, spin_up=spin_up) >= before, more


@pytest.mark.seed("RWQ-K5")
@given(seen=signals, ignored=st.booleans())
def test_abandoned_items_count_unless_they_are_ignored(seen: Signals, *, ignored: bool) -> None:
    seen = replace(seen, abandoned=seen.waiting // 2)
    answer = workers(seen, replace(POLICY, ignore_abandoned=ignored))
    left = replace(seen, abandoned=0, waiting=seen.waiting - seen.abandoned if ignored else seen.waiting)
    assert answer == workers(left)


def test_long_jobs_with_a_short_target_need_no_more_workers_than_items() -> None:
    """An hour each, a minute to begin: ten that wait need ten, beside those that are busy."""
    busy = Signals(waiting=10, leased=36, ready=36, requested=36, service_time=3600)
    assert workers(busy) == 46
    assert workers(replace(busy, leased=0, ready=0, requested=0)) == 10
    assert workers(busy, JobPolicy(age_target=0)) == 46


def test_a_forged_age_asks_for_no_more_workers_than_items() -> None:
    """Who may write a queue's keys may forge the age; alone, it is no reason for a worker."""
    assert workers(Signals(service_time=1, oldest_age=86_400)) == 0
    assert workers(Signals(oldest_age=86_400)) == 0
    assert workers(Signals(waiting=3, service_time=3600, oldest_age=1e15)) == 3


def test_many_short_jobs_are_one_worker() -> None:
    assert workers(Signals(waiting=10_000, arrival_rate=500, service_time=0.001)) == 1
    assert workers(Signals(waiting=100_000, arrival_rate=10_000, service_time=0.001)) == 10


def test_while_no_run_has_ended_one_worker_finds_the_service_time_out() -> None:
    seen = Signals(waiting=1_000, arrival_rate=5)
    assert workers(seen) == 1
    busy = replace(seen, ready=1, requested=1, leased=1, oldest_age=80)
    assert workers(busy) == 1
    assert workers(replace(busy, oldest_age=91)) == 2
    assert workers(replace(busy, oldest_age=91, requested=2)) == 2
    assert workers(replace(busy, oldest_age=91, waiting=0)) == 1
    assert workers(replace(busy, oldest_age=91, leased=0)) == 1
    assert workers(replace(seen, requested=7)) == 7
    assert workers(Signals()) == 0


def test_twice_as_many_are_asked_for_if_long_runs_hold_all_up_and_an_item_is_late() -> None:
    held_up = Signals(
        waiting=100, leased=4, ready=4, requested=4, service_time=1, oldest_age=91, since_lease=10
    )
    policy = JobPolicy(age_target=60, service_time=0.1)
    answer = wanted_workers(held_up, policy, spin_up=30)
    assert answer.workers == answer.for_backlog == 8
    assert "all workers are busy for 10 s" in answer.why
    assert workers(replace(held_up, waiting=1), policy) == 5, "one more for each item that waits"
    assert workers(replace(held_up, since_lease=0.3), policy) == 1, "they begin items"
    assert workers(replace(held_up, leased=3), policy) == 1, "one is free"
    assert workers(replace(held_up, oldest_age=90), policy) == 1, "none is late"


@pytest.mark.seed("RWQ-K5")
def test_a_given_service_time_goes_before_the_measured_one() -> None:
    seen = Signals(waiting=100, service_time=1)
    assert workers(seen, JobPolicy(age_target=50)) == 2
    assert workers(seen, JobPolicy(age_target=50, service_time=10)) == 20


def test_items_that_become_due_count_with_what_the_rate_does_not_explain() -> None:
    retries = Signals(arrival_rate=10, service_time=1, due_soon=400, ready=11, requested=11)
    assert wanted_workers(retries, POLICY, spin_up=30).for_forecast == 0
    batch = replace(retries, due_soon=10_400)
    assert wanted_workers(batch, POLICY, spin_up=30).for_forecast == pytest.approx(10_000 / 60, rel=0.1)


def test_a_growing_rate_counts_as_it_will_be_when_new_workers_can_work() -> None:
    growing = Signals(arrival_rate=100, arrival_trend=1, service_time=1)
    assert wanted_workers(growing, POLICY, spin_up=30).for_rate == 131
    assert wanted_workers(growing, POLICY, spin_up=3_000).for_rate >= 151
    assert wanted_workers(replace(growing, arrival_trend=-1), POLICY, spin_up=30).for_rate == 101


def test_a_queue_takes_no_more_workers_than_may_lease_from_it() -> None:
    seen = Signals(waiting=1_000, service_time=60, limit=5)
    answer = wanted_workers(seen, POLICY, spin_up=30)
    assert (answer.workers, answer.for_backlog) == (5, 1_000)
    assert "5 items may be leased at once" in answer.why
    assert workers(replace(seen, limit=0)) == 0
    assert workers(replace(seen, limit=5_000)) == 1_000


def test_a_rare_item_has_no_worker_beforehand_if_one_can_come_in_time() -> None:
    rare = Signals(arrival_rate=1 / 1800, service_time=30)
    assert workers(rare, spin_up=30) == 0
    assert workers(rare, spin_up=60) == 1  # too late for an age target of 60 s, with a pass before it
    assert workers(replace(rare, waiting=1), spin_up=30) == 1


def test_a_long_job_that_begins_has_no_more_workers_than_items() -> None:
    """At the end there are 50 at once; now 15 run, and less than one arrives while a worker starts."""
    start = Signals(leased=15, ready=15, requested=15, arrival_rate=1 / 72, service_time=3600)
    assert workers(start, JobPolicy(age_target=300)) in range(15, 19)
    assert workers(replace(start, leased=48, ready=48, requested=48), JobPolicy(age_target=300)) >= 50


def test_units_that_are_coming_are_not_asked_for_again() -> None:
    """With a spin-up of five minutes, more would come too late for what waits now."""
    seen = Signals(
        waiting=1_000, oldest_age=200, arrival_rate=2, service_time=5, ready=10, requested=40, coming=35
    )
    answer = wanted_workers(seen, POLICY, spin_up=300)
    assert answer.for_forecast == 0
    assert answer.workers == answer.for_backlog == 40
    assert workers(seen, spin_up=30) == 112


@pytest.mark.parametrize(("error", "reserve"), [(0.0, 13), (0.1, 14)])
def test_a_spin_up_longer_than_the_target_needs_a_reserve_and_more_where_the_rate_is_not_known_well(
    error: float, reserve: int
) -> None:
    seen = Signals(arrival_rate=2.4, arrival_error=error, service_time=5, ready=12, requested=12)
    assert wanted_workers(seen, POLICY, spin_up=30).for_rate == 12
    assert wanted_workers(seen, POLICY, spin_up=300).for_rate == reserve


def test_old_items_are_begun_sooner_but_each_pass_asks_for_no_more_than_a_third_more() -> None:
    answers = [workers(Signals(waiting=600, oldest_age=age, service_time=5)) for age in range(0, 600, 5)]
    assert answers[0] == 50
    assert max(answers) == answers[-1] == 67
    assert answers == sorted(answers)


def test_busy_workers_that_free_themselves_in_time_need_no_others() -> None:
    """A hundred hours of work: within five minutes, 8 of 100 workers end theirs."""
    busy = Signals(waiting=2, leased=100, ready=100, requested=100, service_time=3600)
    assert workers(busy, JobPolicy(age_target=300)) == 24


def test_workers_that_are_coming_count_for_the_time_that_they_work() -> None:
    seen = Signals(waiting=1_000, service_time=5, requested=40, coming=10)
    assert wanted_workers(seen, POLICY, spin_up=30).for_forecast == 79
