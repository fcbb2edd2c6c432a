"""Measure Leasehold beside other queues: `make bench-rivals`, or `python -m benchmarks.rivals --help`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import report
from benchmarks.rivals import results as outcome
from benchmarks.rivals.contestants import CONTESTANTS, Contestant
from benchmarks.rivals.people import fresh_server, settle_down
from benchmarks.rivals.results import Result
from benchmarks.rivals.scenarios import QUICK, SCENARIOS, Figures, Sizes

RESULTS = Path(__file__).parents[1] / "results"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    names = list(dict.fromkeys(one.name for one in CONTESTANTS))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rivals", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often everybody has a turn")
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="leave the others out"
    )
    parser.add_argument("--quick", action="store_true", help="do little: shows that it works, not how fast")
    parser.add_argument("--here", action="store_true", help="run everybody in this environment, as it is")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for the results")
    return parser.parse_args()


async def turn(contestant: Contestant, scenario: str, sizes: Sizes, figures: Figures) -> None:
    """Measure one scenario with one contestant, and tell what came of it."""
    known, started = set(figures.values), time.perf_counter()
    await SCENARIOS[scenario](contestant, sizes, figures)
    new = ", ".join(
        f"{name} {report.text(value)}" for name, value in figures.values.items() if name not in known
    )
    print(f"  {contestant.label}: {new} ({time.perf_counter() - started:.1f} s)", flush=True)


async def measure(asked: argparse.Namespace, sizes: Sizes) -> list[Result]:
    """Let the contestants take turns, scenario by scenario; every second round the other way round."""
    chosen = (replace(one, here=asked.here) for one in CONTESTANTS if one.name in asked.only)
    results = [Result(one, []) for one in chosen]
    for number in range(asked.rounds):
        for one in results:
            one.rounds.append(Figures())
        for scenario in asked.scenarios:
            print(f"round {number + 1} of {asked.rounds}, {scenario}", flush=True)
            for one in results if number % 2 == 0 else reversed(results):
                await turn(one.contestant, scenario, sizes, one.rounds[-1])
    return results


async def server_name() -> str:
    """Which server it is, in words."""
    async with fresh_server() as (_, redis):
        told = await redis.info("server")
    name = told.get("server_name", "redis")
    return f"{name} {told.get(f'{name}_version', told['redis_version'])}"


async def main() -> int:
    """Measure, print and write; return the exit code."""
    asked = arguments()
    from benchmarks.rivals import plot  # before the first minute is spent: matplotlib may be missing

    settle_down()
    facts = outcome.about(await server_name(), asked.rounds, quick=asked.quick)
    results = await measure(asked, QUICK if asked.quick else Sizes())
    asked.out.mkdir(parents=True, exist_ok=True)
    outcome.write_json(asked.out, facts, results)
    drawn = plot.draw(results, asked.out / "rivals.png")
    outcome.write_markdown(asked.out, facts, results, drawn)
    for lines in (outcome.table(results), outcome.costs(results)):
        if len(lines) > 1:
            print("\n" + report.aligned(lines))
    print()
    for goal in outcome.goals(results):
        print(f"goal {goal.line()}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
