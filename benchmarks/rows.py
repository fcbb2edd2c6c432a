"""The figures of a benchmark: one row each, with its setting and the command that reproduces it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measure import COSTS, Sample, percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Setting = dict[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        scenario: The scenario that measured it.
        what: What was measured.
        who: The target: "leasehold", a reference ("bare", "ceiling"), or another library.
        setting: The number of coroutines, the size of the payload and so on.
        unit: The unit of `value`, `low` and `high`.
        value: The median of the rounds.
        low: The lowest round.
        high: The highest round.
        rounds: The number of rounds.
        more: Further figures of the same rounds, with the unit in the name.
        samples: Single measurements, where a plot needs them.
        command: The command that measures this row.
    """

    scenario: str = ""
    what: str
    who: str = "leasehold"
    setting: Setting = field(default_factory=dict)
    unit: str
    value: float
    low: float
    high: float
    rounds: int
    more: dict[str, float] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    command: str = ""


def number_row(
    what: str,
    unit: str,
    values: Sequence[float],
    *,
    who: str = "leasehold",
    setting: Setting | None = None,
    more: dict[str, float] | None = None,
    samples: Sequence[float] = (),
    rounds: int | None = None,
) -> Row:
    """Return a row with the median, the minimum and the maximum of some values."""
    return Row(
        what=what,
        who=who,
        setting=dict(setting or {}),
        unit=unit,
        value=median(values),
        low=min(values),
        high=max(values),
        rounds=len(values) if rounds is None else rounds,
        more=more or {},
        samples=list(samples),
    )


def speed_row(
    what: str,
    samples: Sequence[Sample],
    *,
    who: str = "leasehold",
    setting: Setting | None = None,
    unit: str = "items/s",
    costs: Iterable[str] = COSTS,
) -> Row:
    """Return a row of items per second, with the cost of an item."""
    speeds = [sample.items / sample.seconds for sample in samples]
    more = {cost: median(COSTS[cost](sample) / sample.items for sample in samples) for cost in costs}
    return number_row(what, unit, speeds, who=who, setting=setting, more=more)


def time_row(
    what: str,
    seconds: Sequence[float],
    *,
    who: str = "leasehold",
    setting: Setting | None = None,
    rounds: int = 1,
) -> Row:
    """Return a row of ms from many single measurements, with percentiles; the samples are kept."""
    ms = sorted(1000 * one for one in seconds)
    return number_row(
        what,
        "ms",
        ms,
        who=who,
        setting={**(setting or {}), "samples": len(ms)},
        more={f"p{percent}_ms": percentile(ms, percent) for percent in (90, 99)},
        samples=[round(one, 4) for one in ms],
        rounds=rounds,
    )


def find(
    rows: Sequence[Row],
    scenario: str,
    what: str,
    who: str = "leasehold",
    setting: Setting | None = None,
) -> Row | None:
    """Return the first such row whose setting includes these values; None if it was not measured."""
    wanted = (setting or {}).items()
    for row in rows:
        if (row.scenario, row.what, row.who) == (scenario, what, who) and wanted <= row.setting.items():
            return row
    return None
