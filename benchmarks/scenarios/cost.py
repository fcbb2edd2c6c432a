"""Where the time goes: by step, side, script and trip; beside a bare protocol, and with a log on disk."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks import bare
from benchmarks.bench import STEP_TIMEOUT, Child
from benchmarks.measure import (
    STEP_COSTS,
    Row,
    Sample,
    Setting,
    metered,
    number_row,
    speed_row,
    take_turns,
    time_row,
)
from benchmarks.scenarios.many import Drained, open_queues, produce, running
from benchmarks.targets import Ours, Trial
from leasequeue import AsyncWorkQueue, Item, Worker, call_sync
from leasequeue.wire.scripts import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from benchmarks.bench import Bench
    from leasequeue.wire.scripts import Script

PAYLOAD = 100
COROUTINES = 1_000
#: Items per call of `add_items`.
CHUNK = 1_000
#: Marks the end of the commands that MONITOR reports.
END = "leasequeue benchmark end"


async def single(bench: Bench) -> list[Row]:
    """Measure add_item awaited again and again, beside `call_sync` and a bare protocol."""
    queue, connection = await bench.queue(), await bare.Connection.open(bench.url())
    count = bench.scaled(3_000, 200)
    ours, plain, reference = list[Sample](), list[Sample](), list[Sample]()
    separate = AsyncWorkQueue.from_url(bench.url(), queue.name)

    async def add_sync() -> None:
        items = [Item(bytes(PAYLOAD)) for _ in range(count)]

        def add_all() -> None:
            for item in items:
                call_sync(separate.add_item, item)

        async with metered(bench.redis, count) as sample:
            await asyncio.to_thread(add_all)
        plain.append(sample)

    async def add() -> None:
        items = [Item(bytes(PAYLOAD)) for _ in range(count)]
        async with metered(bench.redis, count) as sample:
            for item in items:
                await queue.add_item(item)
        ours.append(sample)

    async def add_bare() -> None:
        ids = [f"{len(reference)}-{number}" for number in range(count)]
        async with metered(bench.redis, count) as sample:
            for item_id in ids:
                await connection.add(item_id, bytes(PAYLOAD))
        reference.append(sample)

    await take_turns(bench.scaled(7, 2), [add, add_sync, add_bare])
    connection.close()
    await asyncio.to_thread(call_sync, separate.close)
    return [
        speed_row("lone add", ours, costs=STEP_COSTS),
        speed_row("lone add", plain, costs=STEP_COSTS, who="call_sync"),
        speed_row("lone add", reference, costs=STEP_COSTS, who="bare"),
    ]


async def durable(bench: Bench) -> list[Row]:
    """Measure the same with and without `appendfsync always`, which writes to the disk before each reply.

    The bare protocol awaits a script of two writes again and again: what it loses, the disk takes for a trip.
    """
    lone, many = bench.scaled(1_000, 100), bench.scaled(20_000, 2_000)
    samples: dict[tuple[str, str], list[Sample]] = {}

    async def add_one() -> None:
        queue = await bench.queue()
        for _ in range(lone):
            await queue.add_item(Item(bytes(PAYLOAD)))

    async def add_bare() -> None:
        connection = await bare.Connection.open(bench.url())
        for number in range(lone):
            await connection.add(str(number), bytes(PAYLOAD))
        connection.close()

    async def add_many() -> None:
        queue = await bench.queue()
        for _ in range(many // CHUNK):
            await queue.add_items([Item(bytes(PAYLOAD)) for _ in range(CHUNK)])

    async def cycle() -> None:
        ours = Ours(await bench.queue(), COROUTINES)
        await ours.prepare_cycle(many // 2, PAYLOAD)
        await ours.cycle()

    drained = {mode: Drained(bench, 1, 1, 100, many) for mode in ("off", "always")}
    steps: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
        "lone add": (lone, add_one),
        "lone add, bare": (lone, add_bare),
        "add many": (many, add_many),
        "whole cycle": (many // 2, cycle),
    }

    async def turn(mode: str) -> None:
        await _append(bench, mode)
        for what, (items, step) in steps.items():
            async with metered(bench.redis, items) as sample:
                await step()
            samples.setdefault((what, mode), []).append(sample)
            await bench.reset()
        await drained[mode].round()

    await take_turns(bench.scaled(3, 1), [partial(turn, mode) for mode in drained])
    await _append(bench, "off")
    samples |= {("worker", mode): its.samples for mode, its in drained.items()}
    return [
        speed_row(
            what.removesuffix(", bare"),
            its,
            who="bare" if what.endswith(", bare") else "leasequeue",
            setting={"appendfsync": mode},
        )
        for (what, mode), its in samples.items()
    ]


async def _append(bench: Bench, mode: str) -> None:
    """Let the server append to a log and wait for the disk before each reply, or keep none."""
    await bench.redis.config_set("appendfsync", "always")
    await bench.redis.config_set("appendonly", "no" if mode == "off" else "yes")
    async with asyncio.timeout(STEP_TIMEOUT):
        while True:
            info = await bench.redis.info("persistence")
            if not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]):
                return
            await asyncio.sleep(0.01)


async def where(bench: Bench) -> list[Row]:
    """Measure each step on either side, alone and by 1,000 coroutines, a worker's scripts, and an idle job.

    Trips are the commands that clients send, commands those inside the scripts. "kernel" is the part of the
    CPU time that is spent in system calls.
    """
    rows: list[Row] = []
    for coroutines in (1, COROUTINES):
        items = bench.scaled(1_000 if coroutines == 1 else 10_000, 200)
        setting: Setting = {"coroutines": coroutines}
        trial = Trial.phases(Ours(await bench.queue(), coroutines), setting, items, PAYLOAD)
        await take_turns(bench.scaled(5, 2), [partial(trial.round, bench.redis)])
        rows += [
            speed_row(step, samples, costs=STEP_COSTS, setting=setting)
            for step, samples in trial.samples.items()
        ]
        await bench.reset()
    worker = Drained(bench, 1, 1, 100, bench.scaled(20_000, 1_000))
    await bench.redis.config_set("slowlog-max-len", 100_000)
    await take_turns(bench.scaled(3, 1), [worker.round])
    rows.append(speed_row("worker", worker.samples, costs=STEP_COSTS, setting={"concurrency": 100}))
    rows += await _scripts(bench)
    rows += [number_row(f"functions of {name}", "1/call", [_functions(load()[name])]) for name in LONE]
    return [*rows, *await _idle_job(bench)]


async def _scripts(bench: Bench) -> list[Row]:
    """Return the server's µs per job of each script under a working worker, according to SLOWLOG."""
    await bench.redis.config_set("slowlog-log-slower-than", 0)
    await bench.redis.slowlog_reset()
    jobs = bench.scaled(20_000, 1_000)
    worker = Drained(bench, 1, 1, 100, jobs, warm=0)
    await worker.round()
    entries = await bench.redis.slowlog_get(100_000)
    await bench.redis.config_set("slowlog-log-slower-than", -1)
    micros, calls = Counter[str](), Counter[str]()
    for entry in entries:
        if name := _script(entry["command"].decode(errors="replace")):
            micros[name] += entry["duration"]
            calls[name] += 1
    return [
        number_row(f"script {name}", "µs/job", [its / jobs], more={"calls_per_item": calls[name] / jobs})
        for name, its in micros.most_common()
    ]


