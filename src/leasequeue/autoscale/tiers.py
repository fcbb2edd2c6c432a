"""How many units of each tier of one deployment to ask for, given how many workers it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import structs

from leasequeue.autoscale.delivery import TierMemory, delivered
from leasequeue.autoscale.model import TierReport
from leasequeue.autoscale.windows import Window
from leasequeue.describing import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.autoscale.delivery import TierDelivery
    from leasequeue.autoscale.model import DeploymentPolicy, TierPolicy, TierUnits

#: A change by this share of what was asked for is not worth a request.
SMALL = 0.025


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many units a tier may have."""

    minimum: int
    maximum: int
    workers_per_unit: int = 1
    preemptible: bool = False


def fill(workers: int, rooms: Sequence[Room], steady_share: float = 0.0) -> list[int]:
    """Return how many units of each tier it takes for so many workers.

    Each tier has its minimum. The tiers that are not pre-emptible are filled first until they have
    `steady_share` of the workers, then all tiers in their order. What the former have no room for is placed
    on pre-emptible ones, since work that may be interrupted is better than none.
    """
    units = [min(room.minimum, room.maximum) for room in rooms]
    steady = [i for i, room in enumerate(rooms) if not room.preemptible]
    share = min(1.0, max(0.0, steady_share))
    for need, among in ((math.ceil(share * workers - 1e-9), steady), (workers, list(range(len(rooms))))):
        rest = need - sum(units[i] * rooms[i].workers_per_unit for i in among)
        for i in among:
            if rest > 0:
                added = min(rooms[i].maximum - units[i], math.ceil(rest / rooms[i].workers_per_unit))
                units[i] += added
                rest -= added * rooms[i].workers_per_unit
    return units


