"""The figures to reach, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.rows import Row, find

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.rows import Who


@dataclass(frozen=True)
class Goal:
    """One figure to reach.

    Attributes:
        sentence: What is to be reached, with its number.
        measure: Takes it from the rows; None if its scenario was not run.
        limit: The number.
        unit: Its unit.
        at_least: Whether more is better.
        margin: How far a noisy machine may miss it before `--check` fails: a factor.
    """

    sentence: str
    measure: Callable[[Sequence[Row]], float | None]
    limit: float
    unit: str = "x"
    at_least: bool = False
    margin: float = 1.5

    def reached(self, measured: float, *, margin: float = 1.0) -> bool:
        """Whether a measured figure is good enough."""
        if self.at_least:
            return measured >= self.limit / margin
        return measured <= self.limit * margin

    def line(self, measured: float) -> str:
        """How it is told on the terminal."""
        verdict = "ok" if self.reached(measured) else "short"
        return f"goal {self.sentence} … measured {measured:.3g} {self.unit} {verdict}"


def speed(what: str, over: Who) -> Callable[[Sequence[Row]], float | None]:
    """Items per second of 1,000 coroutines with 100 bytes, over those of a reference."""

    def measure(rows: Sequence[Row]) -> float | None:
        ours = find(rows, "cycle", what, setting={"payload": 100, "coroutines": 1_000})
        theirs = find(rows, "cycle", what, over, {"payload": 100})
        return ours.value / theirs.value if ours and theirs else None

    return measure


def lone(what: str) -> Callable[[Sequence[Row]], float | None]:
    """The time of one lone call over that of one bare EVALSHA."""

    def measure(rows: Sequence[Row]) -> float | None:
        ours, bare = find(rows, "lone", what), find(rows, "lone", what, "bare")
        return bare.value / ours.value if ours and bare else None

    return measure


def growth(
    scenario: str, what: str, by: str, cost: str, **setting: int | str
) -> Callable[[Sequence[Row]], float | None]:
    """How many times as much an item costs at the largest size as at the smallest."""

    def measure(rows: Sequence[Row]) -> float | None:
        sizes = sorted({int(row.setting[by]) for row in rows if row.scenario == scenario})
        if not sizes:
            return None
        least = find(rows, scenario, what, setting={**setting, by: sizes[0]})
        most = find(rows, scenario, what, setting={**setting, by: sizes[-1]})
        return most.more[cost] / least.more[cost] if least and most else None

    return measure


def worst(scenario: str, what: str, figure: str = "") -> Callable[[Sequence[Row]], float | None]:
    """The highest value, or further figure, of all rows of that name."""

    def measure(rows: Sequence[Row]) -> float | None:
        found = [row for row in rows if (row.scenario, row.what) == (scenario, what)]
        return max((row.more[figure] if figure else row.value for row in found), default=None)

    return measure


def over_cycle(rows: Sequence[Row]) -> float | None:
    """Jobs per second of a worker over whole cycles by hand, of the same run."""
    ours, by_hand = (find(rows, "worker", what) for what in ("jobs that do nothing", "whole cycle"))
    return ours.value / by_hand.value if ours and by_hand else None


def bulk(over: Who) -> Callable[[Sequence[Row]], float | None]:
    """Rows per second of a bulk add with Spark, over those of a reference."""

    def measure(rows: Sequence[Row]) -> float | None:
        ours, theirs = find(rows, "bulk_add", "add"), find(rows, "bulk_add", "add", over)
        return ours.value / theirs.value if ours and theirs else None

    return measure


def goals() -> list[Goal]:
    """All of the queue and the worker, in the order in which they are told."""
    return [*of_the_queue(), *of_the_worker()]


def every() -> list[Goal]:
    """All of them."""
    return [*goals(), *of_spark()]


def of_the_queue() -> list[Goal]:
    """What the queue is to reach."""
    return [
        Goal(
            "whole cycle, 1,000 coroutines: at least 12 times the bare loop",
            speed("cycle", "bare"),
            12,
            at_least=True,
            margin=2,
        ),
        Goal(
            "whole cycle, 1,000 coroutines: at least 0.60 of the ceiling",
            speed("cycle", "ceiling"),
            0.60,
            at_least=True,
            margin=2,
        ),
        *(
            Goal(f"one lone {name}: at most 1.15 times the bare EVALSHA", lone(what), 1.15, margin=1.3)
            for name, what in (("add_item", "add"), ("lease", "lease"), ("complete", "complete"))
        ),
        *(
            Goal(
                f"100 to 100,000 in flight, completed {order}, {side}: at most 3 times as much",
                growth("flight", "complete", "in_flight", cost, order=order),
                3,
                margin=1.5,
            )
            for order in ("in order", "in reverse", "at random")
            for side, cost in (("time per call", "us_per_item"), ("server µs", "script_us_per_item"))
        ),
        *(
            Goal(
                f"backlog of 1,000 to 1,000,000, lease {how}, {side}: at most 1.3 times as much",
                growth("backlog", "lease", "backlog", cost, coroutines=coroutines),
                1.3,
                margin=1.7,
            )
            for how, coroutines in (("alone", 1), ("of 500 at once", 500))
            for side, cost in (("time per item", "us_per_item"), ("server µs", "script_us_per_item"))
        ),
        Goal("1 to 200 waiters: 1 wake per added item", worst("idle", "wakes per item"), 1.05, "wakes"),
        Goal(
            "an idle waiter: less than 1 command a second",
            worst("idle", "commands per idle waiter"),
            1,
            "commands/s",
            margin=1,
        ),
        Goal(
            "item of a killed worker leased again within 50 ms (p99) after its lease",
            worst("kill", "lease end to leased again", "p99_ms"),
            50,
            "ms",
            margin=4,
        ),
        Goal(
            "10,000 add_item at once: at most 22 EVALSHA", worst("gather", "trips"), 22, "EVALSHA", margin=1
        ),
    ]


def of_the_worker() -> list[Goal]:
    """What the worker is to reach."""
    return [
        Goal(
            "jobs that do nothing, through a worker: at least 0.60 of the whole cycle by hand",
            over_cycle,
            0.60,
            at_least=True,
            margin=1.5,
        ),
        Goal(
            "2,000 jobs of 50 ms, 100 at once: at most 1.10 times the ideal",
            worst("worker", "jobs of 50 ms, time over ideal"),
            1.10,
            margin=1.3,
        ),
        Goal(
            "an idle worker begins with a due item within 50 ms (p99)",
            worst("worker_idle", "due to handler", "p99_ms"),
            50,
            "ms",
            margin=4,
        ),
    ]


def of_spark() -> list[Goal]:
    """What Spark is to reach."""
    return [
        Goal(
            "bulk add with Spark: at least 0.8 of a plain process with 1,000 items a call",
            bulk("ceiling"),
            0.8,
            at_least=True,
        ),
        Goal(
            "bulk add with Spark: at least twice foreachPartition with a pipeline by hand",
            bulk("bare"),
            2,
            at_least=True,
        ),
    ]
