"""What holds for any plan: any jobs and tiers, any signals, any memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

NOW = 1_763_845_352.25
NAMES = ("a", "b", "c", "d")
QUICK = settings(max_examples=15, deadline=None)

Units = dict[tuple[str, str], TierUnits]

seconds = st.sampled_from([0.0, 0.001, 1.0, 30.0, 600.0, 3600.0]) | st.floats(0, 1e5)
counts = st.integers(0, 20) | st.integers(0, 1_000_000)


@st.composite
def tiers(draw: st.DrawFn) -> tuple[TierPolicy, ...]:
    found = []
    for name in ("one", "two", "three")[: draw(st.integers(0, 3))]:
        minimum = draw(st.integers(0, 3))
        found.append(
            TierPolicy(
                name=name,
                min_units=minimum,
                max_units=minimum + draw(counts),
                workers_per_unit=draw(st.integers(1, 5)),
                spin_up=draw(seconds),
                preemptible=draw(st.booleans()),
                slow_down=draw(seconds),
                slow_up=draw(st.sampled_from([0.0, 0.0, 30.0])),
            )
        )
    return tuple(found)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    jobs = {
        name: JobPolicy(
            age_target=draw(st.floats(0.01, 1e5)),
            service_time=draw(st.none() | st.floats(0.001, 1e4)),
            ignore_abandoned=draw(st.booleans()),
            children=draw(st.dictionaries(st.sampled_from(NAMES), st.none() | st.floats(0, 50), max_size=2)),
        )
        for name in NAMES[: draw(st.integers(0, 4))]
    }
    homes: dict[str, list[str]] = {}
    for name in jobs:
        homes.setdefault(draw(st.sampled_from(["media", "other", "none"])), []).append(name)
    deployments = {
        name: DeploymentPolicy(
            name=name,
            jobs=tuple(homes.get(name, ())),
            tiers=draw(tiers()),
            steady_share=draw(st.floats(0, 1)),
        )
        for name in ("media", "other")
    }
    return Policy(jobs=jobs, deployments=deployments)


signals = st.builds(
    Signals,
    waiting=counts,
    leased=counts,
    abandoned=counts,
    due_soon=counts,
    oldest_age=seconds,
    arrival_rate=st.floats(0, 1e5),
    arrival_trend=st.floats(-100, 100),
    arrival_variation=st.floats(0, 50),
    lease_rate=st.floats(0, 1e5),
    service_time=st.none() | st.floats(0.001, 1e4),
    service_variation=st.floats(0, 50),
    ready=counts,
    requested=counts,
    limit=st.none() | counts,
    children=st.dictionaries(st.sampled_from(NAMES), st.floats(0, 50), max_size=2),
)
#: What a pass sees: each job, each tier; some are not seen.
unit_numbers = st.builds(TierUnits, ready=st.none() | counts, requested=st.none() | counts)


def sights(policy: Policy) -> st.SearchStrategy[tuple[dict[str, Signals], Units]]:
    keys = [(name, tier.name) for name, d in policy.deployments.items() for tier in d.tiers]
    return st.tuples(
        st.fixed_dictionaries({}, optional=dict.fromkeys(policy.jobs, signals)),
        st.fixed_dictionaries({}, optional=dict.fromkeys(keys, unit_numbers)),
    )


def wanted(result: Plan) -> dict[tuple[str, str], int]:
    return {(request.deployment, request.tier): request.wanted for request in result.tiers}


@QUICK
@given(st.data())
def test_each_tier_gets_a_number_within_its_limits(data: st.DataObject) -> None:
    policy = data.draw(policies())
    memory: Any = {}
    for n in range(3):
        seen, units = data.draw(sights(policy))
        result = plan(policy, seen, units, memory, NOW + 100 * n)
        memory = result.memory
        limits = {(d.name, tier.name): tier for d in policy.deployments.values() for tier in d.tiers}
        assert wanted(result).keys() == limits.keys()
        for key, number in wanted(result).items():
            assert limits[key].min_units <= number <= limits[key].max_units
        assert [report.job for report in result.jobs] == sorted(policy.jobs)


@pytest.mark.seed("RWQ-B17")
@QUICK
@given(st.data())
def test_the_shares_of_the_jobs_of_a_deployment_add_up_to_its_ready_workers(data: st.DataObject) -> None:
    policy = data.draw(policies())
    seen, units = data.draw(sights(policy))
    result = plan(policy, seen, units, {}, NOW)
    shares = {report.job: report.share for report in result.jobs}
    for deployment in policy.deployments.values():
        numbers = [(units.get((deployment.name, tier.name)), tier) for tier in deployment.tiers]
        known = [(n.ready, tier) for n, tier in numbers if n is not None and n.ready is not None]
        if known and deployment.jobs:
            ready = sum(n * tier.workers_per_unit for n, tier in known)
            assert sum(shares[job] for job in deployment.jobs) == ready


@pytest.mark.seed("RWQ-B17")
@QUICK
@given(st.data())
def test_a_memory_that_went_through_json_and_any_order_of_names_give_the_same_plan(
    data: st.DataObject,
) -> None:
    policy = data.draw(policies())
    turned = Policy(
        jobs={name: policy.jobs[name] for name in reversed(list(policy.jobs))},
        deployments={name: policy.deployments[name] for name in reversed(list(policy.deployments))},
    )
    kept: Any = {}
    read: Any = {}
    for n in range(3):
        seen, units = data.draw(sights(policy))
        first = plan(policy, seen, units, kept, NOW + 40 * n)
        back = {key: units[key] for key in reversed(list(units))}
        again = plan(turned, {name: seen[name] for name in reversed(list(seen))}, back, read, NOW + 40 * n)
        assert first == again
        kept, read = first.memory, json.loads(json.dumps(again.memory, sort_keys=True))


@QUICK
@given(st.data())
def test_a_second_pass_at_the_same_moment_asks_for_the_same(data: st.DataObject) -> None:
    policy = data.draw(policies())
    seen = data.draw(sights(policy))[0]
    seen = {name: replace(one, service_time=one.service_time or 1.0) for name, one in seen.items()}
    units = {}
    for deployment in policy.deployments.values():
        for tier in deployment.tiers:
            requested = data.draw(st.integers(tier.min_units, tier.max_units))
            ready = data.draw(st.integers(0, requested))
            units[deployment.name, tier.name] = TierUnits(ready=ready, requested=requested)
    first = plan(policy, seen, units, {}, NOW)
    asked = {
        key: TierUnits(ready=units[key].ready, requested=number) for key, number in wanted(first).items()
    }
    second = plan(policy, seen, asked, first.memory, NOW)
    assert wanted(second) == wanted(first)


KEYS = ("jobs", "tiers", "media", "one", "two", "asked", "at", "ready", "missing", "most", "least", "a")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)
tier_memory = st.dictionaries(
    st.sampled_from(["asked", "at", "ready", "missing", "most", "least"]),
    json_values | st.lists(st.tuples(st.integers() | st.floats(), st.integers()).map(list), max_size=5),
)


@pytest.mark.seed("RWQ-B15", "RWQ-B17")
@QUICK
@given(
    st.data(),
    json_values
    | st.fixed_dictionaries(
        {
            "tiers": st.fixed_dictionaries(
                {"media": st.dictionaries(st.sampled_from(["one", "two"]), tier_memory)}
            )
        }
    ),
)
def test_no_memory_is_so_strange_that_there_is_no_plan(data: st.DataObject, memory: Any) -> None:
    policy = data.draw(policies())
    seen, units = data.draw(sights(policy))
    result = plan(policy, seen, units, memory, NOW)
    assert (
        len(json.dumps(plan(policy, seen, units, result.memory, NOW + 10).memory, allow_nan=False)) < 10_000
    )


@pytest.mark.seed("RWQ-B15")
@QUICK
@given(st.data())
def test_numbers_that_cannot_be_calculated_with_are_no_end(data: st.DataObject) -> None:
    policy = data.draw(policies())
    numbers = st.sampled_from([float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e300])
    strange = dict.fromkeys(
        ("oldest_age", "arrival_rate", "arrival_trend", "service_time", "lease_rate"), numbers
    )
    strange |= dict.fromkeys(("waiting", "leased", "due_soon", "requested"), st.sampled_from([-1, 10**30]))
    seen, units = data.draw(sights(policy))
    for name in list(seen):
        changes: dict[str, Any] = data.draw(st.fixed_dictionaries({}, optional=strange))
        seen[name] = replace(seen[name], **changes)
    jobs = {
        name: replace(job, age_target=data.draw(st.sampled_from([0.0, 1e-9, 60.0])), service_time=0.0)
        for name, job in policy.jobs.items()
    }
    result = plan(replace(policy, jobs=jobs), seen, units, {}, NOW)
    json.dumps(result.memory, allow_nan=False)


@pytest.mark.seed("RWQ-B15")
def test_nothing_known_is_nothing_asked() -> None:
    assert plan(Policy(jobs={}, deployments={}), {}, {}, {}, 0.0).tiers == ()
    empty = DeploymentPolicy(name="media", jobs=("gone",), tiers=())
    result = plan(Policy(jobs={"a": JobPolicy()}, deployments={"media": empty}), {}, {}, {}, 0.0)
    assert result.tiers == ()
    assert [report.answer.workers for report in result.jobs] == [0]


def test_rarer_passes_need_a_reserve() -> None:
    tier = TierPolicy(name="one", max_units=100, spin_up=30.0)
    deployment = DeploymentPolicy(name="a", jobs=("a",), tiers=(tier,))
    policy = Policy(jobs={"a": JobPolicy(age_target=60.0)}, deployments={"a": deployment})
    seen = {"a": Signals(arrival_rate=10.0, service_time=1.0)}
    units = {("a", "one"): TierUnits(ready=10, requested=10)}
    one, often, rare, seldom = (
        plan(replace(policy, every=every), seen, units, {}, NOW).tiers[0].wanted
        for every in (1.0, 10.0, 60.0, 600.0)
    )
    assert one == often < rare <= seldom


def test_the_plan_says_what_limits_it() -> None:
    tier = TierPolicy(name="one", max_units=8, workers_per_unit=4, slow_down=20.0)
    deployment = DeploymentPolicy(name="a", jobs=("a",), tiers=(tier,))
    policy = Policy(jobs={"a": JobPolicy(age_target=60.0)}, deployments={"a": deployment})

    def why(waiting: int, requested: int) -> str:
        seen = {"a": Signals(waiting=waiting, service_time=60.0)}
        units = {("a", "one"): TierUnits(ready=requested, requested=requested)}
        return plan(policy, seen, units, {}, NOW).tiers[0].why

    assert why(1_044, 0) == "for 1,044 workers; the tiers may have 32 together"
    assert why(1, 2) == "for 1 worker; 1 unit more until fewer have been enough for 20 s"
