"""Run a load under a rule, with a clock that is moved."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tests.autoscale.simulation.pool import Line, Pool, Tier
from tests.autoscale.simulation.reports import Reports

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tests.autoscale.simulation.load import Items, Load, Times

#: Of the random numbers of the platform.
SEED = 7


class Rule(Protocol):
    """What decides how many units there are."""

    #: The time between two passes, and of the first (s).
    every: float
    first: float

    def decide(self, world: World, now: float) -> Mapping[tuple[str, int], int]:
        """Return the units to ask for, by deployment and number of the tier."""
        ...


@dataclass
class World:
    """The queues and the workers of a load."""

    load: Load
    lines: dict[str, Line] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(SEED)
        for name, items in self.load.jobs.items():
            self.lines[name] = Line(
                name,
                items.arrivals.tolist(),
                items.seconds.tolist(),
                items.weight,
                items.scheduled,
                crowd=items.crowd,
                reports=Reports(self.load.heartbeat) if self.load.heartbeat else None,
            )
        for name, items in self.load.jobs.items():
            if items.children:
                self.lines[name].spawn = self._spawning(items)
        for name, deployment in self.load.policy.deployments.items():
            tiers = [
                Tier(
                    policy,
                    self.load.lifetimes.get((name, policy.name), inf),
                    self.load.away.get((name, policy.name), ()),
                    self.load.spin_up_spread,
                )
                for policy in deployment.tiers
            ]
            lines = [self.lines[job] for job in deployment.jobs]
            self.pools[name] = Pool(lines, tiers, random.standard_exponential, self.load.restarts)

    def _spawning(self, items: Items) -> Callable[[int, float], None]:
        """Return what adds the children of an item. Their run times are those of the other job, in order."""
        counts = {job: its.astype(int).tolist() for job, its in items.children.items()}
        seconds = {job: self.load.jobs[job].child_seconds.tolist() for job in counts}
        used = dict.fromkeys(counts, 0)

        def spawn(number: int, at: float) -> None:
            for job, its in counts.items():
                for _ in range(its[number % len(its)]):
                    one = seconds[job][used[job] % len(seconds[job])]
                    used[job] += 1
                    heapq.heappush(self.lines[job].added, (at, one))

        return spawn


@dataclass(frozen=True)
class Outcome:
    """What came of a load under a rule."""

    load: Load
    #: By job: when each item came to wait, and when it began; infinite: not until the end.
    came: Mapping[str, Times]
    begun: Mapping[str, Times]
    #: By deployment: the worker-seconds.
    pools: Mapping[str, float]
    #: How often the requested units of a tier were changed, in all.
    requests: int
    #: The time of each pass, the workers that were ready, and the items that waited.
    at: Times
    ready: Times
    waiting: Times

    def waits(self, job: str) -> Times:
        """Return the waits that count, of the items that should have begun by the end (s)."""
        known = self.load.known(job, self.came[job])
        waits = np.maximum(self.begun[job] - known, 0.0)
        target = self.load.policy.jobs[job].age_target
        return waits[(waits < inf) | (known + target < self.load.end)]

    @property
    def worker_seconds(self) -> float:
        """For how many seconds workers were there in all."""
        return sum(self.pools.values())

    def within(self, jobs: Collection[str] = ()) -> float:
        """Return the share of items that began within the target: of some jobs, or of all."""
        met = total = 0
        for job in jobs or self.came:
            waits = self.waits(job)
            weight = self.load.jobs[job].weight
            met += weight * int(np.count_nonzero(waits <= self.load.policy.jobs[job].age_target))
            total += weight * len(waits)
        return met / total if total else 1.0

    def worst_job(self) -> float:
        """Return the same share, of the job that has the lowest."""
        waits = {job: self.waits(job) for job in self.came}
        targets = {job: self.load.policy.jobs[job].age_target for job in waits}
        return min(
            (float(np.mean(its <= targets[job])) for job, its in waits.items() if len(its)), default=1.0
        )

    def longest(self) -> float:
        """Return the longest wait (s), counted from when the item came to wait."""
        return max(
            float(np.max(np.minimum(self.begun[job], self.load.end) - self.came[job], initial=0.0))
            for job in self.came
        )

    def requests_per_hour(self) -> float:
        """Return how often the requested units were changed, per hour."""
        return self.requests * 3600 / self.load.end


def simulate(load: Load, rule: Rule) -> Outcome:
    """Run a load from its start to its end. A new rule is needed for each call, as rules have memory."""
    world = World(load)
    history: list[tuple[float, int, int]] = []
    now, next_pass = 0.0, rule.first
    while now < load.end:
        happens = min(pool.next_event(now) for pool in world.pools.values())
        now = min(next_pass, happens, load.end)
        for pool in world.pools.values():  # those that feed others come first
            pool.advance(now)
            pool.happen(now)
        if now == next_pass:
            for (deployment, tier), units in rule.decide(world, now).items():
                world.pools[deployment].request(tier, units, now)
            for pool in world.pools.values():
                pool.happen(now)
            next_pass = now + rule.every
            ready = sum(pool.workers_ready() for pool in world.pools.values())
            history.append((now, ready, sum(line.waiting(now) for line in world.lines.values())))
    never = {
        name: np.array([at for at in line.never_begun() if at < load.end])
        for name, line in world.lines.items()
    }
    at, ready_then, waited = np.array(history, dtype=float).T
    return Outcome(
        load=load,
        came={name: np.concatenate([np.array(line.came), never[name]]) for name, line in world.lines.items()},
        begun={
            name: np.concatenate([np.array(line.begun), np.full(len(never[name]), inf)])
            for name, line in world.lines.items()
        },
        pools={name: pool.worker_seconds(load.end) for name, pool in world.pools.items()},
        requests=sum(tier.requests for pool in world.pools.values() for tier in pool.tiers),
        at=at,
        ready=ready_then,
        waiting=waited,
    )