#: The scripts of a lone call of a user or a worker.
LONE = ("add_items", "lease_many", "renew_many", "release_many", "complete_many", "fail_many", "counts")
_BLOCKS = re.compile(r"'[^'\n]*'|\b(function|do|then|elseif|repeat|end|until)\b")


def _functions(script: Script) -> int:
    """Return how many functions the server creates in each call: those in no other function and no branch."""
    depth = count = 0
    for block in _BLOCKS.finditer(script.body.decode()):
        if block[1] in ("function", "do", "then", "repeat"):
            count += block[1] == "function" and depth == 0
            depth += 1
        elif block[1]:
            depth -= 1
    return count


def _script(command: str) -> str:
    """Return the name of the script that a command calls; empty for other commands."""
    words = command.split(maxsplit=2)
    if words[0].upper() == "EVAL":
        return "sent in full"
    return NAMES.get(words[1], "other") if words[0].upper() == "EVALSHA" else ""


NAMES = {script.sha.decode(): name for name, script in load().items()}


async def _idle_job(bench: Bench) -> list[Row]:
    """Measure the CPU time of a job in an idle worker, then split its time by what MONITOR shows."""
    count = bench.scaled(200, 20)
    client = await bench.client()
    worker, starts = Worker(), asyncio.Queue[tuple[float, float]]()
    [queue] = await open_queues(bench, 1)

    @worker.handler(queue)
    async def work(since: str) -> None:
        starts.put_nowait((float(since), time.time()))

    async def jobs() -> list[tuple[float, float]]:
        producer = Child(produce, bench.url(), queue.name, count, time.time)
        found = [await starts.get() for _ in range(count)]
        await bench.blocked(1)
        producer.kill()
        return found

    async with running(worker), asyncio.timeout(STEP_TIMEOUT):
        await bench.blocked(1)
        async with metered(bench.redis, count) as sample:
            await jobs()
        with _monitored(bench) as seen:
            times = await jobs()
            await client.echo(END)
    rows = [speed_row("idle job", [sample], costs=STEP_COSTS), *_parts(times, seen)]
    await bench.reset()
    return rows


