"""The measurement of all libraries in turns, and its report: medians, ratios, where the time goes."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.measure import percentile
from benchmarks.processes import SERVER_CORE, fresh_server, pin
from benchmarks.report import Report, Section, about, aligned, text
from benchmarks.rivals.scenarios import QUICK, SCENARIOS, Figures, Sizes
from benchmarks.rivals.targets import LIBRARIES, Library
from benchmarks.rows import Row, number_row

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.report import Table

#: Figure -> its scenario, its column's head, and whether more is better.
FIGURES = {
    "one_p50_us": ("one", "add one, p50 µs", False),
    "one_per_s": ("one", "add one, 1/s", True),
    "bulk_per_s": ("drain", "add many, 1/s", True),
    "drain_per_s": ("drain", "no-op jobs, 1/s", True),
    "fifty_of_ideal": ("fifty", "50 ms jobs, of ideal", True),
    "idle_p50_ms": ("idle", "idle p50 ms", False),
    "idle_p99_ms": ("idle", "idle p99 ms", False),
}
COSTS = ("drain_us", "worker_cpu_us", "server_cpu_us")
#: A target that uses at least this share of its core is bound by it.
BUSY = 0.85


NOTE = (
    "`make bench-rivals`; in brackets: how many times as good Leasehold is. Each goal is for Leasehold on "
    "uvloop, which the other libraries on asyncio use as well."
)


@dataclass
class Result:
    """All rounds of one library."""

    library: Library
    rounds: list[Figures]

    def figure(self, name: str) -> float | None:
        """Return the median of the rounds, or the percentile of all their samples; None if not measured."""
        samples = [ms for one in self.rounds for ms in one.samples]
        if samples and name in ("idle_p50_ms", "idle_p99_ms"):
            return percentile(samples, 50 if "p50" in name else 99)
        values = [one.values[name] for one in self.rounds if name in one.values]
        return median(values) if values else None

    def rows(self) -> list[Row]:
        """Return a row per figure, for goals and plots."""
        setting: dict[str, int | str] = {
            "ours": "yes" if self.library.ours else "no",
            "runtime": "Node" if self.library.on_node else "Python",
        }
        return [
            replace(number_row(name, "", [value], who=self.library.label, setting=setting), scenario=scenario)
            for name, (scenario, _, _) in FIGURES.items()
            if (value := self.figure(name)) is not None
        ]

    def costs(self) -> list[str]:
        """Return the cells of the table of costs: the time of a job, its bounds and its commands."""
        took, worker, server = (self.figure(name) or 0.0 for name in COSTS)
        shares = {"the worker's core": worker / took, "the server's core": server / took}
        bound = " and ".join(f"{core} ({share:.0%})" for core, share in shares.items() if share >= BUSY)
        commands: dict[str, list[tuple[float, float]]] = {}
        for one in self.rounds:
            for name, cost in one.commands.items():
                commands.setdefault(name, []).append(cost)
        medians = [
            (median(micros for _, micros in each), median(calls for calls, _ in each), name)
            for name, each in commands.items()
        ]
        busiest = sorted(medians, reverse=True)[:4]
        return [
            self.library.label,
            *(text(value) for value in (took, worker, server)),
            bound or "waiting for replies",
            ", ".join(f"{name} {text(micros)} µs in {text(calls)}" for micros, calls, name in busiest),
        ]


async def measure(asked: argparse.Namespace) -> list[Report]:
    """Let the libraries take turns, scenario by scenario, in reverse order every second round."""
    pin(SERVER_CORE)
    async with fresh_server() as (_, redis):
        facts = await about(redis, quick=asked.quick, rounds=asked.rounds)
    chosen = (replace(one, here=asked.here) for one in LIBRARIES if one.name in asked.only)
    results = [Result(one, []) for one in chosen]
    sizes = QUICK if asked.quick else Sizes()
    for number in range(asked.rounds):
        for result in results:
            result.rounds.append(Figures())
        for scenario in asked.scenarios:
            print(f"round {number + 1} of {asked.rounds}, {scenario}", flush=True)
            for result in results if number % 2 == 0 else reversed(results):
                figures, started = result.rounds[-1], time.perf_counter()
                known = set(figures.values)
                await SCENARIOS[scenario](result.library, sizes, figures)
                new = (f"{name} {text(value)}" for name, value in figures.values.items() if name not in known)
                took = time.perf_counter() - started
                print(f"  {result.library.label}: {', '.join(new)} ({took:.1f} s)", flush=True)
    return [report(facts, results)]


def report(facts: dict[str, object], results: Sequence[Result]) -> Report:
    """Build the report, and print its tables."""
    sections = [Section("Medians", NOTE, _medians(results))]
    costs = [one.costs() for one in results if one.figure("drain_us") is not None]
    if costs:
        head = ["", "µs", "worker CPU µs", "server CPU µs", "bound by", "server µs by command, and calls"]
        note = "The worker's figures are per measured job, the server's per job."
        sections.append(Section("Where the time of a no-op job goes", note, [head, *costs]))
    for section in sections:
        print("\n" + aligned(section.table))
    print()
    targets = [
        {
            "name": one.library.label,
            "versions": one.library.versions(),
            "medians": {row.what: row.value for row in one.rows()},
            "rounds": [asdict(figures) for figures in one.rounds],
        }
        for one in results
    ]
    rows = [row for one in results for row in one.rows()]
    facts = facts | {one.library.label: one.library.versions() for one in results}
    return Report("rivals", "Leasehold and others, measured", facts, rows, sections, {"targets": targets})


def _medians(results: Sequence[Result]) -> Table:
    """Return the figures, each with how many times as good Leasehold is."""
    names = [name for name in FIGURES if any(one.figure(name) is not None for one in results)]
    ours = next((one for one in results if one.library.ours), None)
    lines = [["", *(FIGURES[name][1] for name in names)]]
    for one in results:
        line = [one.library.label]
        for name in names:
            value = one.figure(name)
            mine = ours.figure(name) if ours and one is not ours else None
            factor = (mine / value if FIGURES[name][2] else value / mine) if value and mine else None
            line.append(text(value) + (f" ({text(factor)}x)" if factor else ""))
        lines.append(line)
    return lines
