"""Measure the queue and the worker: `make bench`, or `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.bench import NotEmpty, open_bench

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from benchmarks.rows import Row

#: In the order in which they run, by what they measure: each is a module of `benchmarks.scenarios`, and what
#: they measure is the name of the file with their results.
QUEUE = (
    "cycle",
    "throughput",
    "lone",
    "gather",
    "backlog",
    "flight",
    "latency",
    "idle",
    "kill",
    "memory",
)
WORKER = ("worker", "worker_idle", "worker_restart")
SCENARIOS = (*QUEUE, *WORKER)
RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SCENARIOS,
        default=SCENARIOS,
        metavar="NAME",
        help=f"of {', '.join(SCENARIOS)}",
    )
    parser.add_argument("--quick", action="store_true", help="do little: shows that it works, not how fast")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--url", help="an empty server to measure on, and to empty; default: one is started")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed by more than noise")
    parser.add_argument(
        "--profile", action="store_true", help="show where a cycle's time goes; write nothing"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="how long --profile runs cycles")
    return parser.parse_args()


async def measure(bench: Bench, names: list[str]) -> list[Row]:
    """Run scenarios one after the other, and tell each when it is done."""
    rows: list[Row] = []
    for name in names:
        started = time.perf_counter()
        its_rows = await importlib.import_module(f"benchmarks.scenarios.{name}").run(bench)
        rows += its_rows
        print(f"\n{name} ({time.perf_counter() - started:.0f} s)\n", flush=True)
        print(report.aligned(report.table(its_rows)), flush=True)
    return rows


async def main() -> int:
    """Measure, print and write; return the exit code."""
    asked = arguments()
    from benchmarks import plots, worker_plot  # before the first minute is spent: matplotlib may be missing

    async with open_bench(asked.url, quick=asked.quick) as bench:
        if asked.profile:
            from benchmarks.profile import profile

            await profile(bench, asked.seconds)
            return 0
        facts = await report.about(bench)
        rows = await measure(bench, list(asked.only))
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, scenarios, draw in (("queue", QUEUE, plots.draw), ("worker", WORKER, worker_plot.draw)):
        its_rows = [row for row in rows if row.scenario in scenarios]
        if its_rows:
            report.write_json(asked.out / f"{name}.json", facts, its_rows)
            drawn = draw(its_rows, asked.out)
            report.write_markdown(asked.out / f"{name}.md", f"The {name}, measured", facts, its_rows, drawn)
    print()
    for line in report.goal_lines(rows):
        print(line)
    missed = report.missed(rows)
    if asked.check and missed:
        print("\nmissed by more than noise:", *missed, sep="\n    ")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except NotEmpty as error:
        sys.exit(str(error))
