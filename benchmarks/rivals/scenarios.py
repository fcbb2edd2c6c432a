"""What is measured, in the same way for everybody. Each scenario has a fresh server.

No scenario lets a worker start cold. In `drain` and `fifty` the worker finds all jobs there; the first ones
warm it up, and the clock starts with the end of the last of those. It stops when the server holds no job any
more, which also shows that every run was acknowledged. So what is counted is as many runs with their
acknowledgements as there are jobs beyond the warm-up.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.measure import middle, percentile
from benchmarks.rivals.people import PATIENCE_SECONDS, SERVER_CORE, fresh_server, program

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from benchmarks.rivals.contestants import Contestant

#: How often the server is asked whether jobs are left, once all have run (s).
LOOK_SECONDS = 0.0005
FIFTY_MS = 50
FIFTY_CONCURRENCY = 100


@dataclass(frozen=True)
class Sizes:
    """How much is done.

    Attributes:
        one: Jobs added one at a time.
        drain: Jobs of no time, also those added many at once.
        drain_warm: Those before them that warm the worker up.
        fifty: Jobs of 50 ms.
        fifty_warm: Those before them.
        idle: Jobs that find an idle worker.
        idle_warm: Those before them.
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
    """What one contestant has shown in one round.

    Attributes:
        values: Name -> figure.
        samples: ms from add to handler, each.
        commands: Command -> (calls per job, server µs per job), while draining.
    """

    values: dict[str, float] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    commands: dict[str, tuple[float, float]] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """As it is written down."""
        return asdict(self)


