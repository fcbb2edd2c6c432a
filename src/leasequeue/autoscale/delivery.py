"""What one tier delivered of what it was asked for: which units are still coming, and which are overdue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.autoscale.model import TierPolicy, TierUnits

#: Units that began to be missing within this part of a spin-up time are one group, as of the first of them.
GROUP = 0.25
#: A group that is missing for longer than so many spin-up times is overdue, its last unit for `GROUP` less.
LATE_AFTER = 2 + GROUP
#: The share of what was asked for that may be overdue before other tiers cover it.
TOLERATED = 0.05


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

    def memory(self, wanted: int) -> dict[str, object]:
        """Return what the next pass is to be given, when `wanted` units are asked for."""
        memory: dict[str, object] = {"asked": wanted, "at": self.at}
        missing: Sequence[tuple[float, int]] = self.missing
        if self.ready is not None:
            memory["ready"] = self.ready
            missing = _missing(missing, wanted - self.ready, self.at, self.policy.spin_up)
        if missing:
            memory["missing"] = [[since, n] for since, n in missing]
        return memory


def delivered(policy: TierPolicy, units: TierUnits | None, memory: object, now: float) -> TierDelivery:
    """Return what a tier delivered, from what its back end says now and from what was known before.

    A unit is missing from the pass that asks for it, or from the first pass that sees that it was lost. What
    becomes ready is what is missing the longest. What the last pass asked for decides, not what the back end
    has been asked for: it does not deliver a request that never reached it, either.
    """
    asked = count_in(mapping_in(memory).get("asked"))
    at = number_in(mapping_in(memory).get("at"))
    was_ready = count_in(mapping_in(memory).get("ready"))
    missing = [(min(since, now), n) for since, n in pairs_in(mapping_in(memory).get("missing")) if n > 0]
    ready, requested = (units.ready, units.requested) if units else (None, None)
    failed = ready is None and requested is None
    ready = was_ready if ready is None else max(0, ready)
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


# -------------------------------------------------------------------------- reading the memory
# It is JSON that may be of an older version, or damaged: what is not of the expected kind is left out.


def mapping_in(memory: object, *names: str) -> Mapping[str, object]:
    """Return the mapping that is found by these names one below the other, empty if there is none."""
    for name in names:
        memory = memory.get(name) if isinstance(memory, Mapping) else None
    return memory if isinstance(memory, Mapping) else {}


def number_in(value: object) -> float | None:
    """Return a finite number, or None if the value is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def count_in(value: object) -> int | None:
    """Return a whole number, 0 or more; None if the value is not one."""
    number = number_in(value)
    return int(number) if number is not None and number >= 0 else None


def pairs_in(value: object) -> list[tuple[float, int]]:
    """Return the pairs of a number and a count that a list has, in their order."""
    pairs = []
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, list | tuple) and len(entry) == 2:
            first, second = number_in(entry[0]), count_in(entry[1])
            if first is not None and second is not None:
                pairs.append((first, second))
    return pairs
