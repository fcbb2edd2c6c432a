"""What is written down: a table on the terminal, JSON for machines, Markdown for the docs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from benchmarks.goals import every
from benchmarks.rows import find

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.bench import Bench
    from benchmarks.rows import Row, Setting, Who

HEAD = ("what", "who", "setting", "median", "unit", "rounds", "x bare", "of ceiling")
#: The further figures that have a column, with their heads. "client" and "server" are CPU time, the rest is
#: by the clock; "script" is the server's time in our scripts.
COSTS = {
    "us_per_item": "µs/item",
    "client_cpu_us_per_item": "client µs",
    "server_cpu_us_per_item": "server µs",
    "script_us_per_item": "script µs",
    "calls_per_item": "calls/item",
    "p99_ms": "p99 ms",
}


async def about(bench: Bench) -> dict[str, Any]:
    """What the figures were measured on: never a name, an address or a path."""
    server = await bench.info("server")
    name = server.get("server_name", "redis")
    return {
        "server": f"{name} {server.get(f'{name}_version', server['redis_version'])}",
        "python": platform.python_version(),
        "redis-py": version("redis"),
        "hiredis": version("hiredis"),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "quick": bench.quick,
    }


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows of one scenario as texts, the head first; columns that nobody uses are left out."""
    costs = [name for name in COSTS if any(name in row.more for row in rows)]
    lines = [[*HEAD, *(COSTS[name] for name in costs)]]
    for row in rows:
        setting = ", ".join(f"{name} {text(value)}" for name, value in row.setting.items())
        lines.append(
            [
                row.what,
                row.who,
                setting,
                text(row.value),
                row.unit,
                f"{text(row.low)} to {text(row.high)}" if row.rounds > 1 or row.samples else "",
                text(ratio(rows, row, "bare")),
                text(ratio(rows, row, "ceiling")),
                *(text(row.more.get(name)) for name in costs),
            ]
        )
    used = [at for at in range(len(lines[0])) if any(line[at] for line in lines[1:])]
    return [[line[at] for at in used] for line in lines]


def ratio(rows: Sequence[Row], row: Row, who: Who) -> float | None:
    """A row's value over that of a reference of the same kind; None if there is none."""
    if row.who != "leasehold":
        return None
    same: Setting = {
        name: value for name, value in row.setting.items() if name not in ("coroutines", "samples")
    }
    what = {"complete_many": "complete"}.get(row.what, row.what)
    other = find(rows, row.scenario, what, who, same)
    return row.value / other.value if other else None


def text(value: float | str | None) -> str:
    """A number as people read it."""
    if value is None or isinstance(value, str):
        return value or ""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A table for the terminal."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    left = {"what", "who", "setting", "unit"}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if head in left else cell.rjust(width)
            for head, cell, width in zip(lines[0], line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def goal_lines(rows: Sequence[Row]) -> list[str]:
    """The goals whose scenarios were run, each beside what was measured."""
    measured = [(goal, goal.measure(rows)) for goal in every()]
    return [goal.line(value) for goal, value in measured if value is not None]


def missed(rows: Sequence[Row]) -> list[str]:
    """The goals that were missed by more than a noisy machine explains."""
    measured = [(goal, goal.measure(rows)) for goal in every()]
    return [
        goal.line(value)
        for goal, value in measured
        if value is not None and not goal.reached(value, margin=goal.margin)
    ]


def by_scenario(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each scenario."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.scenario, []).append(row)
    return found


def write_json(path: Path, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write everything, single measurements included."""
    content = {
        "about": facts,
        "goals": [
            {
                "goal": goal.sentence,
                "limit": goal.limit,
                "unit": goal.unit,
                "measured": value,
                "ok": goal.reached(value),
            }
            for goal in every()
            if (value := goal.measure(rows)) is not None
        ],
        "rows": [asdict(row) | {"command": row.command} for row in rows],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_markdown(
    path: Path, title: str, facts: dict[str, Any], rows: Sequence[Row], plots: Sequence[str]
) -> None:
    """Write the goals, a table for each scenario, and the plots."""
    lines = [f"# {title}", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["## Goals", "", *(f"- {line.removeprefix('goal ')}" for line in goal_lines(rows)), ""]
    for scenario, its_rows in by_scenario(rows).items():
        head, *body = table(its_rows)
        lines += [
            f"## {scenario}",
            "",
            f"`{its_rows[0].command}`",
            "",
            cells(head),
            cells(["---"] * len(head)),
        ]
        lines += [*(cells(line) for line in body), ""]
    lines += [line for plot in plots for line in (f"![{plot}]({plot})", "")]
    path.write_text("\n".join(lines).rstrip() + "\n")


def cells(line: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(line)} |"
