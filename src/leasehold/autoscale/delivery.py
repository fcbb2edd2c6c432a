"""What one tier delivered of what it was asked for: which units are still coming, and which are overdue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.autoscale.remembered import count_in, mapping_in, number_in, pairs_in

if TYPE_CHECKING:
    from leasehold.autoscale.model import TierPolicy, TierUnits

#: At most so many groups of units that are missing since different times.
GROUPS = 6
#: A unit that is missing for longer than so many spin-up times is overdue.
PATIENCE = 2


@dataclass(frozen=True, kw_only=True)
class Delivery:
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
        """How many units are missing for longer than twice the spin-up time."""
        return sum(n for since, n in self.missing if self.at - since > PATIENCE * self.policy.spin_up)

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
            if passed <= PATIENCE * self.policy.spin_up:
                coming += n * (min(1.0, passed / self.policy.spin_up) if self.policy.spin_up > 0 else 1.0)
        return self.workers + coming * self.policy.workers_per_unit

    def memory(self, wanted: int) -> dict[str, object]:
        """Return what the next pass is to be given, when `wanted` units are asked for."""
        memory: dict[str, object] = {"asked": wanted, "at": self.at}
        if self.ready is not None:
            memory["ready"] = self.ready
        if self.missing:
            memory["missing"] = [[since, n] for since, n in self.missing]
        return memory


def delivered(policy: TierPolicy, units: TierUnits | None, memory: object, now: float) -> Delivery:
    """Return what a tier delivered, from what its back end says now and from what was known before.

    A unit is missing from the first pass that sees that it was asked for, or that it was lost. What becomes
    ready is what is missing the longest. What the last pass asked for decides, not what the back end has been
    asked for: a request that never reached it is one that it does not deliver, either.
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
        missing = [] if ready is None else _missing(missing, (asked or 0) - ready, now)
    return Delivery(
        policy=policy,
        asked=asked,
        ready=ready,
        failed=failed,
        missing=tuple(missing),
        at=now if at is None else min(at, now),
    )


def _missing(missing: list[tuple[float, int]], total: int, now: float) -> list[tuple[float, int]]:
    """Return the groups of missing units, now that `total` units are missing."""
    groups = sorted(missing)
    surplus = sum(n for _, n in groups) - max(0, total)
    while surplus > 0:
        since, n = groups.pop(0)
        if n > surplus:
            groups.insert(0, (since, n - surplus))
        surplus -= n
    if surplus < 0:
        groups.append((now, -surplus))
    while len(groups) > GROUPS:  # the two that are closest to each other, as of the later time
        i = min(range(1, len(groups)), key=lambda i: groups[i][0] - groups[i - 1][0])
        groups[i - 1 : i + 1] = [(groups[i][0], groups[i - 1][1] + groups[i][1])]
    return groups
