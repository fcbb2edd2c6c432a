"""How things are measured: rounds that take turns, the server's own clocks, medians."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from benchmarks.bench import Bench

#: The commands that carry our scripts. Their time includes that of the commands inside the scripts.
SCRIPT_COMMANDS = ("evalsha", "eval")


@dataclass
class Sample:
    """What one measured stretch has cost.

    Attributes:
        items: How many items were worked on.
        seconds: Wall clock.
        client_cpu: CPU seconds of this process.
        server_cpu: CPU seconds of the server's main thread.
        commands: command -> (calls, µs on the server), for those that were called.
    """

    items: int = 0
    seconds: float = 0.0
    client_cpu: float = 0.0
    server_cpu: float = 0.0
    commands: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """How many scripts were called."""
        return sum(self.commands.get(name, (0, 0.0))[0] for name in SCRIPT_COMMANDS)

    @property
    def script_us(self) -> float:
        """The server's µs in scripts."""
        return sum(self.commands.get(name, (0, 0.0))[1] for name in SCRIPT_COMMANDS)

    def __iadd__(self, other: Sample) -> Sample:  # noqa: PYI034 - what comes out is no subclass
        self.items += other.items
        self.seconds += other.seconds
        self.client_cpu += other.client_cpu
        self.server_cpu += other.server_cpu
        for name, (calls, micros) in other.commands.items():
            before = self.commands.get(name, (0, 0.0))
            self.commands[name] = (before[0] + calls, before[1] + micros)
        return self


@asynccontextmanager
async def metered(bench: Bench, items: int) -> AsyncIterator[Sample]:
    """Measure what is done inside the block, with so many items; the sample is filled when it ends."""
    sample = Sample(items=items)
    before, server_before = await command_stats(bench), await server_cpu(bench)
    cpu_before, started = time.process_time(), time.perf_counter()
    yield sample
    sample.seconds = time.perf_counter() - started
    sample.client_cpu = time.process_time() - cpu_before
    after, server_after = await command_stats(bench), await server_cpu(bench)
    sample.server_cpu = server_after - server_before
    sample.commands = stats_between(before, after)


async def command_stats(bench: Bench) -> dict[str, tuple[int, float]]:
    """Command -> (calls, µs) since the server was started."""
    told = await bench.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): (int(entry["calls"]), float(entry["usec"]))
        for name, entry in told.items()
    }


def stats_between(
    before: dict[str, tuple[int, float]], after: dict[str, tuple[int, float]]
) -> dict[str, tuple[int, float]]:
    """What was called from one look at the command statistics to another."""
    between: dict[str, tuple[int, float]] = {}
    for name, (calls, micros) in after.items():
        calls_before, micros_before = before.get(name, (0, 0.0))
        if calls > calls_before:
            between[name] = (calls - calls_before, micros - micros_before)
    return between


async def server_cpu(bench: Bench) -> float:
    """CPU seconds that the server has used, by its main thread where it tells that apart."""
    told: dict[str, Any] = await bench.info("cpu")
    kinds = ("used_cpu_user", "used_cpu_sys")
    return sum(float(told.get(f"{kind}_main_thread", told[kind])) for kind in kinds)


async def interleaved(rounds: int, contestants: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Let contestants take turns, so that whatever else the machine does meets all of them.

    Every second round goes the other way round.
    """
    for number in range(rounds):
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            await contestant()


def middle(values: Iterable[float]) -> float:
    """The median; 0 of nothing."""
    listed = list(values)
    return median(listed) if listed else 0.0


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent do not exceed."""
    listed = sorted(values)
    return listed[max(0, ceil(len(listed) * percent / 100) - 1)]