async def one(contestant: Contestant, sizes: Sizes, figures: Figures) -> None:
    """Add jobs one after the other, each when the last is there."""
    async with fresh_server() as (url, redis), program(contestant, "produce", {"url": url}) as producer:
        await producer.hear()
        await producer.ask(adding(0, sizes.one // 10, pause=0))
        each = (await producer.ask(adding(sizes.one // 10, sizes.one, pause=0)))["each"]
        assert len(each) == sizes.one
        assert await redis.dbsize() > 0
    took = [(after - before) / 1e9 for before, after in each]
    figures.values["one_p50_us"] = middle(took) * 1e6
    figures.values["one_per_s"] = len(took) / sum(took)


async def drain(contestant: Contestant, sizes: Sizes, figures: Figures) -> None:
    """Add many jobs of no time, then run them in one worker process."""
    total = sizes.drain_warm + sizes.drain
    async with fresh_server() as (url, redis):
        seconds = await filled(contestant, url, sizes.drain_warm, sizes.drain, 0)
        figures.values["bulk_per_s"] = sizes.drain / seconds
        before = await used(redis)
        worked = await work_off(contestant, url, redis, warm=sizes.drain_warm, total=total)
        after = await used(redis)
    figures.values["drain_per_s"] = sizes.drain / worked.seconds
    figures.values["drain_us"] = worked.seconds / sizes.drain * 1e6
    figures.values["worker_cpu_us"] = worked.cpu / sizes.drain * 1e6
    # The server is asked before the worker starts and when all is done, so its figures are for all jobs.
    figures.values["server_cpu_us"] = (after.cpu - before.cpu) / total * 1e6
    figures.commands = {
        name: ((calls - before.calls(name)) / total, (micros - before.micros(name)) / total)
        for name, (calls, micros) in after.commands.items()
        if calls - before.calls(name) > total / 1_000
    }


async def fifty(contestant: Contestant, sizes: Sizes, figures: Figures) -> None:
    """Run jobs of 50 ms, 100 at once."""
    total = sizes.fifty_warm + sizes.fifty
    async with fresh_server() as (url, redis):
        await filled(contestant, url, sizes.fifty_warm, sizes.fifty, FIFTY_MS)
        worked = await work_off(
            contestant, url, redis, warm=sizes.fifty_warm, total=total, concurrency=FIFTY_CONCURRENCY
        )
    ideal = sizes.fifty * FIFTY_MS / 1_000 / FIFTY_CONCURRENCY
    figures.values["fifty_of_ideal"] = ideal / worked.seconds


async def idle(contestant: Contestant, sizes: Sizes, figures: Figures) -> None:
    """From just before a job is added to the first line of its handler, in a worker that waits.

    The producer is another process. It sits beside the server, which is idle as well, and the worker has the
    other core. Pauses vary, so that no poll can keep step with them.
    """
    total = sizes.idle_warm + sizes.idle
    async with (
        fresh_server() as (url, _),
        program(contestant, "work", task(url, warm=sizes.idle_warm, total=total)) as worker,
        program(contestant, "produce", {"url": url}, SERVER_CORE) as producer,
    ):
        await producer.hear()
        await producer.ask(adding(0, sizes.idle_warm, pause=sizes.idle_pause))
        await worker.hear()  # it has started, and has nothing to do
        each = (await producer.ask(adding(sizes.idle_warm, sizes.idle, pause=sizes.idle_pause)))["each"]
        await worker.hear()
        runs = checked(await worker.ask({}), total, contestant)
    late = [(runs[number] - before) / 1e6 for number, (before, _) in enumerate(each, sizes.idle_warm)]
    figures.samples = late
    figures.values["idle_p50_ms"] = middle(late)
    figures.values["idle_p99_ms"] = percentile(late, 99)


SCENARIOS = {"one": one, "drain": drain, "fifty": fifty, "idle": idle}


# ------------------------------------------------------------------------------------------------- the steps


def task(url: str, *, warm: int, total: int, concurrency: int | None = None) -> dict[str, Any]:
    """What a worker is told when it starts."""
    return {"url": url, "warm": warm, "runs": total, "concurrency": concurrency}


def adding(first: int, count: int, *, ms: int = 0, many: bool = False, pause: float = 0) -> dict[str, Any]:
    """What a producer is told to do."""
    return {"first": first, "count": count, "ms": ms, "many": many, "pause": pause}


async def filled(contestant: Contestant, url: str, warm: int, count: int, ms: int) -> float:
    """Add jobs many at once; return how many seconds that took for all but the first ones."""
    async with program(contestant, "produce", {"url": url}) as producer:
        await producer.hear()
        await producer.ask(adding(0, warm, ms=ms, many=True))
        told = await producer.ask(adding(warm, count, ms=ms, many=True))
        return float(told["seconds"])


@dataclass(frozen=True)
class Worked:
    """What running the jobs took, from the end of the last one that warms up: seconds, and CPU seconds."""

    seconds: float
    cpu: float


async def work_off(
    contestant: Contestant, url: str, redis: Redis, *, warm: int, total: int, concurrency: int | None = None
) -> Worked:
    """Start a worker on the jobs that wait, and stop the clock when the server holds none of them."""
    told = task(url, warm=warm, total=total, concurrency=concurrency)
    assert await contestant.left(redis) > 0  # also: the connection is open
    async with program(contestant, "work", told) as worker:
        await worker.hear()  # warm
        await worker.hear()  # all have run
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await contestant.left(redis) > 0:  # noqa: ASYNC110 - the server would tell nobody
                await asyncio.sleep(LOOK_SECONDS)
        settled = time.monotonic_ns()
        report = await worker.ask({})
    checked(report, total, contestant)
    warmed, ended = report["moments"]
    return Worked((settled - warmed["at"]) / 1e9, ended["cpu"] - warmed["cpu"])


def checked(report: dict[str, Any], total: int, contestant: Contestant) -> dict[int, int]:
    """Number -> when its run began, after making sure that each job ran once.

    Raises:
        AssertionError: If one did not run, or ran twice.
    """
    runs: dict[int, int] = dict(report["runs"])
    if len(report["runs"]) != total or set(runs) != set(range(total)):
        raise AssertionError(
            f"{contestant.label}: {total} jobs, {len(report['runs'])} runs, of {len(runs)} different ones"
        )
    return runs


@dataclass(frozen=True)
class Used:
    """What the server had used at some moment.

    Attributes:
        cpu: CPU seconds of its main thread, where it tells that apart.
        commands: Command -> (calls, µs), those inside scripts included, in both.
    """

    cpu: float
    commands: dict[str, tuple[int, float]]

    def calls(self, name: str) -> int:
        """How often a command had been called."""
        return self.commands.get(name, (0, 0.0))[0]

    def micros(self, name: str) -> float:
        """The time that a command had taken (µs)."""
        return self.commands.get(name, (0, 0.0))[1]


async def used(redis: Redis) -> Used:
    """Ask the server."""
    cpu, stats = await redis.info("cpu"), await redis.info("commandstats")
    kinds = ("used_cpu_user", "used_cpu_sys")
    return Used(
        sum(float(cpu.get(f"{kind}_main_thread", cpu[kind])) for kind in kinds),
        {
            name.removeprefix("cmdstat_"): (int(entry["calls"]), float(entry["usec"]))
            for name, entry in stats.items()
        },
    )
