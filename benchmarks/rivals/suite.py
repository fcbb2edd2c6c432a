"""The comparison with other libraries: its scenarios, in turns, and its report. README.md describes them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.bench import LINE_TIMEOUT, SERVER_CORE, fresh_server, pin
from benchmarks.measure import Row, number_row, percentile
from benchmarks.report import Report, Section, about, aligned, text
from benchmarks.rivals.targets import LIBRARIES, Library

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.report import Table
    from benchmarks.rivals.servers import Server

FIFTY_MS = 50
FIFTY_CONCURRENCY = 100
#: The mean pause between two jobs of an idle worker (s).
PAUSE_SECONDS = 0.02


@dataclass
class Figures:
    """The figures of one library in one round."""

    values: dict[str, float] = field(default_factory=dict)
    #: The ms of each job, by scenario: from add to handler, or to the result.
    samples: dict[str, list[float]] = field(default_factory=dict)
    #: Command -> (calls per job, server µs per job) in `drain`.
    commands: dict[str, tuple[float, float]] = field(default_factory=dict)


async def one(library: Library, figures: Figures, *, quick: bool) -> None:
    """Add jobs one after the other."""
    count, warm = (50, 5) if quick else (1_000, 100)
    async with library.server() as server, library.program("produce", {"url": server.url}) as producer:
        await producer.receive()
        await producer.ask(_adding(0, warm))
        each = (await producer.ask(_adding(warm, count)))["each"]
        assert len(each) == count
        assert await server.left() > 0
    took = [(after - before) / 1e9 for before, after in each]
    figures.values["one_p50_us"] = median(took) * 1e6
    figures.values["one_per_s"] = len(took) / sum(took)


async def drain(library: Library, figures: Figures, *, quick: bool) -> None:
    """Add many jobs that do nothing, then run them in one worker process."""
    count, warm = (600, 100) if quick else (20_000, 2_000)
    count, warm = round(count * library.share), round(warm * library.share)
    total = count + warm
    async with library.server() as server:
        added = await _fill(library, server.url, warm, count, 0)
        async with server.metered(total) as sample:
            seconds, cpu = await _work_off(library, server, warm, total)
    figures.values["bulk_per_s"] = count / added
    figures.values["drain_per_s"] = count / seconds
    figures.values["drain_us"] = seconds / count * 1e6
    figures.values["worker_cpu_us"] = cpu / count * 1e6
    # The server's figures include the jobs that warm up.
    figures.values["server_cpu_us"] = sample.server_cpu / total * 1e6
    figures.commands = {
        name: (calls / total, sample.micros[name] / total)
        for name, calls in sample.calls.items()
        if calls > total / 1_000
    }


async def fifty(library: Library, figures: Figures, *, quick: bool) -> None:
    """Run jobs of 50 ms, 100 at once."""
    count, warm = (200, 100) if quick else (2_000, 200)
    count, warm = round(count * library.share), round(warm * library.share)
    async with library.server() as server:
        await _fill(library, server.url, warm, count, FIFTY_MS)
        seconds, _ = await _work_off(library, server, warm, warm + count, FIFTY_CONCURRENCY)
    figures.values["fifty_of_ideal"] = count * FIFTY_MS / 1_000 / FIFTY_CONCURRENCY / seconds


async def idle(library: Library, figures: Figures, *, quick: bool) -> None:
    """Measure from just before a job is added to the first line of its handler, in an idle worker.

    The producer is another process, on the core of the server, which is idle as well; the worker has the
    other core. Pauses vary, so that no polling interval matches them.
    """
    count, warm = (15, 5) if quick else (150, 20)
    async with (
        library.server() as server,
        library.program("work", _task(server.url, warm, warm + count)) as worker,
        library.program("produce", {"url": server.url}, SERVER_CORE) as producer,
    ):
        await producer.receive()
        await producer.ask(_adding(0, warm, pause=PAUSE_SECONDS))
        await worker.receive()  # it is warm
        each = (await producer.ask(_adding(warm, count, pause=PAUSE_SECONDS)))["each"]
        await worker.receive()
        runs = checked(await worker.ask({}), warm + count, library)
    late = [(runs[number] - before) / 1e6 for number, (before, _) in enumerate(each, warm)]
    _keep(figures, "idle", late)


async def result(library: Library, figures: Figures, *, quick: bool) -> None:
    """Measure from just before a job is added until the caller has its result; else as `idle`."""
    if not library.results:
        return
    count, warm = (15, 5) if quick else (150, 20)
    async with (
        library.server() as server,
        library.program("work", _task(server.url, warm, warm + count) | {"results": True}) as worker,
        library.program("produce", {"url": server.url, "results": True}, SERVER_CORE) as producer,
    ):
        await producer.receive()
        await producer.ask(_adding(0, warm, pause=PAUSE_SECONDS))
        await worker.receive()  # it is warm
        each = (await producer.ask(_adding(warm, count, pause=PAUSE_SECONDS)))["each"]
        await worker.receive()
        checked(await worker.ask({}), warm + count, library)
    _keep(figures, "result", [(after - before) / 1e6 for before, after in each])


def _keep(figures: Figures, scenario: str, ms: list[float]) -> None:
    """Keep the times of a scenario, and their percentiles."""
    figures.samples[scenario] = ms
    figures.values[f"{scenario}_p50_ms"] = median(ms)
    figures.values[f"{scenario}_p99_ms"] = percentile(ms, 99)


SCENARIOS = {"one": one, "drain": drain, "fifty": fifty, "idle": idle, "result": result}


def _task(url: str, warm: int, total: int, concurrency: int | None = None) -> dict[str, Any]:
    return {"url": url, "warm": warm, "runs": total, "concurrency": concurrency}


def _adding(first: int, count: int, *, ms: int = 0, many: bool = False, pause: float = 0) -> dict[str, Any]:
    return {"first": first, "count": count, "ms": ms, "many": many, "pause": pause}


async def _fill(library: Library, url: str, warm: int, count: int, ms: int) -> float:
    """Add jobs many at once; return the seconds for all but those that warm up."""
    async with library.program("produce", {"url": url}) as producer:
        await producer.receive()
        await producer.ask(_adding(0, warm, ms=ms, many=True))
        return float((await producer.ask(_adding(warm, count, ms=ms, many=True)))["seconds"])


async def _work_off(
    library: Library, server: Server, warm: int, total: int, concurrency: int | None = None
) -> tuple[float, float]:
    """Run the waiting jobs in a worker until the server holds none of them.

    Returns:
        The wall-clock seconds and the worker's CPU seconds since the last job that warms up ended.
    """
    assert await server.left() > 0  # this also opens the connection
    async with library.program("work", _task(server.url, warm, total, concurrency)) as worker:
        await worker.receive()  # it is warm
        await worker.receive()  # all jobs have run
        async with asyncio.timeout(LINE_TIMEOUT):
            while await server.left() > 0:  # noqa: ASYNC110 - no event exists
                await asyncio.sleep(0.0005)
        settled = time.monotonic_ns()
        report = await worker.ask({})
    checked(report, total, library)
    warmed, ended = report["moments"]
    return (settled - warmed["at"]) / 1e9, ended["cpu"] - warmed["cpu"]


def checked(report: dict[str, Any], total: int, library: Library) -> dict[int, int]:
    """Return the start of each job's run, after checking that each job ran once."""
    runs: dict[int, int] = dict(report["runs"])
    if len(report["runs"]) != total or set(runs) != set(range(total)):
        raise AssertionError(
            f"{library.label}: {total} jobs, {len(report['runs'])} runs, of {len(runs)} different ones"
        )
    return runs


