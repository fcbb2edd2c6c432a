"""The results: tables on the terminal, Markdown and plots for readers, and single rounds as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.goals import GOALS, Goal, highest
from benchmarks.measure import Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from redis.asyncio import Redis

Table = list[list[str]]

HEADS = ("what", "who", "setting", "median", "unit", "rounds", "x bare", "of ceiling")
#: The figures of `Row.more` that have a column. "client" and "server" are CPU time, the others wall-clock
#: time; "script" is the server's time in scripts. MB are peaks of the largest process of a kind.
COLUMNS = {
    "us_per_item": "µs/item",
    "client_cpu_us_per_item": "client µs",
    "server_cpu_us_per_item": "server µs",
    "script_us_per_item": "script µs",
    "client_kernel_us_per_item": "client kernel µs",
    "server_kernel_us_per_item": "server kernel µs",
    "calls_per_item": "calls/item",
    "trips_per_item": "trips/item",
    "commands_per_item": "commands/item",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "driver_mb": "driver MB",
    "jvm_mb": "JVM MB",
    "planner_mb": "planner MB",
    "executor_mb": "executor MB",
    "server_mb": "server MB",
    "x_fewest": "x the fewest workers",
    "requests_per_hour": "requests/h",
    "longest_s": "longest wait (s)",
    "most_workers": "most workers",
}


@dataclass(frozen=True)
class Section:
    """A part of a Markdown report: a title, a note and a table whose first line is the head."""

    title: str
    note: str
    table: Table


@dataclass
class Report:
    """The content of a JSON file, a Markdown file and the plots."""

    name: str  #: the stem of the files, and the key of the goals and plots
    title: str
    facts: dict[str, Any]  #: what the figures were measured on
    rows: list[Row]
    sections: list[Section] = field(default_factory=list)  #: by default one per scenario
    details: dict[str, Any] = field(default_factory=dict)  #: the rest of the JSON file; by default the rows

    def __post_init__(self) -> None:
        if not self.sections:
            for scenario in dict.fromkeys(row.scenario for row in self.rows):
                rows = [row for row in self.rows if row.scenario == scenario]
                self.sections.append(Section(scenario, f"`{rows[0].command}`", table(rows)))
        if not self.details:
            self.details = {"rows": [asdict(row) for row in self.rows]}

    def goals(self) -> list[tuple[Goal, float]]:
        """Return the goals whose scenarios were run, each with the measured figure."""
        measured = [(goal, goal.measure(self.rows)) for goal in GOALS[self.name]]
        return [(goal, value) for goal, value in measured if value is not None]

    def write(self, folder: Path) -> None:
        """Write the JSON file, the plots and the Markdown file."""
        from benchmarks.plots import draw

        goals = [
            {"goal": goal.sentence, "limit": goal.limit, "unit": goal.unit}
            | {"measured": value, "ok": goal.reached(value)}
            for goal, value in self.goals()
        ]
        content = {"about": self.facts, "goals": goals, **self.details}
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        lines = [f"# {self.title}", "", *(f"- {name}: {value}" for name, value in self.facts.items()), ""]
        lines += ["## Goals", "", *(f"- {goal.line(value)}" for goal, value in self.goals()), ""]
        for section in self.sections:
            head, *body = section.table
            cells = [head, ["---"] * len(head), *body]
            lines += [f"## {section.title}", "", section.note, ""]
            lines += [*(f"| {' | '.join(line)} |" for line in cells), ""]
        lines += [line for plot in draw(self.name, self.rows, folder) for line in (f"![{plot}]({plot})", "")]
        (folder / f"{self.name}.md").write_text("\n".join(lines).rstrip() + "\n")


async def about(redis: Redis, *, quick: bool, **more: object) -> dict[str, Any]:
    """Return what the figures are measured on, without any name, address or path of the machine."""
    server = await redis.info("server")
    name = server.get("server_name", "redis")
    return {
        "server": f"{name} {server.get(f'{name}_version', server['redis_version'])}",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "quick": quick,
        **more,
    }


def table(rows: Sequence[Row]) -> Table:
    """Return the rows of one scenario as text, the head first, without empty columns."""
    costs = [name for name in COLUMNS if any(name in row.more for row in rows)]
    lines = [[*HEADS, *(COLUMNS[name] for name in costs)]]
    for row in rows:
        setting = "; ".join(f"{name}: {text(value)}" for name, value in row.setting.items())
        lines.append(
            [
                row.what,
                row.who,
                setting,
                text(row.value),
                row.unit,
                f"{text(row.low)} to {text(row.high)}" if row.rounds > 1 or row.samples else "",
                text(_ratio(rows, row, "bare")),
                text(_ratio(rows, row, "ceiling")),
                *(text(row.more.get(name)) for name in costs),
            ]
        )
    used = [at for at in range(len(lines[0])) if any(line[at] for line in lines[1:])]
    return [[line[at] for at in used] for line in lines]


def _ratio(rows: Sequence[Row], row: Row, who: str) -> float | None:
    """Divide a row's value by that of a reference at the same setting; None if there is none."""
    if row.who != "leasequeue":
        return None
    setting: dict[str, Any] = {**row.setting}
    for name in ("coroutines", "samples"):
        setting.pop(name, None)
    what = "complete" if row.what == "complete_many" else row.what
    reference = highest(row.scenario, what, who, **setting)(rows)
    return row.value / reference if reference else None


def text(value: float | str | None) -> str:
    """Format a number with three to four significant digits."""
    if value is None or isinstance(value, str):
        return value or ""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def read(path: Path) -> list[Row]:
    """Return the rows of a Markdown file of `Report.write`, with the digits that its tables have."""
    rows, scenario, command, head = [], "", "", list[str]()
    for line in path.read_text().splitlines():
        if line.startswith("## "):
            scenario, head = line.removeprefix("## "), []
        elif line.startswith("`"):
            command = line.strip("`")
        elif line.startswith("| ") and not head:
            head = line[2:-2].split(" | ")
        elif line.startswith("| ") and "what" in head and not line.startswith("| --- "):
            cells = dict(zip(head, line[2:-2].split(" | "), strict=True))
            rows.append(_row(scenario, command, cells))
    return rows


def _row(scenario: str, command: str, cells: dict[str, str]) -> Row:
    """Return the row of which `table` made these cells."""
    value = cells["median"]
    low, _, high = cells.get("rounds", "").partition(" to ")
    return Row(
        scenario=scenario,
        what=cells["what"],
        who=cells["who"],
        setting=dict(_setting(one) for one in cells.get("setting", "").split("; ") if one),
        unit=cells.get("unit", ""),
        value=_number(value),
        low=_number(low or value),
        high=_number(high or value),
        more={name: _number(cells[title]) for name, title in COLUMNS.items() if cells.get(title)},
        command=command,
    )


def _setting(text: str) -> tuple[str, int | str]:
    name, _, value = text.partition(": ")
    return name, int(_number(value)) if value.replace(",", "").isdigit() else value


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def aligned(lines: Table) -> str:
    """Format a table for the terminal."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    left = {"what", "who", "setting", "unit", ""}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if head in left else cell.rjust(width)
            for head, cell, width in zip(lines[0], line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