def _parts(times: list[tuple[float, float]], seen: Sequence[tuple[float, str]]) -> Iterator[Row]:
    """Yield the time of each part of an idle job, and the trips of a job by script or command."""
    parts: dict[str, list[float]] = {}
    trips = Counter[str]()
    for (called, handled), (added, its) in zip(times, _jobs(seen), strict=True):
        before = [at for at, _ in its if at < handled] or [added]
        done = next((at for at, name in its if at > handled and "complete" in name), handled)
        for what, seconds in (
            ("add called to server", added - called),
            ("server to first trip of the worker", before[0] - added),
            ("first trip to last trip", before[-1] - before[0]),
            ("last trip to handler", handled - before[-1]),
            ("handler to completed", done - handled),
        ):
            parts.setdefault(what, []).append(seconds)
        trips.update(name for _, name in its)
    for what, each in parts.items():
        yield time_row(f"idle job: {what}", each)
    for name, calls in trips.most_common():
        if calls * 20 > len(times):
            yield number_row(f"idle job: trips {name}", "1/job", [calls / len(times)])


@contextmanager
def _monitored(bench: Bench) -> Iterator[list[tuple[float, str]]]:
    """Collect when each command of a client came, and the name of its script or its own.

    Nothing is read before the end of the block, so that it costs this process no time.
    """
    at = urlsplit(bench.server_url)
    seen = list[tuple[float, str]]()
    with socket.create_connection((at.hostname, at.port or 6379)) as monitor, monitor.makefile() as lines:
        monitor.sendall(b"MONITOR\r\n")
        lines.readline()
        yield seen
        for line in iter(lines.readline, ""):
            if END in line:
                return
            moment, _, source, *words = line.split()
            if source != "lua]":
                command = " ".join(words).replace('"', "")
                seen.append((float(moment[1:]), _script(command) or words[0].strip('"').lower()))


def _jobs(seen: Sequence[tuple[float, str]]) -> Iterator[tuple[float, list[tuple[float, str]]]]:
    """Yield when each item was added, and the commands until the next one, without those of the benchmark."""
    adds = [at for at, (_, name) in enumerate(seen) if name == "add_items"]
    for first, end in zip(adds, [*adds[1:], len(seen)], strict=True):
        yield seen[first][0], [(at, name) for at, name in seen[first + 1 : end] if name != "info"]
