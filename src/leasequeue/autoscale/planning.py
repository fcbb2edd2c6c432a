"""The plan of one pass: from what is known of all jobs and tiers to the units that are asked for.

A pure function. The answer for each job is `wanted_workers`; here are what jobs have to do with each other:
they feed each other and share deployments, whose tiers are asked for whole units.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.autoscale.answer import wanted_workers
from leasequeue.autoscale.feeding import Feeder, fed, in_order
from leasequeue.autoscale.model import Answer, JobPolicy, JobReport, Plan, Signals
from leasequeue.autoscale.pooling import PooledJob, pooled, shares, side_by_side
from leasequeue.autoscale.tiers import PlanMemory, TierMemory, Tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasequeue.autoscale.model import DeploymentPolicy, Policy, TierReport, TierUnits

#: Counts, rates and times above it are taken for it.
_MAXIMUM = 1e12


def plan(
    policy: Policy,
    seen: Mapping[str, Signals],
    units: Mapping[tuple[str, str], TierUnits],
    memory: Mapping[str, object],
    now: float,
) -> Plan:
    """Return how many units to ask of each tier, and the memory for the next pass.

    Args:
        policy: What is wished.
        seen: What is known of each job. The deployment of a job that is left out, since its queue could not
            be read, is not asked for fewer units than before.
        units: What the back ends say, by the names of deployment and tier. A tier that is left out, or whose
            numbers are None, keeps what it was asked for.
        memory: What the last plan gave, empty at first. One that is not understood counts as empty.
        now: The present (s), by a clock that all copies share. If it went back, no time has passed.
    """
    return _Pass(policy, seen, units, memory, now).plan()


class _Pass:
    """One pass, with what is found out on the way."""

    def __init__(
        self,
        policy: Policy,
        seen: Mapping[str, Signals],
        units: Mapping[tuple[str, str], TierUnits],
        memory: Mapping[str, object],
        now: float,
    ) -> None:
        self._policy = policy
        self._seen = {name: _sound(signals) for name, signals in seen.items() if name in policy.jobs}
        known = PlanMemory.read(memory)
        self._old = known.jobs
        self._tiers: dict[str, Tiers] = {}
        self._jobs_of: dict[str, list[str]] = {}
        self._home: dict[str, str] = {}
        for name in sorted(policy.deployments):
            deployment = policy.deployments[name]
            self._tiers[name] = Tiers(deployment, units, known.tiers.get(name, {}), now)
            self._jobs_of[name] = self._jobs_in(deployment)
        self._answers: dict[str, Answer] = {}
        self._feeders: dict[str, Feeder] = {}
        self._parents: dict[str, list[tuple[str, float]]] = {}
        self._shares: dict[str, int] = {}
        for name in self._tiers:
            self._divide(name)

    def plan(self) -> Plan:
        """Answer for each job, parents first, then ask the tiers of each deployment."""
        children = {name: self._children(name) for name in self._policy.jobs}
        for name, averages in children.items():
            for child, average in averages.items():
                self._parents.setdefault(child, []).append((name, average))
        for name in in_order(children):
            self._answers[name] = self._answer(name)
        requests: list[TierReport] = []
        memory: dict[str, dict[str, TierMemory]] = {}
        for name, tiers in self._tiers.items():
            keep = any(job not in self._seen for job in self._jobs_of[name])
            asked, memory[name] = tiers.ask(self._together(name), keep=keep)
            requests += asked
        workers = {name: answer.workers for name, answer in sorted(self._answers.items())}
        return Plan(
            jobs=tuple(
                JobReport(
                    job=name,
                    signals=self._seen.get(name, Signals()),
                    answer=self._answers[name],
                    share=self._shares.get(name, 0),
                )
                for name in sorted(self._policy.jobs)
            ),
            tiers=tuple(requests),
            memory=msgspec.to_builtins(PlanMemory(jobs=workers, tiers=memory)),
        )

    def _jobs_in(self, deployment: DeploymentPolicy) -> list[str]:
        """Return the jobs of a deployment; a job that several have is that of the first one."""
        jobs = [
            name
            for name in dict.fromkeys(deployment.jobs)
            if name in self._policy.jobs and name not in self._home
        ]
        self._home.update(dict.fromkeys(jobs, deployment.name))
        return jobs

    def _children(self, name: str) -> dict[str, float]:
        """Return how many items of other jobs an item of a job adds, as wished or as measured."""
        measured = self._seen[name].children if name in self._seen else {}
        averages = {
            child: measured.get(child, 0.0) if average is None else average
            for child, average in self._policy.jobs[name].children.items()
            if child in self._policy.jobs and child != name
        }
        return {child: average for child, average in averages.items() if 0 < average < math.inf}

    def _divide(self, name: str) -> None:
        """Divide the workers of a deployment among its jobs, by the work that each has."""
        tiers, jobs = self._tiers[name], self._jobs_of[name]
        known = [job for job in jobs if job in self._seen]
        ready, more, coming = tiers.ready, tiers.requested, tiers.coming
        if not tiers.known:  # no back end ever said: then by the workers that serve the queues
            ready = max((self._seen[job].ready for job in known), default=0)
            more = max((self._seen[job].requested for job in known), default=0)
            coming = float(ready)
        members = {job: _member(self._seen[job], self._policy.jobs[job]) for job in known}
        work = [members[job].begun * members[job].service_time if job in members else 0.0 for job in jobs]
        whole = math.fsum(work)
        for job, part, asked, load in zip(jobs, shares(ready, work), shares(more, work), work, strict=True):
            self._shares[job] = part
            if job in self._seen:
                average = coming * (load / whole if whole > 0 else 1 / len(jobs))
                self._seen[job] = replace(
                    self._seen[job], ready=part, requested=max(part, asked), coming=average
                )

    def _steps(self, job: str) -> Sequence[tuple[float, int]]:
        """Return the spin-up times of the tiers that do the work of a job, each with the workers so far."""
        return self._tiers[self._home[job]].steps if job in self._home else ()

    def _answer(self, name: str) -> Answer:
        """Return how many workers a job needs, and note what it will add for its children."""
        if name not in self._seen:
            return Answer(workers=self._old.get(name, 0), why="its queue could not be read: as before")
        policy, steps = self._policy.jobs[name], self._steps(name)
        answer, spin_up = _by_tiers(
            lambda spin_up: self._wanted(self._fed(name, spin_up), policy, spin_up), steps
        )
        signals = self._fed(name, spin_up)
        rise = signals.arrival_rate - self._seen[name].arrival_rate
        if rise > 0:
            answer = replace(answer, why=f"{answer.why}; other jobs will add {rise:,.4g} items/s")
        service_time = _service_time(signals, policy)
        if service_time is not None:
            capacity = steps[-1][1] if steps else math.inf
            self._feeders[name] = Feeder(
                signals=signals,
                service_time=service_time,
                ready=signals.ready,
                future=max(min(answer.workers, capacity), signals.requested),
                spin_up=spin_up,
            )
        return answer

    def _wanted(self, signals: Signals, policy: JobPolicy, spin_up: float) -> Answer:
        return wanted_workers(signals, policy, spin_up=spin_up, every=self._policy.every)

    def _fed(self, name: str, spin_up: float) -> Signals:
        """Return the signals of a job with what other jobs will add."""
        feeders = [
            (self._feeders[parent], average)
            for parent, average in sorted(self._parents.get(name, ()))
            if parent in self._feeders
        ]
        return fed(self._seen[name], feeders, spin_up, self._policy.jobs[name].age_target)

    def _together(self, name: str) -> int:
        """Return how many workers the jobs of a deployment need together."""
        jobs = self._jobs_of[name]
        alone = sum(self._answers[job].workers for job in jobs)
        shared = [
            job
            for job in jobs
            if job in self._seen
            and self._answers[job].workers > 0
            and self._seen[job].limit is None
            and _service_time(self._seen[job], self._policy.jobs[job]) is not None
        ]
        if len(shared) < 2:
            return alone
        rest = alone - sum(self._answers[job].workers for job in shared)

        def answer(spin_up: float) -> Answer:
            members = [_member(self._fed(job, spin_up), self._policy.jobs[job]) for job in shared]
            signals, policy = pooled(members)
            return self._wanted(signals, policy, spin_up)

        together, spin_up = _by_tiers(answer, self._tiers[name].steps)
        members = [_member(self._fed(job, spin_up), self._policy.jobs[job]) for job in shared]
        return rest + max(1, min(alone - rest, together.workers), side_by_side(members, spin_up))


def _by_tiers(ask: Callable[[float], Answer], steps: Sequence[tuple[float, int]]) -> tuple[Answer, float]:
    """Return the answer for the spin-up time of the tier that will be the last one in use, and that time.

    What the tiers before it can do is needed in any case.
    """
    before = 0
    answer, used = Answer(workers=0), 0.0
    for spin_up, capacity in [step for step in steps if step[1] > 0] or [(0.0, 0)]:
        if before and capacity == before:
            continue
        answer, used = ask(spin_up), spin_up
        if answer.workers < before:
            answer = replace(answer, workers=before)
        if answer.workers <= capacity:
            break
        before = capacity
    return answer, used


def _member(signals: Signals, policy: JobPolicy) -> PooledJob:
    """Return a job as a member of a deployment; a service time that is not known counts as a second."""
    return PooledJob(signals=signals, policy=policy, service_time=_service_time(signals, policy) or 1.0)


def _service_time(signals: Signals, policy: JobPolicy) -> float | None:
    """Return how long an item of a job takes (s), None if that is not known."""
    time = signals.service_time if policy.service_time is None else policy.service_time
    return time if time is not None and 0 < time < math.inf else None


def _sound(signals: Signals) -> Signals:
    """Return the signals with numbers that can be calculated with: those that are not count as not known."""
    changes: dict[str, Any] = {}
    for field in fields(signals):
        value = getattr(signals, field.name)
        if not isinstance(value, int | float):
            continue
        if not math.isfinite(value) or (value < 0 and field.name != "arrival_trend"):
            changes[field.name] = field.default
        elif value > _MAXIMUM:
            changes[field.name] = type(value)(_MAXIMUM)
    return replace(signals, **changes) if changes else signals
