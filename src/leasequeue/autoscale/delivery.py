"""What one tier delivered of what it was asked for: which units are still coming, and which are overdue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.autoscale.model import TierPolicy, TierUnits

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
