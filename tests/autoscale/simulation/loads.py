"""The loads: a function per load; `short` ones are for `make test`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from leasequeue.autoscale import DeploymentPolicy, JobPolicy, Policy, TierPolicy
from tests.autoscale.simulation.load import Items, Load, along, at_random, run_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.autoscale.simulation.load import Times

HOUR = 3600.0
#: What most tiers are like.
TIER = TierPolicy(name="units", max_units=1_000, spin_up=30.0, slow_down=300.0)


def one_job(target: float = 60.0, tier: TierPolicy = TIER) -> Policy:
    """Return the policy of one job in its own deployment."""
    return Policy(
        jobs={"job": JobPolicy(age_target=target)},
        deployments={"job": DeploymentPolicy(name="job", jobs=("job",), tiers=(tier,))},
    )


def _steady(rate: float, seconds: float, hours: float, target: float = 60.0, weight: int = 1) -> Load:
    rng = np.random.default_rng(1)
    # The sums of several items that are moved as one vary less: of the times between them, and of run times.
    between = run_times(rng, weight / rate, int(rate / weight * hours * HOUR * 1.2) + 100, weight**-0.5)
    arrivals = np.cumsum(between)
    arrivals = arrivals[arrivals < hours * HOUR]
    items = Items(
        arrivals=arrivals,
        seconds=run_times(rng, weight * seconds, len(arrivals), weight**-0.5),
        weight=weight,
    )
    return Load(name="", jobs={"job": items}, policy=one_job(target), end=hours * HOUR)


def steady_small(*, short: bool) -> Load:
    """Jobs of 1 s, 2/s."""
    return _steady(2, 1, 0.5 if short else 2)


def new_queue(*, short: bool) -> Load:
    """Jobs of 10 s, 2/s, of which none has run before."""
    return replace(_steady(2, 10, 0.5 if short else 2), known_before=False)


def steady_large(*, short: bool) -> Load:
    """Jobs of 30 s, 10/s."""
    return _steady(10 if not short else 4, 30, 0.5 if short else 2)


def milliseconds(*, short: bool) -> Load:
    """Jobs of 1 ms, 10,000/s, to begin within 10 s."""
    return _steady(10_000, 0.001, 0.5 if short else 2, 10, weight=1_000)


def ten_minutes(*, short: bool) -> Load:
    """Jobs of 10 min, 6/min, to begin within 5 min."""
    return _steady(0.1, 600, 1.5 if short else 8, 300)


def an_hour(*, short: bool) -> Load:
    """Jobs of 1 h, 50/h, to begin within 5 min."""
    return _steady(50 / HOUR, 3600, 2 if short else 16, 300)


def unannounced_jump(*, short: bool) -> Load:
    """Jobs of 2 s: 2/s, then 20/s from one moment to the next, then 2/s again."""
    rng = np.random.default_rng(2)
    end = 1 * HOUR if short else 3 * HOUR
    jump, over = end / 4, end / 2
    arrivals = np.sort(np.concatenate([at_random(rng, 2, 0, end), at_random(rng, 18, jump, over)]))
    items = Items(arrivals=arrivals, seconds=run_times(rng, 2, len(arrivals)))
    return Load(name="", jobs={"job": items}, policy=one_job(), end=end, jumps=(0.0, jump))


def bursts(*, short: bool) -> Load:
    """Jobs of 1 s, 1/s, and 2,000 at once every 20 min."""
    rng = np.random.default_rng(3)
    end = 1 * HOUR if short else 4 * HOUR
    moments = np.arange(600.0, end, 1200.0)
    arrivals = np.sort(np.concatenate([at_random(rng, 1, 0, end), np.repeat(moments, 2_000)]))
    items = Items(arrivals=arrivals, seconds=run_times(rng, 1, len(arrivals)))
    return Load(name="", jobs={"job": items}, policy=one_job(), end=end, jumps=(0.0, *moments.tolist()))


def scheduled_bursts(*, short: bool) -> Load:
    """Jobs of 5 s: 1,500 every half hour, which the queue's schedule names beforehand."""
    rng = np.random.default_rng(4)
    end = 1 * HOUR if short else 4 * HOUR
    arrivals = np.repeat(np.arange(900.0, end, 1800.0), 1_500)
    items = Items(arrivals=arrivals, seconds=run_times(rng, 5, len(arrivals), 0.5), scheduled=True)
    return Load(name="", jobs={"job": items}, policy=one_job(), end=end, jumps=())


def _curve(end: float, period: float, low: float, high: float) -> Times:
    at = np.arange(0, end, 60.0)
    return low + (high - low) * (1 - np.cos(2 * np.pi * at / period)) / 2


def daily(*, short: bool) -> Load:
    """Jobs of 5 s along a day: 0.5/s at night, 8/s at noon."""
    rng = np.random.default_rng(5)
    end = (2 if short else 24) * HOUR
    arrivals = along(rng, _curve(end, end, 0.5, 8), 60.0)
    items = Items(arrivals=arrivals, seconds=run_times(rng, 5, len(arrivals)))
    return Load(name="", jobs={"job": items}, policy=one_job(), end=end)


