"""Other rules: that of redis-work-queue's autoscaler, and KEDA's by the length."""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from leasequeue.autoscale import TierPolicy
    from tests.autoscale.simulation.pool import Line, Pool, Tier
    from tests.autoscale.simulation.simulate import World

    Requests = dict[tuple[str, int], int]

#: When the first pass is (s), so that passes and jumps are not in step.
FIRST_PASS = 3.7


def in_order(
    name: str, tiers: Sequence[Tier], wanted: Callable[[Tier], int]
) -> Iterator[tuple[tuple[str, int], int]]:
    """Fill tiers one after the other: each is asked for what it wants beyond the workers of those before."""
    before = 0
    for number, tier in enumerate(tiers):
        policy = tier.policy
        units = ceil(max(0, wanted(tier) - before) / policy.workers_per_unit)
        units = max(policy.min_units, min(policy.max_units, units))
        before += units * policy.workers_per_unit
        yield (name, number), units


def _always(workers: int) -> Callable[[Tier], int]:
    return lambda _: workers


class Window:
    """The largest of the values of a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, int]] = deque()

    def largest(self, now: float, value: int) -> int:
        """Add a value; return the largest."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now, value))
        while self._values[0][0] < now - self._seconds:
            self._values.popleft()
        return self._values[0][1]


class Seed:
    """The rule of redis-work-queue's autoscaler (version 0.3), in correct arithmetic.

    Enough workers to end what waits and runs within the target, now and after the spin-up; nothing for the
    rate at which items come, except those of jobs that feed it. It gets the true run times and children.
    """

    every, first = 10.0, FIRST_PASS
    _int: Callable[[float], int] = staticmethod(int)

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self._windows: dict[tuple[str, str], Window] = {}

    def decide(self, world: World, now: float) -> Requests:
        """Do one pass: jobs in the order in which they feed each other."""
        found: Requests = {}
        incoming = dict.fromkeys(world.lines, 0.0)
        for name, pool in world.pools.items():
            ready = pool.workers_ready()
            asked = sum(tier.requested * tier.policy.workers_per_unit for tier in pool.tiers)
            share = 1 / len(pool.lines)

            def ideal(tier: Tier, pool: Pool = pool, ready: int = ready, share: float = share) -> int:
                return sum(
                    self._ideal(world, line, pool, tier.policy, ready * share, incoming[line.name], now)
                    for line in pool.lines
                )

            def wanted(tier: Tier, name: str = name, ideal: Callable[[Tier], int] = ideal) -> int:
                key = (name, tier.policy.name)
                window = self._windows.setdefault(key, Window(tier.policy.slow_down))
                return window.largest(now, ideal(tier))

            found |= dict(in_order(name, pool.tiers, wanted))
            for line in pool.lines:
                policy = pool.tiers[0].policy
                target = world.load.policy.jobs[line.name].age_target
                rate = share * (3 * ready + asked) / (4 * self._seconds[line.name])
                rate = min(rate, incoming[line.name] + _length(line, pool, now) / (policy.spin_up + target))
                for child, counts in world.load.jobs[line.name].children.items():
                    incoming[child] += rate * float(np.mean(counts))
        return found

    def _ideal(
        self,
        world: World,
        line: Line,
        pool: Pool,
        tier: TierPolicy,
        ready: float,
        incoming: float,
        now: float,
    ) -> int:
        seconds, target = self._seconds[line.name], world.load.policy.jobs[line.name].age_target
        length = _length(line, pool, now)
        done = self._int(tier.spin_up * 1000 * ready) / (seconds * 1000)
        later = max(0, length - int(done)) + int(incoming * tier.spin_up)
        ideal = max(self._for(length, seconds, target), self._for(later, seconds, target))
        return max(ideal, 1) if length or incoming else 0

    def _for(self, length: int, seconds: float, target: float) -> int:
        """Return the workers that end so many items within the target, in milliseconds."""
        if not length:
            return 0
        work = self._int(length * max(1, round(seconds * 1000)))
        return int((work - 1) / round(target * 1000)) + 1


def _length(line: Line, pool: Pool, now: float) -> int:
    return line.waiting(now) + len(pool.running(line)) * line.weight


class SeedInt32(Seed):
    """The same as it is: in whole milliseconds of 32 bits, which overflow."""

    @staticmethod
    def _int(value: float) -> int:
        return (int(value) + 2**31) % 2**32 - 2**31


class Keda:
    """KEDA with a scaler by the length, and the HorizontalPodAutoscaler that it makes, with their defaults.

    `ceil(waiting / value)` units. The value is the best that the length allows: how many items one unit ends
    within the target, with the true run times. With several jobs, the one that wants most decides.
    The autoscaler asks every 15 s, changes nothing within 10 % of its wish, at most doubles (or adds 4) each
    time, and takes the largest of 5 min. KEDA goes from 0 to 1 when anything waits, and to 0 when nothing
    has waited for 5 min. It scales one workload: the tiers are filled in order.
    """

    every, first = 15.0, FIRST_PASS
    window = cooldown = 300.0
    tolerance = 0.1

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = seconds
        self._windows: dict[str, Window] = {}
        self._active_at: dict[str, float] = {}

    def decide(self, world: World, now: float) -> Requests:
        """Do one sync of the autoscaler."""
        found: Requests = {}
        for name, pool in world.pools.items():
            per_unit = pool.tiers[0].policy.workers_per_unit
            current = sum(tier.requested for tier in pool.tiers)
            if any(line.waiting(now) for line in pool.lines):
                self._active_at[name] = now
            wanted = max(self._wanted(world, line, per_unit, current, now) for line in pool.lines)
            window = self._windows.setdefault(name, Window(self.window))
            wanted = max(wanted, min(current, window.largest(now, wanted)))
            wanted = max(1, min(wanted, max(2 * current, current + 4)))
            if now - self._active_at.get(name, -self.cooldown) >= self.cooldown:
                wanted = 0
            elif not current:
                wanted = 1
            found |= dict(in_order(name, pool.tiers, _always(wanted * per_unit)))
        return found

    def _wanted(self, world: World, line: Line, per_unit: int, current: int, now: float) -> int:
        target = world.load.policy.jobs[line.name].age_target
        value = max(1.0, per_unit * target / self._seconds[line.name])
        units = line.waiting(now) / value
        if current and abs(units / current - 1) <= self.tolerance:
            return current
        return ceil(units)
