"""Where the time goes in the whole cycle: by script, by command inside the scripts, and on our own side.

The server's slow log, set to log everything, tells the time of each script while add, lease and complete
run side by side, and the command statistics what the commands inside the scripts took. What is left of
a script's time is the Lua interpreter's.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks.contestants import Ours
from benchmarks.measure import SCRIPT_COMMANDS, Sample, metered
from benchmarks.phases import PHASES, Trial
from benchmarks.report import aligned, text
from leasehold.scripting.catalogue import load

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from benchmarks.bench import Bench

COROUTINES = 1_000
PAYLOAD = 100
SPY = """To see our own side, run it longer and watch it from another terminal:
    python -m benchmarks --profile --seconds 30
    py-spy record --pid {pid} --duration 10 --rate 500 --format raw --output cycle.txt
    py-spy top --pid {pid}"""


class _Collected:
    """Counts the CPU seconds that Python's garbage collector takes while the block runs."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        gc.callbacks.append(self._heard)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, _: dict[str, int]) -> None:
        now = time.process_time()
        self.seconds += now if phase == "stop" else -now


async def profile(bench: Bench, seconds: float) -> None:
    """Print where the time goes, after cycles for so many seconds."""
    print(SPY.format(pid=os.getpid()), flush=True)
    async with bench.queue(bench.name("profile")) as queue:
        ours = Ours(queue, COROUTINES)
        items = bench.some(10_000, 2_000)
        await ours.cycle(items, PAYLOAD)
        total = Sample()
        collected = _Collected()
        until = asyncio.get_running_loop().time() + seconds
        while not total.items or asyncio.get_running_loop().time() < until:
            with collected:
                async with metered(bench, items) as sample:
                    await ours.cycle(items, PAYLOAD)
            total += sample
        print(f"\nWhole cycle, {COROUTINES:,} coroutines, {PAYLOAD} bytes, per item:")
        print_sides(total)
        print(f"    {1e6 * collected.seconds / total.items:.1f} µs of ours in Python's garbage collector")
        print_scripts(total, await slow_log(bench, ours, items))
        trial = Trial(ours, {}, items, PAYLOAD)
        for _ in range(bench.some(3, 1)):
            await trial.round(bench)
    for phase in PHASES:
        total = Sample()
        for sample in trial.samples[phase]:
            total += sample
        print(f"\n{phase} alone, per item:")
        print_sides(total)
        print_commands(total)
    await bench.clear()


def print_sides(total: Sample) -> None:
    """The wall clock, and the CPU of either side."""
    print(
        f"    {1e6 * total.seconds / total.items:.1f} µs in all"
        f" ({total.items / total.seconds:,.0f} a second) = "
        f"{1e6 * total.client_cpu / total.items:.1f} µs CPU here, "
        f"{1e6 * total.server_cpu / total.items:.1f} µs CPU on the server, side by side; "
        f"{total.script_us / total.items:.1f} µs in scripts, "
        f"{total.calls / total.items:.3f} script calls"
    )


async def slow_log(bench: Bench, ours: Ours, items: int) -> dict[str, tuple[int, float]]:
    """Script -> (calls, µs) of one more cycle; nothing where the server does not let us."""
    redis: Redis = bench.redis
    names = {script.sha: name for name, script in load().items()}
    settings = ("slowlog-log-slower-than", "slowlog-max-len")
    before = {name: (await redis.config_get(name))[name] for name in settings}
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    try:
        await redis.config_set("slowlog-log-slower-than", 0)
        await redis.config_set("slowlog-max-len", 100_000)
        await redis.slowlog_reset()
        await ours.cycle(items, PAYLOAD)
        entries: list[dict[str, Any]] = await redis.slowlog_get(100_000)
    finally:
        for name, value in before.items():
            await redis.config_set(name, value or "")
        await redis.slowlog_reset()
    for entry in entries:
        command, _, rest = bytes(entry["command"]).partition(b" ")
        if command.lower() == b"evalsha":
            name = names.get(rest.split(b" ", 1)[0], "?")
            calls, micros = found[name]
            found[name] = (calls + 1, micros + entry["duration"])
    return {name: (calls, micros * 1.0 / items) for name, (calls, micros) in found.items()}


def print_scripts(total: Sample, scripts: dict[str, tuple[int, float]]) -> None:
    """µs per item of each script, then of each command."""
    lines = [["script", "calls", "µs/item"]]
    lines += [[name, text(calls), f"{micros:.2f}"] for name, (calls, micros) in sorted(scripts.items())]
    print("\n" + aligned(lines) + "\n")
    print_commands(total)


def print_commands(total: Sample) -> None:
    """µs per item of each command inside the scripts, and of Lua itself."""
    inside = {name: cost for name, cost in total.commands.items() if name not in (*SCRIPT_COMMANDS, "info")}
    lua = total.script_us - sum(micros for _, micros in inside.values())
    lines = [["command", "calls/item", "µs/item", "µs/call"]]
    for name, (calls, micros) in sorted(inside.items(), key=lambda entry: -entry[1][1]):
        if micros / total.items >= 0.005:
            lines.append(
                [name, f"{calls / total.items:.3f}", f"{micros / total.items:.2f}", f"{micros / calls:.2f}"]
            )
    lines.append(["(Lua itself)", "", f"{lua / total.items:.2f}", ""])
    lines.append(
        ["all scripts", f"{total.calls / total.items:.3f}", f"{total.script_us / total.items:.2f}", ""]
    )
    print(aligned(lines))