def slow_spin_up(*, short: bool) -> Load:
    """Jobs of 5 s along a curve of 2 h: 2/s to 12/s, on units that take 5 min to start."""
    rng = np.random.default_rng(6)
    end = (2 if short else 6) * HOUR
    arrivals = along(rng, _curve(end, 2 * HOUR, 2, 12), 60.0)
    items = Items(arrivals=arrivals, seconds=run_times(rng, 5, len(arrivals)))
    tier = TierPolicy(name="units", max_units=1_000, spin_up=300.0, slow_down=600.0)
    return Load(name="", jobs={"job": items}, policy=one_job(60, tier), end=end)


def preemption(*, short: bool) -> Load:
    """Jobs of 30 s, 2/s: 20 steady units, others live for 30 min; for 20 min there are no others."""
    rng = np.random.default_rng(7)
    end = (1 if short else 6) * HOUR
    arrivals = at_random(rng, 2, 0, end)
    gone = end / 2
    tiers = (
        TierPolicy(name="steady", max_units=20, spin_up=30.0, slow_down=300.0),
        TierPolicy(name="spot", max_units=200, spin_up=30.0, slow_down=300.0, preemptible=True),
        TierPolicy(name="dear", max_units=200, spin_up=60.0, slow_down=300.0),
    )
    deployment = DeploymentPolicy(name="job", jobs=("job",), tiers=tiers, steady_share=0.2)
    return Load(
        name="",
        jobs={"job": Items(arrivals=arrivals, seconds=run_times(rng, 30, len(arrivals)))},
        policy=Policy(jobs={"job": JobPolicy(age_target=60)}, deployments={"job": deployment}),
        end=end,
        jumps=(0.0, gone),
        lifetimes={("job", "spot"): 1800.0},
        away={("job", "spot"): ((gone, gone + 1200.0),)},
    )


def feeding(*, short: bool) -> Load:
    """Jobs of 2 s, 1/s, then 4/s; each adds 3 jobs of 4 s on average, which other units run."""
    rng = np.random.default_rng(8)
    end = (1 if short else 2) * HOUR
    jump = end / 2
    arrivals = np.sort(np.concatenate([at_random(rng, 1, 0, end), at_random(rng, 3, jump, end)]))
    first = Items(
        arrivals=arrivals,
        seconds=run_times(rng, 2, len(arrivals)),
        children={"b": rng.poisson(3, len(arrivals)).astype(float)},
    )
    second = Items(
        arrivals=np.zeros(0), seconds=np.zeros(0), child_seconds=run_times(rng, 4, 5 * len(arrivals))
    )
    policy = Policy(
        jobs={"a": JobPolicy(age_target=60, children={"b": 3.0}), "b": JobPolicy(age_target=60)},
        deployments={name: DeploymentPolicy(name=name, jobs=(name,), tiers=(TIER,)) for name in ("a", "b")},
    )
    return Load(name="", jobs={"a": first, "b": second}, policy=policy, end=end, jumps=(0.0, jump))


def several(*, short: bool) -> Load:
    """Three jobs in one deployment of 4 workers a unit: 200 ms, 10/s; 5 s, 2/s; 60 s, 0.2/s."""
    rng = np.random.default_rng(9)
    end = (0.5 if short else 2) * HOUR
    rates = {"small": (10.0, 0.2), "middle": (2.0, 5.0), "large": (0.2, 60.0)}
    jobs = {}
    for name, (rate, seconds) in rates.items():
        arrivals = at_random(rng, rate, 0, end)
        jobs[name] = Items(arrivals=arrivals, seconds=run_times(rng, seconds, len(arrivals)))
    tier = TierPolicy(name="units", max_units=250, workers_per_unit=4, spin_up=30.0, slow_down=300.0)
    deployment = DeploymentPolicy(name="all", jobs=tuple(rates), tiers=(tier,))
    policy = Policy(jobs={name: JobPolicy(age_target=60) for name in rates}, deployments={"all": deployment})
    return Load(name="", jobs=jobs, policy=policy, end=end)


def a_hundred_thousand(*, short: bool) -> Load:
    """100,000 jobs of 30 s at once, the run time given."""
    count = 10_000 if short else 100_000
    items = Items(arrivals=np.full(count, 60.0), seconds=run_times(np.random.default_rng(10), 30, count, 0))
    tier = TierPolicy(name="units", max_units=100_000, spin_up=30.0, slow_down=300.0)
    policy = one_job(60, tier)
    policy = Policy(jobs={"job": JobPolicy(age_target=60, service_time=30)}, deployments=policy.deployments)
    return Load(name="", jobs={"job": items}, policy=policy, end=900, jumps=(60.0,))


def one_item(*, short: bool) -> Load:
    """Nothing for hours, then one job of 30 s."""
    end = (1 if short else 6) * HOUR
    items = Items(arrivals=np.array([end - 1800.0]), seconds=np.array([30.0]))
    return Load(name="", jobs={"job": items}, policy=one_job(), end=end, jumps=(end - 1800.0,))


LOADS: dict[str, Callable[..., Load]] = {
    "steady, small": steady_small,
    "steady, large": steady_large,
    "a new queue": new_queue,
    "jobs of 1 ms": milliseconds,
    "jobs of 10 min": ten_minutes,
    "jobs of 1 h": an_hour,
    "unannounced jump": unannounced_jump,
    "bursts": bursts,
    "scheduled bursts": scheduled_bursts,
    "a day": daily,
    "slow spin-up": slow_spin_up,
    "pre-emption": preemption,
    "feeding queues": feeding,
    "several jobs": several,
    "100,000 at once": a_hundred_thousand,
    "one item": one_item,
}
