"""Measure bulk adds, snapshots and streams with Spark: `make bench-spark`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from benchmarks import report
from benchmarks.bench import Bench
from leasehold.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.spark.rows import SparkRow

#: In the order in which they run: each is a module of `benchmarks.spark.scenarios`.
SCENARIOS = ("bulk_add", "snapshot", "growth", "drain")
RESULTS = Path(__file__).parents[1] / "results"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
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
    return parser.parse_args()


async def measure(bench: Bench, spark: SparkSession, names: list[str]) -> list[SparkRow]:
    """Run scenarios one after the other, and tell each when it is done."""
    rows: list[SparkRow] = []
    for name in names:
        started = time.perf_counter()
        its_rows = await importlib.import_module(f"benchmarks.spark.scenarios.{name}").run(bench, spark)
        if its_rows:
            rows += its_rows
            print(f"\n{name} ({time.perf_counter() - started:.0f} s)\n", flush=True)
            print(report.aligned(report.table(its_rows)), flush=True)
    return rows


async def main() -> int:
    """Measure, print and write; return the exit code."""
    asked = arguments()
    from benchmarks.spark import plot  # before the first minute is spent: matplotlib may be missing
    from benchmarks.spark.session import CORES, open_session

    with TemporaryDirectory(prefix="leasehold-bench-") as place:
        # Nobody is given a core here: driver, JVM, workers and server share what there is, as they would.
        async with await EmbeddedServer.start() as server, Redis.from_url(server.url) as redis:
            bench = Bench(server.url, redis, server_pid=server.pid, quick=asked.quick)
            with open_session(Path(place)) as spark:
                facts = await report.about(bench) | {
                    "pyspark": f"{version('pyspark')}, local[{CORES}]",
                    "pyarrow": version("pyarrow"),
                }
                rows = await measure(bench, spark, list(asked.only))
    asked.out.mkdir(parents=True, exist_ok=True)
    report.write_json(asked.out / "spark.json", facts, rows)
    drawn = plot.draw(rows, asked.out / "spark.png")
    report.write_markdown(asked.out / "spark.md", "Spark, measured", facts, rows, drawn)
    print()
    for line in report.goal_lines(rows):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
