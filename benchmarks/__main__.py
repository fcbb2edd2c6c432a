"""Run a suite of benchmarks: `make bench`, `make bench-rivals`, `make bench-spark`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.bench import Bench, open_bench
from benchmarks.profile import profile
from benchmarks.report import Report, about, aligned, table
from benchmarks.rivals.suite import SCENARIOS as RIVALS
from benchmarks.rivals.suite import measure as measure_rivals
from benchmarks.rivals.targets import NAMES
from benchmarks.scenarios import (
    autoscale,
    cost,
    encoded,
    events,
    extras,
    flows,
    kills,
    lanes,
    many,
    outbox,
    queue,
    replicas,
    service,
    start,
    tasks,
    telemetry,
    waiting,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.measure import Row

    Scenario = Callable[..., Awaitable[list[Row]]]

RESULTS = Path(__file__).parent / "results"
#: The scenarios by result file, in the order in which they run. Each returns the rows of one table.
FILES: dict[str, tuple[Scenario, ...]] = {
    "queue": (
        *(queue.cycle, queue.throughput, queue.lone, queue.gather, queue.backlog, queue.flight),
        *(waiting.latency, waiting.idle, waiting.kill, queue.memory),
    ),
    "worker": (worker.worker, worker.worker_idle, worker.worker_restart),
    "start": (start.start,),
    "kills": (kills.kills,),
    "core": (
        *(many.many, many.idle_worker, cost.single, cost.durable, cost.where, events.events, lanes.lanes),
        *(replicas.replicated, encoded.codecs),
    ),
    "tasks": (tasks.tasks, tasks.waiters),
    "flows": (flows.flows,),
    "extras": (extras.extras,),
    "telemetry": (telemetry.telemetry,),
    "outbox": (outbox.outbox,),
    "service": (service.service,),
    "autoscale": (autoscale.autoscale,),
}
SCENARIOS = tuple(scenario for its in FILES.values() for scenario in its)
SPARK = ("bulk_add", "snapshot", "growth", "drain")


async def run(
    bench: Bench, scenarios: Sequence[Scenario], asked: argparse.Namespace, command: str, *given: object
) -> list[Row]:
    """Run the chosen scenarios one after the other, and print the rows of each."""
    rows: list[Row] = []
    for scenario in scenarios:
        name = scenario.__name__
        if name in asked.only:
            started, bench.scenario = time.perf_counter(), name
            its_rows = [
                replace(row, scenario=name, command=f"{command} ARGS='--only {name}'")
                for row in await scenario(bench, *given)
            ]
            await bench.reset()
            print(f"\n{name} ({time.perf_counter() - started:.0f} s)\n", flush=True)
            print(aligned(table(its_rows)), flush=True)
            rows += its_rows
    print()
    return rows


def names(scenarios: Sequence[Scenario]) -> list[str]:
    """Return the names of scenarios."""
    return [scenario.__name__ for scenario in scenarios]


async def measure_queue(asked: argparse.Namespace) -> list[Report]:
    """Measure the queue, the worker and what they cost beside a bare path."""
    async with open_bench(asked.url, quick=asked.quick) as bench:
        bench.queues = tuple(asked.queues)
        if asked.profile:
            await profile(bench, asked.seconds)
            return []
        packages = {"redis-py": version("redis"), "hiredis": version("hiredis")}
        facts = await about(bench.redis, quick=asked.quick, **packages)
        rows = await run(bench, SCENARIOS, asked, "make bench")
    found = {name: [row for row in rows if row.scenario in names(its)] for name, its in FILES.items()}
    return [Report(name, f"The {name}, measured", facts, its) for name, its in found.items() if its]


async def measure_spark(asked: argparse.Namespace) -> list[Report]:
    """Measure Spark. No process is pinned: driver, JVM, Python workers and server share all cores."""
    from benchmarks.scenarios import spark
    from benchmarks.scenarios.spark_growth import growth

    with (
        TemporaryDirectory(prefix="leasequeue-bench-") as folder,
        spark.open_session(Path(folder)) as session,
    ):
        async with open_bench(None, quick=asked.quick, cores=False) as bench:
            packages = {"redis-py": version("redis"), "hiredis": version("hiredis")}
            packages |= {"pyspark": f"{version('pyspark')}, {session.sparkContext.master}"}
            facts = await about(bench.redis, quick=asked.quick, **packages, pyarrow=version("pyarrow"))
            bench.rows = asked.rows
            scenarios = (spark.bulk_add, spark.snapshot, growth, spark.drain)
            rows = await run(bench, scenarios, asked, "make bench-spark", session)
    return [Report("spark", "Spark, measured", facts, rows)]


@dataclass(frozen=True)
class Suite:
    """A set of benchmarks with one command line."""

    about: str
    choices: Sequence[str]  #: what `--only` accepts
    measure: Callable[[argparse.Namespace], Awaitable[list[Report]]]
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  #: further options


SUITES = {
    "queue": Suite(
        "Measure the queue and the worker.",
        names(SCENARIOS),
        measure_queue,
        {
            "--url": {"help": "an empty server to use, which is emptied again; default: start one"},
            "--queues": {
                "nargs": "+",
                "type": int,
                "default": (1, 20, 100),
                "help": "of a worker",
            },
            "--profile": {"action": "store_true", "help": "only print where the time of a cycle goes"},
            "--seconds": {"type": float, "default": 3.0, "help": "how long --profile runs cycles"},
        },
    ),
    "rivals": Suite(
        "Measure Leasequeue beside other queues.",
        NAMES,
        measure_rivals,
        {
            "--rounds": {"type": int, "default": 3, "help": "how many turns each library has"},
            "--scenarios": {"nargs": "+", "choices": RIVALS, "default": RIVALS, "help": "default: all"},
            "--here": {"action": "store_true", "help": "run all libraries in this environment"},
        },
    ),
    "spark": Suite(
        "Measure bulk adds, snapshots, streams and `process` with Spark.",
        SPARK,
        measure_spark,
        {"--rows": {"type": int, "default": 1_000_000, "help": "of the largest table of growth"}},
    ),
}


def arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line; without the name of a suite it is the queue's."""
    name = argv.pop(0) if argv and argv[0] in SUITES else "queue"
    suite = SUITES[name]
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name}", description=suite.about, epilog=f"suites: {', '.join(SUITES)}"
    )
    add, some = parser.add_argument, f"of {', '.join(suite.choices)}"
    add("--only", nargs="+", choices=suite.choices, default=suite.choices, metavar="NAME", help=some)
    add("--quick", action="store_true", help="do little: shows that it works, not how fast")
    add("--out", type=Path, default=RESULTS, help="the folder for the results")
    add(
        "--check",
        action="store_true",
        help="fail if a ratio or a count misses its goal by more than noise",
    )
    for option, settings in suite.options.items():
        add(option, **settings)
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
            if goal.checked and not goal.reached(value, margin=goal.margin):
                missed.append(goal.line(value))
    if asked.check and missed:
        print("\nmissed by more than noise:", *missed, sep="\n    ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
