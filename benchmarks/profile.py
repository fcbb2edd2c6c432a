"""Where the time of a cycle goes: by script, by command inside the scripts, and in Python.

The server's statistics have the time of each command; the rest of a script's time is that of the Lua itself.
"""

from __future__ import annotations

import gc
import os
import time
from typing import TYPE_CHECKING

from benchmarks.measure import SCRIPT_COMMANDS, Sample, Setting, metered, speed_row
from benchmarks.report import aligned, table
from benchmarks.targets import Ours, Trial

if TYPE_CHECKING:
    from benchmarks.bench import Bench

COROUTINES = 1_000
PAYLOAD = 100
#: The script of each step.
SCRIPTS = {"add": "add_items", "lease": "lease_many", "complete": "complete_many"}
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
    _print_commands(total)
    trial = Trial.phases(ours, {}, items, PAYLOAD)
    for _ in range(bench.scaled(3, 1)):
        await trial.round(bench.redis)
    for phase, samples in trial.samples.items():
        total = sum(samples, Sample())
        print(f"\n{SCRIPTS[phase]}\n" + aligned(table([speed_row(phase, [total])])))
        _print_commands(total)
    await bench.reset()


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
