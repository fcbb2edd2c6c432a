"""Flows: hand-overs beside Celery and BullMQ, fan-out and join, and the cost of a stage."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.bench import STEP_TIMEOUT
from benchmarks.measure import (
    COSTS,
    Row,
    Sample,
    Setting,
    metered,
    number_row,
    speed_row,
    take_turns,
    time_row,
)
from benchmarks.rivals.suite import checked
from benchmarks.rivals.targets import FLOWS, Library
from benchmarks.scenarios.many import DRAIN_TIMEOUT, running
from benchmarks.scenarios.tasks import KEEP_SECONDS, Tasks
from leasequeue import FanOut, TaskQueue, Worker, fan_out
from leasequeue.keys import QueueKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.bench import Bench, Program
    from benchmarks.rivals.servers import Server
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.tasks import AsyncTask

#: The stages of a chain, and the children of a run where those of libraries are compared.
STAGES, CHILDREN = 10, (10, 1_000)
#: The groups that are open at once where their joins are timed, and the children of each.
OPEN, OPEN_CHILDREN = 100, 20
#: The children of a run of ours, and how many children all runs of a size have together.
FANS, ALL_CHILDREN = (10, 100, 1_000, 10_000), 20_000
CONCURRENCY = 100
#: The mean pause between two runs whose joins are timed (s).
PAUSE_SECONDS = 0.03
#: Script calls from this time on are looked at (µs); the longest of a round is at least this long.
SLOW_US = 200

CHAIN, FAN = "hand-overs of chains", "children and their joins"
JOIN = "last child to next stage"
JOINS_AT_ONCE = "last child to next stage, many groups at once"
FANNED, LONGEST = "fan-out and join", "longest script call"
STAGE = "jobs that do nothing"


async def flows(bench: Bench) -> list[Row]:
    """Measure chains, fan-outs and joins; beside Celery and BullMQ if `make bench-rivals` installed them."""
    return [*await _beside(bench), *await _fans(bench), *await _stages(bench)]


@dataclass
class _Found:
    """What was measured of a library, by round."""

    speeds: list[float] = field(default_factory=list)  #: stages/s
    starts: list[float] = field(default_factory=list)  #: stages started/s
    cpu: list[float] = field(default_factory=list)  #: µs of the worker by stage
    server: list[float] = field(default_factory=list)  #: µs of the server by stage
    late: list[float] = field(default_factory=list)  #: seconds from the last child to the join
    late_of_many: list[float] = field(default_factory=list)  #: the same where many groups are open at once


async def _beside(bench: Bench) -> list[Row]:
    """Let Leasequeue, Celery and BullMQ take turns with the same runs, each in one worker process."""
    installed = [replace(one, here=one.ours and not one.installed) for one in FLOWS]
    installed = [one for one in installed if one.ours or one.installed]
    for one in FLOWS:
        if one not in installed and not one.ours:
            print(f"not measured: {one.name} is not installed: make bench-rivals")
    total = bench.scaled(10_000, 500)
    shapes = [(STAGES, False), *((count + 1, True) for count in bench.scaled(CHILDREN, (10,)))]
    found: dict[tuple[str, int, bool], _Found] = defaultdict(_Found)
    turns = [
        partial(
            _drain,
            library,
            size,
            joins,
            max(1, round(total * library.share) // size),
            found[library.label, size, joins],
        )
        for size, joins in shapes
        for library in installed
    ]
    small = CHILDREN[0] + 1
    timed = [
        partial(_time_joins, one, small, bench.scaled(150, 10), found[one.label, small, True].late)
        for one in installed
    ]
    opened = bench.scaled(OPEN, 10)
    for one in installed:
        late = found[one.label, small, True].late_of_many
        timed.append(partial(_time_joins, one, OPEN_CHILDREN + 1, opened, late, at_once=True))
    await take_turns(bench.scaled(3, 1), [*turns, *timed])
    rows = []
    for (who, size, joins), its in found.items():
        setting: Setting = {"children": size - 1} if joins else {"stages": size}
        share = 1 if joins else (size - 1) / size
        costs = {"client_cpu_us_per_item": its.cpu, "server_cpu_us_per_item": its.server}
        more = {name: sorted(values)[len(values) // 2] for name, values in costs.items()}
        rows.append(
            number_row(
                FAN if joins else CHAIN,
                "stages/s" if joins else "hand-overs/s",
                [share * speed for speed in its.speeds],
                more=more,
                who=who,
                setting=setting,
            )
        )
        rows.append(number_row("runs started", "stages/s", its.starts, who=who, setting=setting))
        if its.late:
            rows.append(time_row(JOIN, its.late, len(its.speeds), who=who, setting=setting))
            many: Setting = {"children": OPEN_CHILDREN, "open": opened}
            rows.append(time_row(JOINS_AT_ONCE, its.late_of_many, len(its.speeds), who=who, setting=many))
    return sorted(rows, key=lambda row: [CHAIN, FAN, JOIN, JOINS_AT_ONCE, "runs started"].index(row.what))


def _task(server: Server, size: int, joins: bool, warm: int, total: int) -> dict[str, Any]:  # noqa: FBT001 - as in JSON
    flow = {"size": size, "joins": joins}
    return {"url": server.url, "warm": warm, "runs": total, "concurrency": None, "flow": flow}


async def _start(producer: Program, first: int, count: int) -> float:
    """Start the runs of stages with so many numbers; return the seconds."""
    asked = {"first": first, "count": count, "ms": 0, "many": True, "pause": 0}
    return float((await producer.ask(asked))["seconds"])


async def _drain(library: Library, size: int, joins: bool, runs: int, found: _Found) -> None:  # noqa: FBT001 - as above
    """Start runs, then let one worker process run all stages; the first tenth of them warms it up."""
    total = runs * size
    warm = total // 10
    async with library.server() as server:
        task = _task(server, size, joins, warm, total)
        async with library.program("produce", {"url": server.url, "flow": task["flow"]}) as producer:
            await producer.receive()
            found.starts.append(total / await _start(producer, 0, total))
        async with server.metered(total) as sample, library.program("work", task) as worker:
            await worker.receive()
            await worker.receive()
            await _empty(server)
            settled = time.monotonic_ns()
            report = await worker.ask({})
    checked(report, total, library)
    warmed, ended = report["moments"]
    found.speeds.append((total - warm) * 1e9 / (settled - warmed["at"]))
    found.cpu.append((ended["cpu"] - warmed["cpu"]) / (total - warm) * 1e6)
    found.server.append(sample.server_cpu / total * 1e6)


async def _empty(server: Server, pause: float = 0.0005) -> None:
    """Wait until the server holds no job."""
    async with asyncio.timeout(DRAIN_TIMEOUT):
        while await server.left() > 0:  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(pause)


async def _time_joins(
    library: Library, size: int, runs: int, late: list[float], *, at_once: bool = False
) -> None:
    """Measure from the start of the last child of a run to that of its join, one run at a time.

    A child does nothing, so that its start is its end. Pauses vary, as those of `idle` of the rivals.
    `at_once`: all runs are started before the worker.
    """
    warm = runs // 10
    total = (runs + warm) * size
    async with library.server() as server:
        task = _task(server, size, True, warm * size, total)
        async with AsyncExitStack() as stack:
            program = library.program("produce", {"url": server.url, "flow": task["flow"]})
            producer = await stack.enter_async_context(program)
            await producer.receive()
            if at_once:
                await _start(producer, 0, total)
            worker = await stack.enter_async_context(library.program("work", task))
            for number in range(0, 0 if at_once else total, size):
                await _start(producer, number, size)
                await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))
                await _empty(server, 0.01)
            await worker.receive()
            await worker.receive()
            began = checked(await worker.ask({}), total, library)
    for last in range(warm * size + size - 1, total, size):
        children = range(last - size + 1, last)
        late.append((began[last] - max(began[child] for child in children)) / 1e9)


class _Fan:
    """Runs of a stage that fans out to so many children, and of their join, in a worker of this process."""

    def __init__(self, bench: Bench, children: int, runs: int) -> None:
        self._bench, self._children, self._runs = bench, children, runs
        self._ended = asyncio.Event()
        self.samples: list[Sample] = []
        self.longest: list[float] = []

    async def round(self) -> None:
        """Start the runs at once, and measure until all are done."""
        bench = self._bench
        self._left = self._runs
        self._ended.clear()
        tasks = await bench.stack.enter_async_context(TaskQueue.from_url(bench.url(), bench.name()))
        spread, join = self._stages(tasks)
        await bench.redis.config_set("slowlog-log-slower-than", SLOW_US)
        async with running(Worker(tasks, concurrency=CONCURRENCY)), asyncio.timeout(DRAIN_TIMEOUT):
            await bench.blocked(1)
            await bench.redis.slowlog_reset()
            async with metered(bench.redis, self._runs * self._children) as sample:
                chains = [spread.call(self._children).then(join) for _ in range(self._runs)]
                await asyncio.gather(*(chain.add(keep=0) for chain in chains))
                await self._ended.wait()
                await _unleased(bench, tasks.queue)
            self.longest.append(await _longest_ms(bench))
        self.samples.append(sample)
        await bench.reset()

    def _stages(self, tasks: TaskQueue) -> tuple[AsyncTask[[int], FanOut[int]], AsyncTask[[list[int]], None]]:
        @tasks.task
        async def child(number: int) -> int:
            return number

        @tasks.task
        async def spread(children: int) -> FanOut[int]:
            return fan_out([child.call(number) for number in range(children)])

        @tasks.task
        async def join(found: list[int]) -> None:
            assert found == list(range(self._children))
            self._left -= 1
            if self._left == 0:
                self._ended.set()

        return spread, join


async def _unleased(bench: Bench, queue: AsyncWorkQueue) -> None:
    """Wait until the server has accepted the completion of what ran last."""
    deadlines = QueueKeys(queue.name, "lh:bench")["deadlines"]
    while await bench.redis.exists(deadlines):  # noqa: ASYNC110 - no event exists
        await asyncio.sleep(0.0005)


async def _longest_ms(bench: Bench) -> float:
    """Return the time of the longest script call since the slow log was emptied."""
    entries = await bench.redis.slowlog_get(-1)
    slow = [entry["duration"] for entry in entries if entry["command"].upper().startswith(b"EVALSHA")]
    return max(slow, default=SLOW_US) / 1e3


async def _fans(bench: Bench) -> list[Row]:
    """Measure runs whose first stage returns 10 to 10,000 children."""
    together = bench.scaled(ALL_CHILDREN, 200)
    fans = {
        children: _Fan(bench, children, max(1, together // children))
        for children in bench.scaled(FANS, (FANS[0], FANS[-1]))
    }
    await take_turns(bench.scaled(3, 1), [fan.round for fan in fans.values()])
    await bench.redis.config_set("slowlog-log-slower-than", 10_000)
    rows = []
    for children, fan in fans.items():
        setting: Setting = {"children": children, "concurrency": CONCURRENCY}
        costs = (*COSTS, "trips_per_item")
        rows.append(speed_row(FANNED, fan.samples, "children/s", costs, setting=setting))
        rows.append(number_row(LONGEST, "ms/call", fan.longest, setting=setting))
    return rows


class _ByHand(Tasks):
    """A worker of one task queue whose tasks add the next ones, in two trips."""

    async def _open(self) -> tuple[Worker, Sequence[AsyncWorkQueue]]:
        worker, queues = await super()._open()

        @self._tasks.task(keep_result=None)
        async def step(before: None, number: int, ms: int) -> None:
            await self._ran()
            if number < STAGES - 1:
                await step.add(before, number + 1, ms)

        self._first = step
        return worker, queues

    async def _fill(self, queue: AsyncWorkQueue, count: int) -> None:  # noqa: ARG002 - that of the tasks
        await self._tasks.add_many([self._first.call(None, 0, 0) for _ in range(count // STAGES)])


class _Stages(Tasks):
    """A worker of one task queue with chains."""

    async def _open(self) -> tuple[Worker, Sequence[AsyncWorkQueue]]:
        worker, queues = await super()._open()

        @self._tasks.task
        async def step(before: None, number: int, ms: int) -> None:  # noqa: ARG001 - as the tasks
            await self._ran()

        self._step = step
        return worker, queues

    async def _fill(self, queue: AsyncWorkQueue, count: int) -> None:  # noqa: ARG002 - that of the tasks
        for _ in range(count // STAGES):
            chain = self._task.call(0, 0).then(self._step, 1, 0)
            for number in range(2, STAGES):
                chain = chain.then(self._step, number, 0)
            await chain.add(keep=0)


async def _stages(bench: Bench) -> list[Row]:
    """Measure jobs that do nothing: as tasks, as tasks that add the next ones, and as stages of chains."""
    jobs = bench.scaled(20_000, 500)
    targets = {
        "tasks": Tasks(bench, jobs, None),
        "tasks, results kept": Tasks(bench, jobs, KEEP_SECONDS),
        "tasks that add the next": _ByHand(bench, jobs, None),
        "stages of chains": _Stages(bench, jobs, KEEP_SECONDS),
    }
    async with asyncio.timeout(STEP_TIMEOUT * 10):
        await take_turns(bench.scaled(3, 1), [target.round for target in targets.values()])
    rows = []
    for kind, target in targets.items():
        setting: Setting = {"kind": kind, "concurrency": CONCURRENCY}
        rows.append(speed_row(STAGE, target.samples, costs=(*COSTS, "trips_per_item"), setting=setting))
    return rows
