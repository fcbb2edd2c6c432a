"""The figures: one row each, with what it was measured on and the command that makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from benchmarks.measure import Sample, middle, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Who did it: the queue, the same scripts called one at a time, or with 500 items a call.
Who = Literal["leasehold", "bare", "ceiling"]
Setting = dict[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure.

    Attributes:
        scenario: The module of `benchmarks.scenarios` that measured it.
        what: What was done.
        who: Who did it.
        setting: With how many coroutines, what payload and so on.
        unit: Of `value`, `low` and `high`.
        value: The median of the rounds, unless `what` says otherwise.
        low: The lowest round.
        high: The highest round.
        rounds: How many rounds there were.
        more: Further figures of the same rounds, their units in their names.
        samples: Single measurements, where a plot wants them.
    """

    scenario: str
    what: str
    who: Who = "leasehold"
    setting: Setting = field(default_factory=dict)
    unit: str
    value: float
    low: float
    high: float
    rounds: int
    more: dict[str, float] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)

    @property
    def command(self) -> str:
        """What makes this row."""
        return f"make bench ARGS='--only {self.scenario}'"


def speed_row(scenario: str, what: str, who: Who, setting: Setting, samples: Sequence[Sample]) -> Row:
    """A row of items per second, with what an item costs on either side."""
    speeds = [sample.items / sample.seconds for sample in samples]

    def per_item(cost: str, scale: float) -> float:
        return middle(scale * float(getattr(sample, cost)) / sample.items for sample in samples)

    return Row(
        scenario=scenario,
        what=what,
        who=who,
        setting=setting,
        unit="items/s",
        value=middle(speeds),
        low=min(speeds),
        high=max(speeds),
        rounds=len(samples),
        more={
            "us_per_item": per_item("seconds", 1e6),
            "client_cpu_us_per_item": per_item("client_cpu", 1e6),
            "server_cpu_us_per_item": per_item("server_cpu", 1e6),
            "script_us_per_item": per_item("script_us", 1),
            "calls_per_item": per_item("calls", 1),
        },
    )


def time_row(
    scenario: str, what: str, who: Who, setting: Setting, seconds: Sequence[float], *, rounds: int = 1
) -> Row:
    """A row of ms from many single measurements, all of them kept: median, lowest, highest, percentiles."""
    ms = sorted(1000 * one for one in seconds)
    return Row(
        scenario=scenario,
        what=what,
        who=who,
        setting=setting | {"samples": len(ms)},
        unit="ms",
        value=middle(ms),
        low=ms[0],
        high=ms[-1],
        rounds=rounds,
        more={f"p{percent}_ms": percentile(ms, percent) for percent in (90, 99)},
        samples=[round(one, 4) for one in ms],
    )


def number_row(
    scenario: str, what: str, who: Who, setting: Setting, unit: str, values: Sequence[float]
) -> Row:
    """A row of any other unit."""
    return Row(
        scenario=scenario,
        what=what,
        who=who,
        setting=setting,
        unit=unit,
        value=middle(values),
        low=min(values),
        high=max(values),
        rounds=len(values),
    )


def find(
    rows: Sequence[Row], scenario: str, what: str, who: Who = "leasehold", setting: Setting | None = None
) -> Row | None:
    """The row of that name whose setting has at least these values; None if it was not measured."""
    wanted = (setting or {}).items()
    for row in rows:
        if (row.scenario, row.what, row.who) == (scenario, what, who) and wanted <= row.setting.items():
            return row
    return None
