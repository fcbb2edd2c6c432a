"""Where the time of a cycle goes: by script, by command inside the scripts, and in Python.

While add, lease and complete run concurrently, the slow log records the time of every script, and the command
statistics that of every command. The rest of a script's time is that of the Lua interpreter.
"""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from benchmarks.measure import SCRIPT_COMMANDS, Sample, Setting, metered, speed_row
from benchmarks.report import aligned, table, text
from benchmarks.targets import Ours, Trial
from leasehold.scripting.catalogue import load

if TYPE_CHECKING:
    from benchmarks.bench import Bench

COROUTINES = 1_000
PAYLOAD = 100
SPY = """To profile Python, run it longer and record it from another terminal:
    python -m benchmarks --profile --seconds 30
    py-spy record --pid {pid} --duration 10 --rate 500 --format raw --output cycle.txt
    py-spy top --pid {pid}"""


async def profile(bench: Bench, seconds: float) -> None:
    """Run cycles for so many seconds, and print where the time goes."""
    print(SPY.format(pid=os.getpid()), flush=True)
    ours = Ours(await bench.queue(), COROUTINES)
    items = bench.scaled(10_000, 2_000)
    await ours.prepare_cycle(items, PAYLOAD)
    await ours.cycle()
    total, collected = Sample(), 0.0

    def on_collection(phase: str, _: dict[str, int]) -> None:
        nonlocal collected
        collected += time.process_time() if phase == "stop" else -time.process_time()

    gc.callbacks.append(on_collection)
    until = time.monotonic() + seconds
    while not total.items or time.monotonic() < until:
        async with metered(bench.redis, items) as sample:
            await ours.cycle()
        total += sample
    gc.callbacks.remove(on_collection)
    setting: Setting = {"coroutines": COROUTINES, "payload": PAYLOAD}
    print("\n" + aligned(table([speed_row("cycle", [total], setting=setting)])))
    print(f"of client µs, {1e6 * collected / total.items:.1f} in the garbage collector\n")
    lines = [["script", "calls", "µs/item"]]
    for name, times in sorted((await _slow_log(bench, ours)).items()):
        lines.append([name, text(len(times)), f"{sum(times) / items:.2f}"])
    print(aligned(lines))
    _print_commands(total)
    trial = Trial.phases(ours, {}, items, PAYLOAD)
    for _ in range(bench.scaled(3, 1)):
        await trial.round(bench.redis)
    for phase, samples in trial.samples.items():
        total = Sample()
        for sample in samples:
            total += sample
        print("\n" + aligned(table([speed_row(phase, [total])])))
        _print_commands(total)
    await bench.reset()


async def _slow_log(bench: Bench, ours: Ours) -> dict[str, list[int]]:
    """Return the µs of each call of each script in one more cycle."""
    redis = bench.redis
    names = {script.sha: name for name, script in load().items()}
    settings = ("slowlog-log-slower-than", "slowlog-max-len")
    before = {name: (await redis.config_get(name))[name] for name in settings}
    try:
        await redis.config_set("slowlog-log-slower-than", 0)
        await redis.config_set("slowlog-max-len", 100_000)
        await redis.slowlog_reset()
        await ours.cycle()
        entries: list[dict[str, Any]] = await redis.slowlog_get(100_000)
    finally:
        for name, value in before.items():
            await redis.config_set(name, value or "")
        await redis.slowlog_reset()
    found: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        command, _, rest = bytes(entry["command"]).partition(b" ")
        if command.lower() == b"evalsha":
            found[names.get(rest.split(b" ", 1)[0], "?")].append(entry["duration"])
    return found


def _print_commands(total: Sample) -> None:
    """Print the µs per item of each command inside the scripts, and of Lua itself."""
    outside = (*SCRIPT_COMMANDS, "info")
    inside = {name: micros for name, micros in total.micros.most_common() if name not in outside}
    lua = total.script_us - sum(inside.values())
    lines = [["command", "calls/item", "µs/item", "µs/call"]]
    for name, micros in inside.items():
        calls, per_item = total.calls[name], micros / total.items
        if per_item >= 0.005:
            lines.append([name, f"{calls / total.items:.3f}", f"{per_item:.2f}", f"{micros / calls:.2f}"])
    lines.append(["(Lua itself)", "", f"{lua / total.items:.2f}", ""])
    calls_per_item = total.script_calls / total.items
    lines.append(["all scripts", f"{calls_per_item:.3f}", f"{total.script_us / total.items:.2f}", ""])
    print("\n" + aligned(lines))
