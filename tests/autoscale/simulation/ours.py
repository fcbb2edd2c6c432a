"""Our rule: the real `measure` and `plan`, given the counters of simulated queues."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from leasequeue.autoscale import TierUnits
from leasequeue.autoscale.arrivals import look_ahead, trial_of
from leasequeue.autoscale.measuring import measure
from leasequeue.autoscale.planning import plan
from tests.autoscale.measured_job import stats_of, worker_of
from tests.autoscale.simulation.rules import FIRST_PASS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasequeue.autoscale import Plan, Signals
    from leasequeue.queue import QueueStats, WorkerStats
    from tests.autoscale.simulation.load import Load
    from tests.autoscale.simulation.pool import Line, Pool, Run
    from tests.autoscale.simulation.rules import Requests
    from tests.autoscale.simulation.simulate import World

#: The ages of so many runs are known, as a registration has them.
AGES = 1_000
#: How many items a queue has done before, one a pass, and for how many passes it has then had none.
BEFORE, QUIET = 200, 180
#: After how many passes another copy of the loop continues.
RESTARTED = 10


class Ours:
    """`plan`, given what `measure` makes of the counters that a queue has.

    Now and then its memory becomes JSON and is read again, as it is between two copies of the loop.
    """

    every, first = 10.0, FIRST_PASS

    def __init__(self, log: Callable[[str], object] | None = None) -> None:
        self._log = log
        self._passes = 0
        self._memory: Mapping[str, Any] = {}
        self._measured: dict[str, Mapping[str, Any]] = {}

    def decide(self, world: World, now: float) -> Requests:
        """Do what one pass of the loop does."""
        if now == self.first and world.load.known_before:
            self._measured = {name: _before(world.load, name) for name in world.lines}
        seen: dict[str, Signals] = {}
        units: dict[tuple[str, str], TierUnits] = {}
        for name, pool in world.pools.items():
            ready = pool.workers_ready()
            for line in pool.lines:
                ahead = look_ahead(world.load.policy, line.name)
                trial = trial_of(world.load.policy, line.name)
                before = BEFORE if world.load.known_before else 0
                its = sample(line, pool, now, ahead, before)
                remembered = self._measured.get(line.name, {})
                signals, memory = measure(its, remembered, now, trial=trial)
                requested = sum(tier.requested * tier.policy.workers_per_unit for tier in pool.tiers)
                seen[line.name] = replace(signals, ready=ready, requested=requested)
                self._measured[line.name] = memory
            for tier in pool.tiers:
                units[name, tier.policy.name] = TierUnits(ready=len(tier.ready), requested=tier.requested)
        planned = plan(world.load.policy, seen, units, self._memory, now)
        self._memory = planned.memory
        self._passes += 1
        if self._passes % RESTARTED == 0:
            self._memory, self._measured = json.loads(json.dumps([self._memory, self._measured]))
        if self._log is not None:
            self._write(planned, now)
        numbers = {
            (name, tier.policy.name): (name, number)
            for name, pool in world.pools.items()
            for number, tier in enumerate(pool.tiers)
        }
        return {numbers[tier.deployment, tier.tier]: tier.wanted for tier in planned.tiers}

    def _write(self, planned: Plan, now: float) -> None:
        """Log what a pass saw and wants."""
        assert self._log is not None
        for job in planned.jobs:
            its = job.signals
            seconds = "?" if its.service_time is None else f"{its.service_time:.3g}"
            self._log(
                f"{now:8.1f} {job.job}: waiting {its.waiting} leased {its.leased} oldest {its.oldest_age:.1f}"
                f" rate {its.arrival_rate:.4g} trend {its.arrival_trend:.3g}"
                f" variation {its.arrival_variation:.2g} seconds {seconds} ({its.service_variation:.2g})"
                f" ready {its.ready} requested {its.requested} -> {job.answer.workers}: {job.answer.why}"
            )
        for tier in planned.tiers:
            if tier.wanted != tier.requested:
                self._log(
                    f"{now:8.1f} {tier.deployment}/{tier.tier}: ready {tier.ready}"
                    f" requested {tier.requested} -> {tier.wanted} ({tier.why})"
                )


def _before(load: Load, job: str) -> Mapping[str, Any]:
    """Return what is remembered of a queue that has done items before, the last of them long ago."""
    items = load.jobs[job]
    seconds = np.resize(np.concatenate([items.seconds, items.child_seconds]) / items.weight, BEFORE)
    memory: Mapping[str, Any] = {}
    for done, at in enumerate(np.arange(BEFORE + QUIET) * 10.0 - (BEFORE + QUIET) * 10.0):
        its = seconds[:done]
        worker = worker_of(
            id="before", items=len(its), seconds=float(its.sum()), squares=float((its**2).sum())
        )
        memory = measure(
            stats_of(waiting=0, leased=0, leases=len(its), workers=(worker,)), memory, float(at)
        ).memory
    return memory


def sample(line: Line, pool: Pool, now: float, look_ahead: float, before: int = 0) -> QueueStats:
    """Return the counters of a queue, as a server has them."""
    runs = pool.running(line)
    next_at = line.next_at()
    if line.reports is not None:
        workers = line.reports.look(pool.workers(), runs, now)
    else:
        workers = (_all_workers(line, pool, runs, now),)
    return stats_of(
        waiting=line.waiting(now),
        leased=len(runs) * line.weight,
        leases=len(line.begun) * line.weight + before,
        scheduled=(len(line.arrivals) - line.position) * line.weight if line.scheduled else 0,
        due_soon=line.due_within(now, look_ahead),
        oldest_age=max(0.0, now - next_at),
        workers=workers,
    )


def _all_workers(line: Line, pool: Pool, runs: Sequence[Run], now: float) -> WorkerStats:
    """Return what the workers of a queue have done, as if they were one."""
    return worker_of(
        id="all",
        items=line.ended * line.weight,
        seconds=line.ran_seconds,
        squares=line.ran_squares,
        concurrency=pool.workers_ready(),
        running=tuple((now - run.start) % (run.seconds / line.weight) for run in runs[:AGES]),
    )