#: Figure -> its scenario, its column's head, and whether more is better.
FIGURES = {
    "one_p50_us": ("one", "add one, p50 µs", False),
    "one_per_s": ("one", "add one, 1/s", True),
    "bulk_per_s": ("drain", "add many, 1/s", True),
    "drain_per_s": ("drain", "no-op jobs, 1/s", True),
    "fifty_of_ideal": ("fifty", "50 ms jobs, of ideal", True),
    "idle_p50_ms": ("idle", "idle p50 ms", False),
    "idle_p99_ms": ("idle", "idle p99 ms", False),
    "result_p50_ms": ("result", "add to result, p50 ms", False),
    "result_p99_ms": ("result", "add to result, p99 ms", False),
}
COSTS = ("drain_us", "worker_cpu_us", "server_cpu_us")
#: A target that uses at least this share of its core is bound by it.
BUSY = 0.85
NOTE = (
    "`make bench-rivals`; in brackets: how many times as good Leasequeue is. Each goal is for Leasequeue on "
    "uvloop, which the other libraries on asyncio use as well."
)


@dataclass
class Result:
    """All rounds of one library."""

    library: Library
    rounds: list[Figures]

    def figure(self, name: str) -> float | None:
        """Return the median of the rounds, or the percentile of all their samples; None if not measured."""
        if name.endswith(("_p50_ms", "_p99_ms")):
            samples = [ms for one in self.rounds for ms in one.samples.get(FIGURES[name][0], ())]
            return percentile(samples, 50 if "p50" in name else 99) if samples else None
        values = [one.values[name] for one in self.rounds if name in one.values]
        return median(values) if values else None

    def rows(self) -> list[Row]:
        """Return a row per figure, for goals and plots."""
        setting: dict[str, int | str] = {
            "ours": "yes" if self.library.ours else "no",
            "runtime": "Node" if self.library.on_node else "Python",
            "on": self.library.on,
        }
        scenarios = {name: scenario for name, (scenario, _, _) in FIGURES.items()} | dict.fromkeys(
            COSTS, "drain"
        )
        return [
            replace(number_row(name, "", [value], who=self.library.label, setting=setting), scenario=scenario)
            for name, scenario in scenarios.items()
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
    for number in range(asked.rounds):
        for result in results:
            result.rounds.append(Figures())
        for scenario in asked.scenarios:
            print(f"round {number + 1} of {asked.rounds}, {scenario}", flush=True)
            for result in results if number % 2 == 0 else reversed(results):
                figures, started = result.rounds[-1], time.perf_counter()
                known = set(figures.values)
                await SCENARIOS[scenario](result.library, figures, quick=asked.quick)
                new = [f"{name} {text(value)}" for name, value in figures.values.items() if name not in known]
                took = time.perf_counter() - started
                if new:
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
    return Report("rivals", "Leasequeue and others, measured", facts, rows, sections, {"targets": targets})


def _medians(results: Sequence[Result]) -> Table:
    """Return the figures, each with how many times as good Leasequeue is."""
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
