"""The suites: what `python -m benchmarks` can measure, and the options of each."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, open_bench
from benchmarks.profile import profile
from benchmarks.report import Report, about, aligned, table
from benchmarks.rivals.results import measure as measure_rivals
from benchmarks.rivals.scenarios import SCENARIOS as RIVALS
from benchmarks.rivals.targets import NAMES
from benchmarks.scenarios import memory, speed, waiting, worker

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.rows import Row

    Scenario = Callable[..., Awaitable[list[Row]]]

#: In the order in which they run. Each returns the rows of one table.
QUEUE: dict[str, Scenario] = {
    "cycle": speed.cycle,
    "throughput": speed.throughput,
    "lone": speed.lone,
    "gather": speed.gather,
    "backlog": speed.backlog,
    "flight": speed.flight,
    "latency": waiting.latency,
    "idle": waiting.idle,
    "kill": waiting.kill,
    "memory": memory.memory,
}
WORKER: dict[str, Scenario] = {
    "worker": worker.worker,
    "worker_idle": worker.worker_idle,
    "worker_restart": worker.worker_restart,
}
SPARK = ("bulk_add", "snapshot", "growth", "drain")


@dataclass(frozen=True)
class Suite:
    """A set of benchmarks with one command line.

    Attributes:
        about: What it measures.
        choices: The names that `--only` accepts.
        measure: Runs the benchmarks; takes the command line.
        options: Further options of the command line.
    """

    about: str
    choices: Sequence[str]
    measure: Callable[[argparse.Namespace], Awaitable[list[Report]]]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


async def run(
    bench: Bench, scenarios: dict[str, Scenario], names: Sequence[str], command: str, *given: object
) -> list[Row]:
    """Run scenarios one after the other, and print the rows of each."""
    rows: list[Row] = []
    for name in names:
        started, bench.scenario = time.perf_counter(), name
        made_by = f"{command} ARGS='--only {name}'"
        its_rows = [
            replace(row, scenario=name, command=made_by) for row in await scenarios[name](bench, *given)
        ]
        await bench.reset()
        print(f"\n{name} ({time.perf_counter() - started:.0f} s)\n", flush=True)
        print(aligned(table(its_rows)), flush=True)
        rows += its_rows
    print()
    return rows


async def measure_queue(asked: argparse.Namespace) -> list[Report]:
    """Measure the queue and the worker on a server of the same machine."""
    async with open_bench(asked.url, quick=asked.quick) as bench:
        if asked.profile:
            await profile(bench, asked.seconds)
            return []
        clients = {"redis-py": version("redis"), "hiredis": version("hiredis")}
        facts = await about(bench.redis, quick=asked.quick, **clients)
        rows = await run(bench, QUEUE | WORKER, asked.only, "make bench")
    reports = [
        Report(name, f"The {name}, measured", facts, [row for row in rows if row.scenario in scenarios])
        for name, scenarios in (("queue", QUEUE), ("worker", WORKER))
    ]
    return [report for report in reports if report.rows]


async def measure_spark(asked: argparse.Namespace) -> list[Report]:
    """Measure Spark. No process is pinned: driver, JVM, Python workers and server share all cores."""
    from benchmarks.spark import scenarios
    from benchmarks.spark.session import CORES, open_session

    with TemporaryDirectory(prefix="leasehold-bench-") as folder, open_session(Path(folder)) as spark:
        async with open_bench(None, quick=asked.quick, cores=False) as bench:
            packages = {
                "redis-py": version("redis"),
                "hiredis": version("hiredis"),
                "pyspark": f"{version('pyspark')}, local[{CORES}]",
                "pyarrow": version("pyarrow"),
            }
            facts = await about(bench.redis, quick=asked.quick, **packages)
            found = {name: getattr(scenarios, name) for name in SPARK}
            rows = await run(bench, found, asked.only, "make bench-spark", spark)
    return [Report("spark", "Spark, measured", facts, rows)]


SUITES = {
    "queue": Suite(
        "Measure the queue and the worker.",
        (*QUEUE, *WORKER),
        measure_queue,
        {
            "--url": {"help": "an empty server to use, which is emptied again; default: start one"},
            "--profile": {
                "action": "store_true",
                "help": "print where the time of a cycle goes; write nothing",
            },
            "--seconds": {"type": float, "default": 3.0, "help": "how long --profile runs cycles"},
        },
    ),
    "rivals": Suite(
        "Measure Leasehold beside other queues.",
        NAMES,
        measure_rivals,
        {
            "--rounds": {"type": int, "default": 3, "help": "how many turns each library has"},
            "--scenarios": {
                "nargs": "+",
                "choices": list(RIVALS),
                "default": list(RIVALS),
                "help": "the scenarios to run; default: all",
            },
            "--here": {"action": "store_true", "help": "run all libraries in this environment"},
        },
    ),
    "spark": Suite("Measure bulk adds, snapshots and streams with Spark.", SPARK, measure_spark),
}
