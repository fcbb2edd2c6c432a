"""How soon a job runs again after SIGKILL of the worker process that ran it, with default settings."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from benchmarks.bench import STEP_TIMEOUT, program
from benchmarks.measure import Row, Setting, time_row
from benchmarks.rivals.targets import LIBRARIES, ROOT, Library

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.bench import Bench, Program

#: How long each job takes, and how long it has run when its worker is killed (s). saq ends jobs after 10 s.
JOB_SECONDS, KILL_AFTER = 4.0, (0.5, 1.5)
#: A job that does not run again within this time counts as not recovered (s).
LIMIT_SECONDS, QUICK_LIMIT_SECONDS = 120.0, 3.0
#: The workers of ours that run at once, how many of them must be ready at a kill, and the workers of others.
OURS, READY, OTHERS = 8, 4, 2
#: The processes of a supervisor, and how many of them are killed: those that die soon are restarted late.
SUPERVISED, KILLED = 6, 5
#: The others: each of these loses so many workers, all at the same time, on different servers.
RIVALS, RIVAL_KILLS = ("bullmq", "taskiq-redis", "saq", "arq", "streaq"), 3
#: How long new workers have to become ready (s).
READY_SECONDS, QUICK_READY_SECONDS = 8.0, 1.0
#: Starting processes would hold up those that run on the same core.
ANY_CORE: list[int] = []

WHAT = "SIGKILL to running again"


async def kills(bench: Bench) -> list[Row]:
    """Measure from SIGKILL of the worker process that runs a job until another runs the job.

    Settings that decide about recovery are the defaults of each library. Leasequeue is measured twice: with
    single worker processes, where others notice the death, and with `leasequeue worker --processes`, where
    the supervisor does. Others are measured if `make bench-rivals` has installed them.
    """
    ours = replace(next(one for one in LIBRARIES if one.ours), here=True)
    count = bench.scaled(32, 2)
    ready = bench.scaled(READY_SECONDS, QUICK_READY_SECONDS)
    late = await _killed(ours, OURS, count, STEP_TIMEOUT, ready)
    rows = [_row(late, ours.label, STEP_TIMEOUT, "peers")]
    supervised: list[float | None] = []
    for _ in range(bench.scaled(7, 1)):
        supervised += await _supervised(ours, bench.scaled(KILLED, 2), ready)
    rows.append(_row(supervised, ours.label, STEP_TIMEOUT, "the supervisor"))
    limit = bench.scaled(LIMIT_SECONDS, QUICK_LIMIT_SECONDS)
    rivals = [one for one in LIBRARIES if one.name in RIVALS]
    tried = await asyncio.gather(*(_rival(one, bench.scaled(RIVAL_KILLS, 1), limit, ready) for one in rivals))
    for library, its in zip(rivals, tried, strict=True):
        if its:
            rows.append(_row(its, library.label, limit))
    return rows


def _row(late: list[float | None], who: str, limit: float, noticed_by: str = "") -> Row:
    """Return a row of the times until jobs ran again; None: not within the limit."""
    again = [seconds for seconds in late if seconds is not None]
    setting: Setting = {"kills": len(late)} | ({"noticed by": noticed_by} if noticed_by else {})
    if len(again) == len(late):
        return time_row(WHAT, again, setting=setting, who=who)
    setting["running again"] = f"{len(again)} of {len(late)} within {limit:g} s"
    low = min(again, default=limit)
    return Row(
        what=WHAT,
        who=who,
        setting=setting,
        unit="ms or more",
        value=limit * 1e3,
        low=low * 1e3,
        high=limit * 1e3,
    )


class _Starts:
    """The starts of jobs in several programs."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[tuple[Program, dict[str, Any]]] = asyncio.Queue()
        self._reading: list[asyncio.Task[None]] = []

    def follow(self, one: Program) -> None:
        """Read the lines of a program."""
        self._reading.append(asyncio.create_task(self._read(one)))

    async def began(self, number: int) -> tuple[Program, dict[str, Any]]:
        """Wait for the start of a job; return the program, and what it wrote."""
        while True:
            one, line = await self._lines.get()
            if line.get("began") == number:
                return one, line

    async def close(self) -> None:
        """Read no more."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _read(self, one: Program) -> None:
        while line := await one.stdout.readline():
            self._lines.put_nowait((one, json.loads(line)))


@asynccontextmanager
async def _following() -> AsyncIterator[tuple[AsyncExitStack, _Starts]]:
    """Start programs in the block, and follow them; all are ended with it."""
    starts = _Starts()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(starts.close)
        yield stack, starts


async def _killed(
    library: Library, workers: int, count: int, limit: float, ready: float
) -> list[float | None]:
    """Kill so many workers, one after the other, each of them while it runs a job."""
    late: list[float | None] = []
    async with library.server() as server, _following() as (stack, starts):
        producer = await stack.enter_async_context(library.program("produce", {"url": server.url}))
        await producer.receive()
        task = {"url": server.url, "runs": 0, "warm": 0, "concurrency": None, "announces": True}

        async def start() -> None:
            starts.follow(await stack.enter_async_context(library.program("work", task, ANY_CORE)))

        for _ in range(workers):
            await start()
        await asyncio.sleep(ready)
        for number in range(count):
            await producer.ask(_adding(number))
            victim, _ = await starts.began(number)
            if library.ours:
                await _registered(server.url, READY)
            await asyncio.sleep(random.uniform(*KILL_AFTER))
            late.append(await _again(starts, number, victim.pid, limit))
            await start()
    return late


async def _registered(url: str, count: int) -> None:
    """Wait until so many of our workers are ready: those that replace killed ones start slowly."""
    async with Redis.from_url(url) as redis, asyncio.timeout(STEP_TIMEOUT):
        while await redis.zcard("jobs:heartbeats") < count:  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0.05)


async def _supervised(library: Library, count: int, ready: float) -> list[float | None]:
    """Kill so many processes of a supervisor, one after the other, each of them while it runs a job."""
    late: list[float | None] = []
    command = [sys.executable, "-m", "leasequeue.cli", "worker"]
    target = "benchmarks.rivals.programs.leasequeue_supervised:worker"
    options = ["--processes", f"{SUPERVISED}", "--grace", "0", "--log-level", "error"]
    async with library.server() as server, _following() as (stack, starts):
        producer = await stack.enter_async_context(library.program("produce", {"url": server.url}))
        await producer.receive()
        env = {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_URL": server.url}
        supervisor = await stack.enter_async_context(
            program([*command, target, *options], "supervisor", env=env, cores=ANY_CORE)
        )
        starts.follow(supervisor)
        stack.callback(os.kill, supervisor.pid, signal.SIGTERM)
        await asyncio.sleep(ready)
        for number in range(count):
            await producer.ask(_adding(number))
            _, line = await starts.began(number)
            await asyncio.sleep(random.uniform(*KILL_AFTER))
            late.append(await _again(starts, number, line["pid"], STEP_TIMEOUT))
    return late


async def _rival(library: Library, kills: int, limit: float, ready: float) -> list[float | None]:
    """Kill workers of another library, each on its own server; return nothing if it is not installed."""
    try:
        tried = await asyncio.gather(*(_killed(library, OTHERS, 1, limit, ready) for _ in range(kills)))
    except FileNotFoundError as error:
        print(f"not measured: {error}")
        return []
    return [seconds for late in tried for seconds in late]


async def _again(starts: _Starts, number: int, pid: int, limit: float) -> float | None:
    """Kill the process that runs a job; return the seconds until the job runs again, None if too many."""
    killed = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(limit):
            _, line = await starts.began(number)
    except TimeoutError:
        return None
    return float(line["at"] - killed) / 1e9


def _adding(number: int) -> dict[str, Any]:
    """Return the command to add a job."""
    return {"first": number, "count": 1, "ms": round(JOB_SECONDS * 1e3), "many": False, "pause": 0}
