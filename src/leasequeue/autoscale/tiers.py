"""How many units of each tier of one deployment to ask for, given how many workers it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, structs

from leasequeue.autoscale.model import TierReport
from leasequeue.errors.describing import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from leasequeue.autoscale.model import DeploymentPolicy, TierPolicy, TierUnits

#: The slots of one window: what is kept is held for up to an eighth longer than the window.
SLOTS = 8


class Window:
    """The largest or smallest number of workers that was wanted within the last `length` seconds.

    It is divided into `SLOTS` slots of time. For each slot one number is kept, and only where it decides: a
    largest number hides the smaller ones before it. A number counts from its pass until its slot has left the
    window: for at least the length of the window, and for at most one slot longer.
    """

    def __init__(
        self,
        length: float,
        slots: Sequence[tuple[float, int]],
        *,
        now: float,
        choose: Callable[[int, int], int],
    ) -> None:
        self._choose = choose
        self._width = length / SLOTS if 1e-3 < length < math.inf else 0.0
        self._slot = int(now // self._width) if self._width else 0
        first = self._slot - SLOTS
        kept = [(int(slot), n) for slot, n in slots if first <= slot <= self._slot] if self._width else []
        self._slots = sorted(kept)

    @property
    def empty(self) -> bool:
        """Whether this is a window of which nothing is known yet."""
        return self._width > 0 and not self._slots

    def add(self, workers: int) -> None:
        """Add what is wanted now."""
        while self._slots and self._choose(self._slots[-1][1], workers) == workers:
            self._slots.pop()
        if not self._slots or self._slots[-1][0] < self._slot:
            self._slots.append((self._slot, workers))

    def value(self) -> int:
        """Return the largest, or smallest, number within the window."""
        return self._slots[0][1]

    @property
    def slots(self) -> list[tuple[int, int]]:
        """What the next pass is to be given."""
        return self._slots if self._width else []


#: Units that began to be missing within this part of a spin-up time are one group, as of the first of them.
GROUP = 0.25
#: A group that is missing for longer than so many spin-up times is overdue, its last unit for `GROUP` less.
LATE_AFTER = 2 + GROUP
#: The share of what was asked for that may be overdue before other tiers cover it.
TOLERATED = 0.05


_Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
_Count = Annotated[int, Meta(ge=0)]
_Pairs = list[tuple[_Number, _Count]]


class TierMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pass is given of a tier by the one before; at first, nothing is known."""

    #: The units that were asked for, and those that were ready.
    asked: _Count | None = None
    ready: _Count | None = None
    #: As in `TierDelivery`.
    missing: _Pairs = []
    at: _Number | None = None
    #: What was wanted within the windows of the tier: see `Window`.
    most: _Pairs = []
    least: _Pairs = []


class PlanMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan gives to that of the next pass: the workers of jobs, and the tiers of deployments."""

    jobs: dict[str, _Count] = {}
    tiers: dict[str, dict[str, TierMemory]] = {}

    @classmethod
    def read(cls, memory: object) -> PlanMemory:
        """Return a memory from its JSON values, which may be of an older version, or damaged: then none."""
        try:
            return msgspec.convert(memory, cls)
        except (msgspec.ValidationError, RecursionError):
            return cls()


@dataclass(frozen=True, kw_only=True)
class TierDelivery:
    """What one tier was asked for, what it has, and what it lacks. Units."""

    policy: TierPolicy
    #: What the last pass asked for, else what the back end says was asked for; None: nothing is known.
    asked: int | None
    #: What is ready, as far as is known; None: nothing is known.
    ready: int | None
    #: Whether the back end could say nothing in this pass.
    failed: bool
    #: Groups of missing units: since when, and how many. The oldest first.
    missing: tuple[tuple[float, int], ...]
    #: When the back end last said something (s).
    at: float

    @property
    def overdue(self) -> int:
        """How many units are missing for longer than twice the spin-up time.

        A few of many do not count: units of some platforms come and go all the time.
        """
        late = sum(n for since, n in self.missing if self.at - since > LATE_AFTER * self.policy.spin_up)
        return late if late > TOLERATED * (self.asked or 0) else 0

    def usable(self, wanted: int) -> int:
        """Return how many units to count with if so many are asked for.

        Those that are overdue do not count. If they are more than those that are ready, nothing else that is
        asked for counts, either.
        """
        if self.overdue > (self.ready or 0):
            return min(wanted, self.ready or 0)
        return min(wanted, max(wanted, self.asked or 0) - self.overdue)

    @property
    def workers(self) -> int:
        """How many workers are ready."""
        return (self.ready or 0) * self.policy.workers_per_unit

    @property
    def workers_asked(self) -> int:
        """How many workers are ready or asked for, those left out that are overdue."""
        missing = sum(n for _, n in self.missing)
        return self.workers + (missing - self.overdue) * self.policy.workers_per_unit

    @property
    def workers_coming(self) -> float:
        """How many workers work within the next spin-up time, on average; none of those that are overdue.

        A unit that is halfway through its spin-up works for half of that time.
        """
        coming = 0.0
        for since, n in self.missing:
            passed = max(0.0, self.at - since)
            if passed <= LATE_AFTER * self.policy.spin_up:
                coming += n * (min(1.0, passed / self.policy.spin_up) if self.policy.spin_up > 0 else 1.0)
        return self.workers + coming * self.policy.workers_per_unit

    def memory(self, wanted: int) -> TierMemory:
        """Return what the next pass is to be given, when `wanted` units are asked for."""
        missing = [*self.missing]
        if self.ready is not None:
            missing = _missing(missing, wanted - self.ready, self.at, self.policy.spin_up)
        return TierMemory(asked=wanted, at=self.at, ready=self.ready, missing=missing)


def delivered(policy: TierPolicy, units: TierUnits | None, memory: TierMemory, now: float) -> TierDelivery:
    """Return what a tier delivered, from what its back end says now and from what was known before.

    A unit is missing from the pass that asks for it, or from the first pass that sees that it was lost. What
    becomes ready is what is missing the longest. What the last pass asked for decides, not what the back end
    has been asked for: it does not deliver a request that never reached it, either.
    """
    asked, at = memory.asked, memory.at
    missing = [(min(since, now), n) for since, n in memory.missing if n > 0]
    ready, requested = (units.ready, units.requested) if units else (None, None)
    failed = ready is None and requested is None
    ready = memory.ready if ready is None else max(0, ready)
    if asked is None and requested is not None:
        asked = max(0, requested)
    if not failed:
        at = now
        missing = [] if ready is None else _missing(missing, (asked or 0) - ready, now, policy.spin_up)
    return TierDelivery(
        policy=policy,
        asked=asked,
        ready=ready,
        failed=failed,
        missing=tuple(missing),
        at=now if at is None else min(at, now),
    )


def _missing(
    missing: Sequence[tuple[float, int]], total: int, now: float, spin_up: float
) -> list[tuple[float, int]]:
    """Return the groups of missing units, now that `total` units are missing.

    All that are overdue are one group, so that there are never more than a few.
    """
    found = max(0, sum(n for _, n in missing) - max(0, total))
    groups: list[tuple[float, int]] = []
    for since, n in sorted(missing):
        gone = min(n, found)
        found -= gone
        if gone == n:
            continue
        if groups and now - since > LATE_AFTER * spin_up:
            groups[-1] = (since, groups[-1][1] + n - gone)
        else:
            groups.append((since, n - gone))
    added = total - sum(n for _, n in groups)
    if added > 0 and groups and now - groups[-1][0] <= GROUP * spin_up:
        groups[-1] = (groups[-1][0], groups[-1][1] + added)
    elif added > 0:
        groups.append((now, added))
    return groups


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
        """Return what to ask of each tier (`keep`: no fewer units), and the memory for the next pass."""
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
