"""The plan of a pass: jobs that feed each other, shared deployments, tiers, the memory between passes."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.autoscale import (
    DeploymentPolicy,
    JobPolicy,
    Plan,
    Policy,
    Signals,
    TierPolicy,
    TierUnits,
    plan,
)
from leasequeue.autoscale.pooling import PooledJob, shares, side_by_side

if TYPE_CHECKING:
    from collections.abc import Mapping

#: 100,000 items of 30 s each and an age target of one minute take 50,000 workers.
MANY = Signals(waiting=100_000, oldest_age=0.0, service_time=30.0)


def steady(name: str = "steady", **wishes: object) -> TierPolicy:
    return replace(TierPolicy(name=name, max_units=100_000, spin_up=60.0), **wishes)  # type: ignore[arg-type]


def policy_of(
    *tiers: TierPolicy, jobs: Mapping[str, JobPolicy] | None = None, steady_share: float = 0.0
) -> Policy:
    jobs = {"resize": JobPolicy()} if jobs is None else jobs
    return Policy(
        jobs=jobs,
        deployments={
            "media": DeploymentPolicy(name="media", jobs=tuple(jobs), tiers=tiers, steady_share=steady_share)
        },
    )


class Passes:
    """Passes one after the other, whose memory goes through JSON, with units that do what the test says."""

    def __init__(self, policy: Policy, every: float = 10.0) -> None:
        self.policy = policy
        self.every = every
        self.now = 1_763_845_352.25
        self.memory: dict[str, object] = {}
        self.asked: dict[str, int] = {}

    def step(self, seen: Mapping[str, Signals], *ready: int | None) -> dict[str, int]:
        """Make one pass; return the units that it wants of each tier."""
        (deployment,) = self.policy.deployments.values()
        units = {
            ("media", tier.name): TierUnits(
                ready=n, requested=None if n is None else self.asked.get(tier.name)
            )
            for tier, n in zip(deployment.tiers, ready, strict=True)
        }
        result = plan(self.policy, seen, units, self.memory, self.now)
        self.memory = json.loads(json.dumps(result.memory))
        self.asked = {request.tier: request.wanted for request in result.tiers}
        self.now += self.every
        return self.asked

    def steps(self, seconds: float, seen: Mapping[str, Signals], *ready: int | None) -> dict[str, int]:
        """Make passes for so long; return what the last one wants."""
        for _ in range(round(seconds / self.every)):
            self.step(seen, *ready)
        return self.asked


def first(policy: Policy, seen: Mapping[str, Signals], *ready: int) -> Plan:
    """Return the plan of the first pass."""
    (deployment,) = policy.deployments.values()
    units = {
        ("media", tier.name): TierUnits(ready=n, requested=n)
        for tier, n in zip(deployment.tiers, ready, strict=True)
    }
    return plan(policy, seen, units, {}, 1000.0)


def wanted(result: Plan) -> list[int]:
    return [request.wanted for request in result.tiers]


def busy(workers: int) -> dict[str, Signals]:
    """Return signals by which the job needs so many workers: so much waits, within one minute."""
    return {"resize": Signals(waiting=workers * 2, service_time=30.0)}


@pytest.mark.seed("RWQ-O22")
def test_one_pass_answers_all_jobs_and_asks_all_tiers() -> None:
    result = first(policy_of(steady()), {"resize": MANY}, 0)
    assert wanted(result) == [50_000]
    assert result.jobs[0].job == "resize"
    assert result.jobs[0].answer.workers == 50_000
    assert (result.tiers[0].deployment, result.tiers[0].tier) == ("media", "steady")
    assert (result.tiers[0].ready, result.tiers[0].requested) == (0, 0)


@pytest.mark.seed("RWQ-K6")
def test_tiers_are_filled_in_their_order_in_whole_units() -> None:
    tiers = (steady(min_units=1, max_units=3, workers_per_unit=4), steady("spot", preemptible=True))
    assert wanted(first(policy_of(*tiers), busy(0), 0, 0)) == [1, 0]
    assert wanted(first(policy_of(*tiers), busy(9), 0, 0)) == [3, 0]
    assert wanted(first(policy_of(*tiers), busy(13), 0, 0)) == [3, 1]
    few = steady("spot", max_units=2)
    assert wanted(first(policy_of(tiers[0], few), {"resize": MANY}, 0, 0)) == [3, 2]


@pytest.mark.seed("RWQ-K6", "RWQ-T8")
@pytest.mark.parametrize(("share", "units"), [(0.0, [10, 0]), (0.25, [7, 3]), (0.5, [5, 5]), (1.0, [2, 8])])
def test_a_share_of_the_workers_is_on_tiers_that_are_not_preemptible(share: float, units: list[int]) -> None:
    tiers = (steady("spot", preemptible=True), steady(max_units=8))
    assert wanted(first(policy_of(*tiers, steady_share=share), busy(10), 0, 0)) == units


@pytest.mark.seed("RWQ-K6")
def test_fewer_units_are_asked_for_when_fewer_were_enough_for_the_slow_down() -> None:
    passes = Passes(policy_of(steady(slow_down=300.0)))
    assert passes.step(busy(20), 0) == {"steady": 20}
    assert passes.steps(290, busy(3), 20) == {"steady": 20}
    assert passes.steps(60, busy(3), 20) == {"steady": 3}


@pytest.mark.seed("RWQ-K6")
def test_more_units_are_asked_for_when_more_were_needed_for_the_slow_up() -> None:
    passes = Passes(policy_of(steady(slow_up=60.0)))
    assert passes.steps(30, busy(2), 0) == {"steady": 0}
    passes.steps(60, busy(2), 0)
    assert passes.steps(60, busy(20), 2) == {"steady": 2}
    assert passes.steps(10, busy(1), 2) == {"steady": 2}  # one quiet pass starts it again
    assert passes.steps(60, busy(20), 2) == {"steady": 2}
    assert passes.steps(20, busy(20), 2) == {"steady": 20}


def test_the_first_pass_takes_nothing_away_before_the_slow_down() -> None:
    passes = Passes(policy_of(steady(slow_down=300.0)))
    passes.asked = {"steady": 20}
    assert passes.step(busy(0), 20) == {"steady": 20}
    assert passes.steps(340, busy(0), 20) == {"steady": 0}


@pytest.mark.seed("RWQ-T8")
def test_a_tier_that_does_not_deliver_is_covered_by_the_next_and_taken_back_when_it_delivers() -> None:
    passes = Passes(policy_of(steady("spot", preemptible=True, spin_up=60.0), steady()))
    assert passes.steps(120, busy(10), 0, 0) == {"spot": 10, "steady": 0}
    assert passes.steps(30, busy(10), 4, 0) == {"spot": 10, "steady": 6}
    assert passes.steps(600, busy(10), 4, 6) == {"spot": 10, "steady": 6}
    assert passes.steps(20, busy(10), 10, 6) == {"spot": 10, "steady": 0}


def test_units_that_the_platform_took_away_have_the_same_time_to_come_back() -> None:
    passes = Passes(policy_of(steady("spot", preemptible=True, spin_up=60.0), steady()))
    passes.steps(600, busy(10), 10, 0)
    assert passes.steps(120, busy(10), 7, 0) == {"spot": 10, "steady": 0}
    assert passes.steps(30, busy(10), 7, 0) == {"spot": 10, "steady": 3}


def test_a_slow_growth_is_never_overdue_when_each_unit_is_in_time() -> None:
    passes = Passes(policy_of(steady("spot", preemptible=True, spin_up=60.0), steady()))
    for n in range(0, 400, 2):
        assert passes.step(busy(n), max(0, n - 20), 0)["steady"] == 0  # each is there after 100 s
    assert passes.asked["spot"] > 380


@pytest.mark.parametrize(("needed", "asked"), [(195, 200), (205, 200), (194, 194), (206, 206)])
def test_a_small_change_is_not_worth_a_request(needed: int, asked: int) -> None:
    passes = Passes(policy_of(steady(slow_down=0.0)))
    passes.step(busy(200), 0)
    assert passes.step(busy(needed), 200) == {"steady": asked}


@pytest.mark.seed("RWQ-T8")
def test_one_late_unit_of_many_is_covered_by_no_other_tier() -> None:
    passes = Passes(policy_of(steady("spot", preemptible=True), steady()))
    assert passes.steps(900, busy(40), 39, 0) == {"spot": 40, "steady": 0}
    assert passes.steps(900, busy(40), 36, 0) == {"spot": 40, "steady": 4}


@pytest.mark.seed("RWQ-T8")
def test_what_is_asked_of_a_tier_that_delivers_nothing_is_covered_at_once() -> None:
    passes = Passes(policy_of(steady("spot", preemptible=True), steady()))
    assert passes.steps(300, busy(10), 0, 0) == {"spot": 10, "steady": 10}
    assert passes.step(busy(30), 0, 10) == {"spot": 30, "steady": 30}


@pytest.mark.seed("RWQ-B15")
def test_a_tier_whose_back_end_failed_keeps_its_request_and_the_next_takes_what_is_new() -> None:
    passes = Passes(policy_of(steady(), steady("more")))
    passes.steps(100, busy(10), 10, 0)
    assert passes.steps(600, busy(15), None, 0) == {"steady": 10, "more": 5}
    assert passes.steps(900, busy(2), None, 5) == {"steady": 10, "more": 0}
    assert passes.steps(400, busy(2), 10, 0) == {"steady": 2, "more": 0}


@pytest.mark.seed("RWQ-B15")
def test_a_queue_that_could_not_be_read_takes_no_worker_away() -> None:
    jobs = {"resize": JobPolicy(), "mail": JobPolicy()}
    passes = Passes(policy_of(steady(), jobs=jobs))
    mail = {"mail": Signals(waiting=60, service_time=10.0)}
    assert passes.steps(60, busy(10) | mail, 20) == {"steady": 20}
    assert passes.steps(3600, mail, 20) == {"steady": 20}
    assert passes.steps(3600, {}, 20) == {"steady": 20}
    assert passes.steps(3600, {"mail": Signals()}, 20) == {"steady": 20}
    more = {"mail": Signals(waiting=600, service_time=10.0)}
    assert passes.steps(60, more, 20) == {"steady": 110}


@pytest.mark.seed("RWQ-B17")
@pytest.mark.parametrize("total", [0, 1, 2, 7, 100_001, 10**30 + 1])
@pytest.mark.parametrize("weights", [[], [1.0], [0.0, 0.0], [1e-9, 1.0, 1e9], [0.1] * 7, [1e300, 1.0]])
def test_shares_add_up_and_are_off_by_less_than_one(total: int, weights: list[float]) -> None:
    parts = shares(total, weights)
    assert sum(parts) == (total if weights else 0)
    whole = sum(map(Fraction, weights))
    for part, weight in zip(parts, weights, strict=True):
        exact = total * Fraction(weight) / whole if whole else Fraction(total, len(weights))
        assert abs(part - exact) < 1


@pytest.mark.seed("RWQ-O26")
def test_a_deployment_has_the_sum_of_its_jobs() -> None:
    jobs = {"resize": JobPolicy(), "mail": JobPolicy(age_target=600.0)}
    seen = busy(100) | {"mail": Signals(waiting=6000, service_time=5.0)}
    assert wanted(first(policy_of(steady(), jobs=jobs), seen, 0)) == [150]


def test_a_job_of_short_items_has_workers_besides_those_that_long_items_take() -> None:
    jobs = {"long": JobPolicy(), "short": JobPolicy()}
    seen = {
        "long": Signals(arrival_rate=0.2, leased=24, service_time=60.0),
        "short": Signals(arrival_rate=10.0, waiting=600, oldest_age=60.0, service_time=0.2),
    }
    (needed,) = wanted(first(policy_of(steady(spin_up=30.0), jobs=jobs), seen, 24))
    # Within 45 s, 14 of the 24 continue with long items on average, and 5 begin one; 900 x 0.2 s are 4.
    assert 23 <= needed <= 25


def test_many_small_jobs_share_a_few_workers() -> None:
    jobs = {f"job-{n}": JobPolicy() for n in range(100)}
    seen = {name: Signals(arrival_rate=0.001, service_time=1.0) for name in jobs}
    result = first(policy_of(steady(), jobs=jobs), seen, 0)
    assert sum(report.answer.workers for report in result.jobs) == 100
    assert wanted(result) <= [2]


class TestFeeding:
    """Jobs that add work for others."""

    def policy(self, average: float | None = 2.0, spin_up: float = 60.0) -> Policy:
        jobs = {"resize": JobPolicy(children={"upload": average}), "upload": JobPolicy()}
        return Policy(
            jobs=jobs,
            deployments={
                name: DeploymentPolicy(name=name, jobs=(name,), tiers=(steady(spin_up=spin_up),))
                for name in jobs
            },
        )

    def upload(self, policy: Policy, resize: Signals, upload: Signals, ready: int = 0) -> int:
        """Return the workers that `upload` needs, when `resize` has so many ready workers."""
        units = {
            ("resize", "steady"): TierUnits(ready=ready, requested=ready),
            ("upload", "steady"): TierUnits(ready=0, requested=0),
        }
        result = plan(policy, {"resize": resize, "upload": upload}, units, {}, 0.0)
        assert [report.job for report in result.jobs] == ["resize", "upload"]
        return result.jobs[1].answer.workers

    def test_a_job_is_ready_for_what_the_jobs_before_it_will_add(self) -> None:
        resize = Signals(waiting=6000, service_time=1.0)
        # 6,000 items within 120 s by at least 100 workers: 50 a second, and 100 a second of 1 s for upload
        assert 100 <= self.upload(self.policy(), resize, Signals(service_time=1.0)) <= 130

    def test_what_arrives_already_is_not_counted_again(self) -> None:
        resize = Signals(arrival_rate=50.0, lease_rate=50.0, leased=50, service_time=1.0)
        upload = Signals(arrival_rate=100.0, service_time=1.0)
        alone = self.upload(self.policy(0.0), resize, upload, ready=60)
        assert alone <= self.upload(self.policy(), resize, upload, ready=60) <= alone + 2

    @pytest.mark.parametrize("leased", [0, 1])
    def test_a_rare_job_is_not_counted_again_while_it_is_idle(self, leased: int) -> None:
        resize = Signals(arrival_rate=0.05, leased=leased, service_time=10.0)
        upload = Signals(arrival_rate=5.0, service_time=1.0)
        alone = self.upload(self.policy(0.0), resize, upload, ready=1)
        assert alone <= self.upload(self.policy(100.0), resize, upload, ready=1) <= alone + 6

    def test_no_more_is_expected_than_the_workers_before_it_can_do(self) -> None:
        resize = Signals(waiting=6000, leased=4, service_time=1.0)
        policy = self.policy()
        small = DeploymentPolicy(name="resize", jobs=("resize",), tiers=(steady(max_units=4),))
        policy = replace(policy, deployments={**policy.deployments, "resize": small})
        assert self.upload(policy, resize, Signals(service_time=1.0), ready=4) <= 12

    def test_what_a_job_adds_while_it_catches_up_is_not_expected_to_go_on(self) -> None:
        resize = Signals(arrival_rate=4.0, waiting=20, leased=17, service_time=2.0)
        upload = Signals(arrival_rate=17.0, service_time=4.0)
        alone = self.upload(self.policy(0.0), resize, upload, ready=17)
        after = self.upload(self.policy(), resize, upload, ready=17)
        assert alone >= 68
        assert 32 <= after <= 45  # twice 4 a second, of 4 s

    def test_items_that_take_an_hour_add_nothing_within_a_minute(self) -> None:
        resize = Signals(waiting=3600, leased=360, service_time=3600.0)
        assert self.upload(self.policy(), resize, Signals(service_time=10.0), ready=360) <= 6

    def test_a_measured_average_counts_where_none_is_wished(self) -> None:
        resize = Signals(waiting=6000, service_time=1.0, children={"upload": 2.0})
        upload = Signals(service_time=1.0)
        policy = self.policy(None)
        assert self.upload(policy, resize, upload) == self.upload(self.policy(2.0), resize, upload)
        assert self.upload(policy, replace(resize, children={}), upload) == 0

    def test_jobs_that_feed_each_other_in_a_circle_end(self) -> None:
        jobs = {
            "a": JobPolicy(children={"b": 1.0, "a": 3.0, "gone": 1.0}),
            "b": JobPolicy(children={"c": 1.0}),
            "c": JobPolicy(children={"a": 1.0}),
        }
        seen = {name: Signals(waiting=100, service_time=1.0) for name in jobs}
        result = plan(Policy(jobs=jobs, deployments={}), seen, {}, {}, 0.0)
        assert [report.job for report in result.jobs] == ["a", "b", "c"]


@pytest.mark.seed("RWQ-B15", "RWQ-B17")
@pytest.mark.parametrize(
    "memory",
    [
        {"jobs": 3, "tiers": []},
        {
            "tiers": {
                "media": {"steady": {"asked": "4", "at": None, "ready": -1, "missing": [1, [2], ["x", 1]]}}
            }
        },
        {"tiers": {"media": {"steady": {"asked": True, "missing": [[1e400, 1], [5, -3]], "most": {"a": 1}}}}},
        {"tiers": {"media": None}, "jobs": {"resize": "many"}},
        {"tiers": {"media": {"steady": {"at": 1e30, "most": [[1e300, 5], [float("nan"), 1]]}}}},
    ],
)
def test_a_memory_that_is_not_understood_counts_as_none(memory: dict[str, object]) -> None:
    policy = policy_of(steady())
    units = {("media", "steady"): TierUnits(ready=2, requested=2)}
    result = plan(policy, busy(10), units, memory, 1000.0)
    assert wanted(result) == wanted(plan(policy, busy(10), units, {}, 1000.0)) == [10]


def test_a_hundred_jobs_need_little_memory() -> None:
    jobs = {f"job-{n:02}": JobPolicy(children={f"job-{n + 1:02}": 1.5}) for n in range(100)}
    tiers = (steady(slow_up=30.0, max_units=5), steady("spot", preemptible=True))
    policy = Policy(
        jobs=jobs,
        deployments={name: DeploymentPolicy(name=name, jobs=(name,), tiers=tiers) for name in jobs},
    )
    memory: dict[str, object] = {}
    for n in range(3):
        seen = {
            name: Signals(waiting=100_000 - 40_000 * n, arrival_rate=1000.0, service_time=30.0)
            for name in jobs
        }
        units = {(name, tier.name): TierUnits(ready=0, requested=n) for name in jobs for tier in tiers}
        memory = dict(plan(policy, seen, units, memory, 1_763_845_352.25 + 40 * n).memory)
    assert len(json.dumps(memory, separators=(",", ":"))) < 100_000


# -------------------------------------------------------------------- jobs whose items are fetched in turns


def member(time: float, **seen: Any) -> PooledJob:
    return PooledJob(signals=Signals(**seen), policy=JobPolicy(age_target=60.0), service_time=time)


def test_what_waits_is_begun_before_what_comes_later() -> None:
    """The backlog of a large job is no more work than it does anyway; small jobs are next to none."""
    large = member(4.0, arrival_rate=6.0, leased=26, waiting=180, oldest_age=30.0, coming=26)
    small = [member(5.0, arrival_rate=0.004) for _ in range(12)]
    assert 24 <= side_by_side([large, *small], 30.0) <= 27


def test_items_of_other_jobs_come_between() -> None:
    """600 items of 0.2 s are begun by 2 workers in a minute. 200 of 3 s come beside them: these take 10."""
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
