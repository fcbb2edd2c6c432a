"""Compare rules on a load, and with the fewest workers by hindsight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.autoscale.simulation.held_out import HELD_OUT
from tests.autoscale.simulation.hindsight import SHARE, hindsight
from tests.autoscale.simulation.loads import LOADS
from tests.autoscale.simulation.ours import Ours
from tests.autoscale.simulation.rules import Keda, Seed, SeedInt32
from tests.autoscale.simulation.simulate import Outcome, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.autoscale.simulation.load import Load
    from tests.autoscale.simulation.simulate import Rule

#: The sets of loads: those on which the rule was tuned, and those that were held out.
SETS: Mapping[str, Mapping[str, Callable[..., Load]]] = {"tuned_on": LOADS, "held_out": HELD_OUT}
ALL: Mapping[str, Callable[..., Load]] = LOADS | HELD_OUT
#: By name. The other rules get the true mean run times; ours measures them.
OURS, SEED, INT32, KEDA = "leasequeue", "redis-work-queue", "redis-work-queue, int32", "KEDA, by length"
RULES: Mapping[str, Callable[[Load], Rule]] = {
    OURS: lambda _: Ours(),
    SEED: lambda load: Seed(load.mean_seconds()),
    INT32: lambda load: SeedInt32(load.mean_seconds()),
    KEDA: lambda load: Keda(load.mean_seconds()),
}
HINDSIGHT = "by hindsight"


@dataclass(frozen=True)
class Verdict:
    """What one rule did on one load."""

    rule: str
    outcome: Outcome
    #: The fewest worker-seconds that keep the target.
    fewest: float

    @property
    def ratio(self) -> float:
        """The worker-seconds, as a multiple of the fewest."""
        return self.outcome.worker_seconds / self.fewest


def fewest(load: Load, outcomes: Sequence[Outcome] = ()) -> tuple[Outcome, float]:
    """Return what hindsight does, and the fewest worker-seconds: its own, or of a rule that keeps it."""
    best = hindsight(load)
    kept = [one.worker_seconds for one in (best, *outcomes) if one.within() >= SHARE]
    return best, min(kept, default=best.worker_seconds)


def compare(load: Load, rules: Sequence[str] = tuple(RULES)) -> list[Verdict]:
    """Return what each rule did, and hindsight last."""
    outcomes = {rule: simulate(load, RULES[rule](load)) for rule in rules}
    best, least = fewest(load, [*outcomes.values()])
    return [Verdict(rule, outcome, least) for rule, outcome in (outcomes | {HINDSIGHT: best}).items()]
