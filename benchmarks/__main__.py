"""Run a suite of benchmarks: `make bench`, `make bench-rivals`, `make bench-spark`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import NotEmpty
from benchmarks.suites import SUITES

if TYPE_CHECKING:
    from benchmarks.report import Report

RESULTS = Path(__file__).parent / "results"


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line; without the name of a suite it is the queue's."""
    name = argv.pop(0) if argv and argv[0] in SUITES else "queue"
    suite = SUITES[name]
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}",
        description=suite.about,
        epilog=f"suites: {', '.join(SUITES)}",
    )
    choices = f"of {', '.join(suite.choices)}"
    parser.add_argument(
        "--only", nargs="+", choices=suite.choices, default=suite.choices, metavar="NAME", help=choices
    )
    parser.add_argument("--quick", action="store_true", help="do little: shows that it works, not how fast")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--check", action="store_true", help="fail if a goal is missed by more than noise")
    for option, settings in suite.options.items():
        parser.add_argument(option, **settings)
    return parser.parse_args(argv, argparse.Namespace(suite=suite))


async def main(argv: list[str]) -> int:
    """Measure, write the results and print the goals; return the exit code."""
    asked = arguments(argv)
    import benchmarks.plots  # noqa: F401 - fails before the first minute if matplotlib is missing

    reports: list[Report] = await asked.suite.measure(asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    missed: list[str] = []
    for report in reports:
        report.write(asked.out)
        for goal, value in report.goals():
            print(f"goal {goal.line(value)}")
            if not goal.reached(value, margin=goal.margin):
                missed.append(goal.line(value))
    if asked.check and missed:
        print("\nmissed by more than noise:", *missed, sep="\n    ")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1:])))
    except NotEmpty as error:
        sys.exit(str(error))
