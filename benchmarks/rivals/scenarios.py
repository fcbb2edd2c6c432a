"""What is measured, in the same way for every library, with an empty server for each scenario.

No worker starts cold. In `drain` and `fifty` all jobs wait when the worker starts. The first ones warm it up;
the clock starts when the last of those ends and stops when the server holds no job any more, so that every
run is acknowledged within the measured time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.measure import metered, percentile
from benchmarks.processes import LINE_TIMEOUT, SERVER_CORE, fresh_server

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from benchmarks.rivals.targets import Library

FIFTY_MS = 50
FIFTY_CONCURRENCY = 100


@dataclass(frozen=True)
class Sizes:
    """How many jobs each scenario runs.

    Attributes:
        one: Jobs added one at a time.
        drain: Jobs that do nothing, also those added many at once.
        drain_warm: Jobs before them that warm the worker up.
        fifty: Jobs of 50 ms.
        fifty_warm: Jobs before them.
        idle: Jobs for an idle worker.
        idle_warm: Jobs before them.
        idle_pause: The mean pause between two of these (s).
    """

    one: int = 1_000
    drain: int = 20_000
    drain_warm: int = 2_000
    fifty: int = 2_000
    fifty_warm: int = 200
    idle: int = 150
    idle_warm: int = 20
    idle_pause: float = 0.02


QUICK = Sizes(one=50, drain=600, drain_warm=100, fifty=200, fifty_warm=100, idle=15, idle_warm=5)


@dataclass
class Figures:
    """The figures of one library in one round.

    Attributes:
        values: Name -> figure.
        samples: The ms from add to handler of each job.
        commands: Command -> (calls per job, server µs per job) in `drain`.
    """

    values: dict[str, float] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    commands: dict[str, tuple[float, float]] = field(default_factory=dict)


async def one(library: Library, sizes: Sizes, figures: Figures) -> None:
    """Add jobs one after the other."""
    async with fresh_server() as (url, redis), library.program("produce", {"url": url}) as producer:
        await producer.receive()
        await producer.ask(_adding(0, sizes.one // 10))
        each = (await producer.ask(_adding(sizes.one // 10, sizes.one)))["each"]
        assert len(each) == sizes.one
        assert await redis.dbsize() > 0
    took = [(after - before) / 1e9 for before, after in each]
    figures.values["one_p50_us"] = median(took) * 1e6
    figures.values["one_per_s"] = len(took) / sum(took)


async def drain(library: Library, sizes: Sizes, figures: Figures) -> None:
    """Add many jobs that do nothing, then run them in one worker process."""
    total = sizes.drain_warm + sizes.drain
    async with fresh_server() as (url, redis):
        seconds = await _fill(library, url, sizes.drain_warm, sizes.drain, 0)
        async with metered(redis, total) as server:
            worked = await _work_off(library, url, redis, warm=sizes.drain_warm, total=total)
    figures.values["bulk_per_s"] = sizes.drain / seconds
    figures.values["drain_per_s"] = sizes.drain / worked.seconds
    figures.values["drain_us"] = worked.seconds / sizes.drain * 1e6
    figures.values["worker_cpu_us"] = worked.cpu / sizes.drain * 1e6
    # The server's figures include the jobs that warm up.
    figures.values["server_cpu_us"] = server.server_cpu / total * 1e6
    figures.commands = {
        name: (calls / total, micros / total)
        for name, (calls, micros) in server.commands.items()
        if calls > total / 1_000
    }


async def fifty(library: Library, sizes: Sizes, figures: Figures) -> None:
    """Run jobs of 50 ms, 100 at once."""
    total = sizes.fifty_warm + sizes.fifty
    async with fresh_server() as (url, redis):
        await _fill(library, url, sizes.fifty_warm, sizes.fifty, FIFTY_MS)
        worked = await _work_off(
            library, url, redis, warm=sizes.fifty_warm, total=total, concurrency=FIFTY_CONCURRENCY
        )
    ideal = sizes.fifty * FIFTY_MS / 1_000 / FIFTY_CONCURRENCY
    figures.values["fifty_of_ideal"] = ideal / worked.seconds


async def idle(library: Library, sizes: Sizes, figures: Figures) -> None:
    """Measure from just before a job is added to the first line of its handler, in an idle worker.

    The producer is another process, on the core of the server, which is idle as well; the worker has the
    other core. Pauses vary, so that no polling interval matches them.
    """
    total = sizes.idle_warm + sizes.idle
    async with (
        fresh_server() as (url, _),
        library.program("work", _task(url, warm=sizes.idle_warm, total=total)) as worker,
        library.program("produce", {"url": url}, SERVER_CORE) as producer,
    ):
        await producer.receive()
        await producer.ask(_adding(0, sizes.idle_warm, pause=sizes.idle_pause))
        await worker.receive()  # it is warm
        each = (await producer.ask(_adding(sizes.idle_warm, sizes.idle, pause=sizes.idle_pause)))["each"]
        await worker.receive()
        runs = checked(await worker.ask({}), total, library)
    late = [(runs[number] - before) / 1e6 for number, (before, _) in enumerate(each, sizes.idle_warm)]
    figures.samples = late
    figures.values["idle_p50_ms"] = median(late)
    figures.values["idle_p99_ms"] = percentile(late, 99)


SCENARIOS = {"one": one, "drain": drain, "fifty": fifty, "idle": idle}


def _task(url: str, *, warm: int, total: int, concurrency: int | None = None) -> dict[str, Any]:
    """Return the task of a worker."""
    return {"url": url, "warm": warm, "runs": total, "concurrency": concurrency}


def _adding(first: int, count: int, *, ms: int = 0, many: bool = False, pause: float = 0) -> dict[str, Any]:
    """Return a command of a producer."""
    return {"first": first, "count": count, "ms": ms, "many": many, "pause": pause}


async def _fill(library: Library, url: str, warm: int, count: int, ms: int) -> float:
    """Add jobs many at once; return the seconds for all but those that warm up."""
    async with library.program("produce", {"url": url}) as producer:
        await producer.receive()
        await producer.ask(_adding(0, warm, ms=ms, many=True))
        reply = await producer.ask(_adding(warm, count, ms=ms, many=True))
        return float(reply["seconds"])


@dataclass(frozen=True)
class _Worked:
    """The wall-clock and CPU seconds of the measured jobs."""

    seconds: float
    cpu: float


async def _work_off(
    library: Library, url: str, redis: Redis, *, warm: int, total: int, concurrency: int | None = None
) -> _Worked:
    """Start a worker on the waiting jobs, and stop the clock when the server holds none of them."""
    assert await library.left(redis) > 0  # this also opens the connection
    task = _task(url, warm=warm, total=total, concurrency=concurrency)
    async with library.program("work", task) as worker:
        await worker.receive()  # it is warm
        await worker.receive()  # all jobs have run
        async with asyncio.timeout(LINE_TIMEOUT):
            while await library.left(redis) > 0:  # noqa: ASYNC110 - no event exists
                await asyncio.sleep(0.0005)
        settled = time.monotonic_ns()
        report = await worker.ask({})
    checked(report, total, library)
    warmed, ended = report["moments"]
    return _Worked((settled - warmed["at"]) / 1e9, ended["cpu"] - warmed["cpu"])


def checked(report: dict[str, Any], total: int, library: Library) -> dict[int, int]:
    """Return the start of each job's run, after checking that each job ran once.

    Raises:
        AssertionError: If one did not run, or ran twice.
    """
    runs: dict[int, int] = dict(report["runs"])
    if len(report["runs"]) != total or set(runs) != set(range(total)):
        raise AssertionError(
            f"{library.label}: {total} jobs, {len(report['runs'])} runs, of {len(runs)} different ones"
        )
    return runs
