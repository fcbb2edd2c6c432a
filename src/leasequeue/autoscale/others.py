"""Other clients that set the number of units of a tier: another autoscaler, or `kubectl scale`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.autoscale.report import read_report
from leasequeue.autoscale.retiring import known_tiers
from leasequeue.describing import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasequeue.autoscale.config import Config
    from leasequeue.autoscale.model import TierUnits
    from leasequeue.autoscale.state import State


def changed_by_others(
    config: Config, state: State, units: Mapping[tuple[str, str], TierUnits]
) -> Iterator[tuple[str, str]]:
    """Yield the tiers whose number another client has changed since the last pass, and what to report.

    Only Kubernetes says what any client has asked for.

    Args:
        config: The configuration.
        state: What the last pass has left.
        units: What the back ends say now.
    """
    last = read_report(state.report, age=0.0)
    # A request whose answer was lost is one of ours, too.
    wanted = {(one.deployment, one.tier): one.wanted for one in last.tiers} if last else {}
    for one in known_tiers(config, state.tiers, ()).values():
        place = (one.deployment, one.tier)
        now = units[place].requested
        if one.backend != "kubernetes" or now is None or one.units is None:
            continue
        if now not in (one.units, wanted.get(place)):
            yield f"tier {one.name}", _problem(now, one.units)


def _problem(now: int, ours: int) -> str:
    return (
        f"another client has asked for {counted(now, 'unit')}, and this autoscaler for {ours}: "
        "only one may scale it, and nothing else"
    )
