"""What the rounds come to: medians, ratios, goals, and where the time goes."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.measure import middle, percentile
from benchmarks.report import cells, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.rivals.contestants import Contestant
    from benchmarks.rivals.scenarios import Figures

#: Figure -> its head, and whether more is better.
HEADS = {
    "one_p50_us": ("add one, p50 µs", False),
    "one_per_s": ("add one, 1/s", True),
    "bulk_per_s": ("add many, 1/s", True),
    "drain_per_s": ("no-op jobs, 1/s", True),
    "fifty_of_ideal": ("50 ms jobs, of ideal", True),
    "idle_p50_ms": ("idle p50 ms", False),
    "idle_p99_ms": ("idle p99 ms", False),
}
#: What is bound by its one core uses at least so much of it.
BUSY = 0.85


@dataclass
class Result:
    """All rounds of one contestant."""

    contestant: Contestant
    rounds: list[Figures]

    def median(self, name: str) -> float | None:
        """The median of a figure over the rounds; None if it was not measured."""
        values = [one.values[name] for one in self.rounds if name in one.values]
        return middle(values) if values else None

    def figure(self, name: str) -> float | None:
        """The median, but of single jobs where there are some: p99 of 150 is a coarse thing."""
        samples = [ms for one in self.rounds for ms in one.samples]
        if samples and name in ("idle_p50_ms", "idle_p99_ms"):
            return percentile(samples, 50 if "p50" in name else 99)
        return self.median(name)

    def busiest(self, most: int = 4) -> str:
        """The commands that take most of the server's time while draining, those in scripts included."""
        calls: dict[str, list[tuple[float, float]]] = {}
        for one in self.rounds:
            for name, cost in one.commands.items():
                calls.setdefault(name, []).append(cost)
        told = {
            name: (middle(us for _, us in each), middle(count for count, _ in each))
            for name, each in calls.items()
        }
        chosen = sorted(told.items(), key=lambda one: -one[1][0])[:most]
        return ", ".join(f"{name} {text(micros)} µs in {text(count)}" for name, (micros, count) in chosen)

    def bound(self) -> str:
        """What there is no more of while draining."""
        took = self.median("drain_us") or 0.0
        shares = {
            "the worker's core": (self.median("worker_cpu_us") or 0.0) / took,
            "the server's core": (self.median("server_cpu_us") or 0.0) / took,
        }
        found = [f"{name} ({share:.0%})" for name, share in shares.items() if share >= BUSY]
        return " and ".join(found) or "waiting for one another"


@dataclass(frozen=True)
class Goal:
    """One figure to reach, and what was measured."""

    sentence: str
    limit: float
    measured: float | None
    at_least: bool = True

    @property
    def reached(self) -> bool:
        """Whether it is good enough."""
        if self.measured is None:
            return False
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def line(self) -> str:
        """How it is told."""
        assert self.measured is not None
        return f"{self.sentence}: {text(self.measured)}, {'reached' if self.reached else 'missed'}"


def goals(results: Sequence[Result]) -> list[Goal]:
    """Those for which there is a measurement."""
    ours = next((one for one in results if one.contestant.ours), None)
    if ours is None:
        return []

    def times(rivals: list[Result]) -> float | None:
        best = max((one.median("drain_per_s") or 0.0 for one in rivals), default=0.0)
        mine = ours.median("drain_per_s")
        return mine / best if mine and best else None

    on_node = [one for one in results if one.contestant.on_node]
    in_python = [one for one in results if not one.contestant.on_node and not one.contestant.ours]
    found = [
        Goal("no-op jobs: at least 3 times BullMQ on Node", 3, times(on_node)),
        Goal("no-op jobs: at least 12 times the best other in Python", 12, times(in_python)),
        Goal("jobs of 50 ms: at least 0.95 of the ideal", 0.95, ours.figure("fifty_of_ideal")),
        Goal("idle, from add to handler: p50 under 0.6 ms", 0.6, ours.figure("idle_p50_ms"), at_least=False),
    ]
    return [goal for goal in found if goal.measured is not None]


def table(results: Sequence[Result]) -> list[list[str]]:
    """Medians, each with how many times as good Leasehold is, and the head first."""
    names = [name for name in HEADS if any(one.figure(name) is not None for one in results)]
    ours = next((one for one in results if one.contestant.ours), None)
    lines = [["", *(HEADS[name][0] for name in names)]]
    for one in results:
        line = [one.contestant.label]
        for name in names:
            value = one.figure(name)
            mine = ours.figure(name) if ours and one is not ours else None
            factor = ""
            if value and mine:
                factor = f" ({text(mine / value if HEADS[name][1] else value / mine)}x)"
            line.append(text(value) + factor)
        lines.append(line)
    return lines


def costs(results: Sequence[Result]) -> list[list[str]]:
    """Where the time of a no-op job goes, the head first."""
    lines = [["", "µs", "worker CPU µs", "server CPU µs", "bound by", "server µs by command, and calls"]]
    for one in results:
        if one.median("drain_us") is not None:
            figures = [text(one.median(name)) for name in ("drain_us", "worker_cpu_us", "server_cpu_us")]
            lines.append([one.contestant.label, *figures, one.bound(), one.busiest()])
    return lines


def about(server: str, rounds: int, *, quick: bool) -> dict[str, Any]:
    """What it was measured on: never a name, an address or a path."""
    return {
        "server": server,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "quick": quick,
    }


def write_json(folder: Path, facts: dict[str, Any], results: Sequence[Result]) -> None:
    """Write `rivals.json`: everything, each round by itself."""
    content = {
        "about": facts,
        "goals": [
            {"goal": goal.sentence, "limit": goal.limit, "measured": goal.measured, "ok": goal.reached}
            for goal in goals(results)
        ],
        "contestants": [
            {
                "name": one.contestant.label,
                "versions": one.contestant.versions(),
                "medians": {name: value for name in HEADS if (value := one.figure(name)) is not None},
                "rounds": [figures.data() for figures in one.rounds],
            }
            for one in results
        ],
    }
    (folder / "rivals.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_markdown(folder: Path, facts: dict[str, Any], results: Sequence[Result], plot: str | None) -> None:
    """Write `rivals.md`: goals, tables and plot."""
    lines = ["# Leasehold and others, measured", "", "`make bench-rivals`", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += [f"- {one.contestant.label}: {one.contestant.versions()}" for one in results]
    lines += ["", "## Goals", "", *(f"- {goal.line()}" for goal in goals(results))]
    lines += ["", "Each goal is for Leasehold on uvloop, which the others on asyncio are given as well."]
    lines += ["", "## Medians", "", "In brackets: how many times as good Leasehold is.", ""]
    lines += markdown(table(results))
    if len(costs(results)) > 1:
        lines += ["", "## Where the time of a no-op job goes", "", *markdown(costs(results))]
    lines += ["", f"![{plot}]({plot})"] if plot else []
    (folder / "rivals.md").write_text("\n".join(lines) + "\n")


def markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    head, *body = lines
    return [cells(head), cells(["---"] * len(head)), *(cells(line) for line in body)]
