"""The figures of Spark: rows as those of the queue, made by another command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.measure import middle
from benchmarks.rows import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.rows import Setting, Who


class SparkRow(Row):
    """One figure of `benchmarks.spark.scenarios`."""

    @property
    def command(self) -> str:
        """What makes this row."""
        return f"make bench-spark ARGS='--only {self.scenario}'"


def speed(
    scenario: str,
    what: str,
    who: Who,
    setting: Setting,
    *,
    items: int,
    seconds: Sequence[float],
    server_us: Sequence[float] = (),
) -> SparkRow:
    """A row of rows per second, with what one costs.

    Args:
        scenario: The module that measured it.
        what: What was done.
        who: Who did it: us, a plain process ("ceiling"), or what people write by hand ("bare").
        setting: With how many rows and so on.
        items: How many rows.
        seconds: The time of each round.
        server_us: The time of each round in our scripts, on the server.
    """
    speeds = [items / one for one in seconds]
    more = {"us_per_item": middle(1e6 * one / items for one in seconds)}
    if server_us:
        more["script_us_per_item"] = middle(one / items for one in server_us)
    return SparkRow(
        scenario=scenario,
        what=what,
        who=who,
        setting=setting,
        unit="rows/s",
        value=middle(speeds),
        low=min(speeds),
        high=max(speeds),
        rounds=len(speeds),
        more=more,
    )


def times(scenario: str, what: str, setting: Setting, seconds: Sequence[float]) -> SparkRow:
    """A row of ms."""
    ms = [1000 * one for one in seconds]
    return SparkRow(
        scenario=scenario,
        what=what,
        setting=setting,
        unit="ms",
        value=middle(ms),
        low=min(ms),
        high=max(ms),
        rounds=len(ms),
        samples=ms,
    )