class Tiers:
    """The tiers of one deployment in one pass."""

    def __init__(
        self,
        policy: DeploymentPolicy,
        units: Mapping[tuple[str, str], TierUnits],
        memory: Mapping[str, TierMemory],
        now: float,
    ) -> None:
        self.policy = policy
        self._seen = [units.get((policy.name, tier.name)) for tier in policy.tiers]
        self._memory = [memory.get(tier.name, TierMemory()) for tier in policy.tiers]
        self._now = now
        self._tiers = [
            delivered(_checked(tier), seen, old, now)
            for tier, seen, old in zip(policy.tiers, self._seen, self._memory, strict=True)
        ]

    @property
    def known(self) -> bool:
        """Whether the number of ready units of any tier is known."""
        return any(tier.ready is not None for tier in self._tiers)

    @property
    def ready(self) -> int:
        """The workers that are ready."""
        return sum(tier.workers for tier in self._tiers)

    @property
    def requested(self) -> int:
        """The workers that are ready or have been asked for; what is overdue does not count."""
        return sum(tier.workers_asked for tier in self._tiers)

    @property
    def coming(self) -> float:
        """The workers that work until those that are asked for now are ready, on average."""
        return math.fsum(tier.workers_coming for tier in self._tiers)

    @property
    def present(self) -> int:
        """The workers that have been asked for; where that is not known, those that are ready."""
        return sum(
            (tier.ready or 0 if tier.asked is None else tier.asked) * tier.policy.workers_per_unit
            for tier in self._tiers
        )

    @property
    def steps(self) -> list[tuple[float, int]]:
        """The spin-up time of each tier (s), and the workers that it and the tiers before it can have."""
        steps, capacity = [], 0
        for tier in self._tiers:
            capacity += tier.policy.max_units * tier.policy.workers_per_unit
            steps.append((tier.policy.spin_up, capacity))
        return steps

    def ask(self, workers: int, *, keep: bool = False) -> tuple[list[TierReport], dict[str, TierMemory]]:
        """Return what to ask of each tier, and the memory for the next pass.

        Args:
            workers: How many workers are needed.
            keep: Whether no tier is asked for fewer units than before, since not all is known.
        """
        requests: list[TierReport] = []
        memory: dict[str, TierMemory] = {}
        for i, tier in enumerate(self._tiers):
            most, least = self._windows(i, workers)
            wanted, why = self._wanted(i, most.value(), least.value(), workers)
            if keep and wanted < (kept := _within(tier.policy, tier.asked or 0)):
                wanted, why = kept, f"{why}; not fewer than before, since a queue could not be read"
            seen = self._seen[i]
            requests.append(
                TierReport(
                    deployment=self.policy.name,
                    tier=tier.policy.name,
                    ready=seen.ready if seen else None,
                    requested=seen.requested if seen else None,
                    wanted=wanted,
                    why=why,
                )
            )
            memory[tier.policy.name] = structs.replace(
                tier.memory(wanted), most=most.slots, least=least.slots
            )
        return requests, memory

    def _windows(self, i: int, workers: int) -> tuple[Window, Window]:
        """Return the most and the least that was wanted within the windows of a tier. Workers.

        Where nothing is known, for instance after a first start, what there is counts as what was wanted.
        """
        policy, memory = self._tiers[i].policy, self._memory[i]
        most = Window(policy.slow_down, memory.most, now=self._now, choose=max)
        least = Window(policy.slow_up, memory.least, now=self._now, choose=min)
        for window in (most, least):
            if window.empty:
                window.add(self.present)
            window.add(workers)
        return most, least

    def _wanted(self, i: int, most: int, least: int, workers: int) -> tuple[int, str]:
        """Return how many units of a tier to ask for, and why."""
        tier = self._tiers[i]
        policy = tier.policy
        if tier.failed and tier.asked is not None:
            return _within(policy, tier.asked), "the back end did not answer: what was asked for before"
        low, high = self._units(least)[i], self._units(most)[i]
        wanted = min(max(tier.asked or 0, low), high)
        if tier.asked and abs(wanted - tier.asked) <= SMALL * tier.asked:
            wanted = tier.asked
        wanted = _within(policy, wanted)
        now = self._units(workers)[i]
        why = f"for {counted(workers, 'worker')}"
        if wanted > now:
            stay = counted(wanted - now, "unit")
            why += f"; {stay} more until fewer have been enough for {policy.slow_down:g} s"
        elif wanted < now:
            wait = counted(now - wanted, "unit")
            why += f"; {wait} fewer until more have been needed for {policy.slow_up:g} s"
        elif covers := [t.policy.name for t in self._tiers if t.overdue and t is not tier]:
            more = now - fill(workers, [_room(t) for t in self._tiers], self.policy.steady_share)[i]
            why += f": {more} of them in place of {', '.join(covers)}" if more > 0 else ""
        if workers > (capacity := self.steps[-1][1]):
            why += f"; the tiers may have {capacity:,} together"
        if tier.overdue:
            why += f"; {tier.overdue} are overdue, and covered by other tiers"
        return wanted, why

    def _units(self, workers: int) -> list[int]:
        """Return how many units of each tier it takes for so many workers. Others cover what is overdue."""
        rooms = [_room(tier) for tier in self._tiers]
        whole = fill(workers, rooms, self.policy.steady_share)
        if not any(tier.overdue for tier in self._tiers):
            return whole
        left = [
            _usable(tier, room, n) if tier.overdue else room
            for tier, room, n in zip(self._tiers, rooms, whole, strict=True)
        ]
        covered = fill(workers, left, self.policy.steady_share)
        return [
            n if tier.overdue else more for tier, n, more in zip(self._tiers, whole, covered, strict=True)
        ]


def _checked(policy: TierPolicy) -> TierPolicy:
    """Return the policy of a tier with numbers that can be calculated with."""
    most = max(0, policy.max_units)
    return replace(
        policy,
        max_units=most,
        min_units=min(most, max(0, policy.min_units)),
        workers_per_unit=max(1, policy.workers_per_unit),
        spin_up=policy.spin_up if policy.spin_up > 0 and math.isfinite(policy.spin_up) else 0.0,
    )


def _room(tier: TierDelivery) -> Room:
    """Return how many units a tier may have; one whose back end failed has what it was asked for."""
    policy = tier.policy
    fixed = _within(policy, tier.asked) if tier.failed and tier.asked is not None else None
    return Room(
        minimum=policy.min_units if fixed is None else fixed,
        maximum=policy.max_units if fixed is None else fixed,
        workers_per_unit=policy.workers_per_unit,
        preemptible=policy.preemptible,
    )


def _usable(tier: TierDelivery, room: Room, units: int) -> Room:
    """Return how many units a tier counts with that is asked for so many, and some of whose are overdue."""
    usable = tier.usable(units)
    return replace(room, minimum=min(room.minimum, usable), maximum=usable)


def _within(policy: TierPolicy, units: int) -> int:
    return min(max(units, policy.min_units), policy.max_units)
