"""Measure steps: rounds in turns, the wall clock, CPU time on both sides, the server's command statistics."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from redis.asyncio import Redis

#: The commands that call our scripts. Their time includes that of the commands inside the scripts.
SCRIPT_COMMANDS = ("evalsha", "eval")
#: Command -> (calls, µs on the server).
Commands = dict[str, tuple[int, float]]


@dataclass
class Sample:
    """The cost of one measured step.

    Attributes:
        items: How many items it processed.
        seconds: Wall-clock time.
        client_cpu: CPU seconds of this process.
        server_cpu: CPU seconds of the server's main thread, where the server reports it separately.
        commands: The commands that the server ran, those inside scripts included.
    """

    items: int = 0
    seconds: float = 0.0
    client_cpu: float = 0.0
    server_cpu: float = 0.0
    commands: Commands = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """The number of script calls."""
        return sum(self.commands.get(name, (0, 0.0))[0] for name in SCRIPT_COMMANDS)

    @property
    def script_us(self) -> float:
        """The server's µs in scripts."""
        return sum(self.commands.get(name, (0, 0.0))[1] for name in SCRIPT_COMMANDS)

    def __iadd__(self, other: Sample) -> Sample:  # noqa: PYI034 - the result is no subclass
        self.items += other.items
        self.seconds += other.seconds
        self.client_cpu += other.client_cpu
        self.server_cpu += other.server_cpu
        for name, (calls, micros) in other.commands.items():
            before = self.commands.get(name, (0, 0.0))
            self.commands[name] = (before[0] + calls, before[1] + micros)
        return self


#: The cost figures of a row -> their sum over the items of a sample.
COSTS: dict[str, Callable[[Sample], float]] = {
    "us_per_item": lambda sample: 1e6 * sample.seconds,
    "client_cpu_us_per_item": lambda sample: 1e6 * sample.client_cpu,
    "server_cpu_us_per_item": lambda sample: 1e6 * sample.server_cpu,
    "script_us_per_item": lambda sample: sample.script_us,
    "calls_per_item": lambda sample: sample.calls,
}


@asynccontextmanager
async def metered(redis: Redis, items: int) -> AsyncIterator[Sample]:
    """Measure the block, which processes so many items; the sample is complete after the block."""
    sample = Sample(items=items)
    before, server_before = await command_stats(redis), await server_cpu(redis)
    cpu_before, started = time.process_time(), time.perf_counter()
    yield sample
    sample.seconds = time.perf_counter() - started
    sample.client_cpu = time.process_time() - cpu_before
    after, server_after = await command_stats(redis), await server_cpu(redis)
    sample.server_cpu = server_after - server_before
    for name, (calls, micros) in after.items():
        calls_before, micros_before = before.get(name, (0, 0.0))
        if calls > calls_before:
            sample.commands[name] = (calls - calls_before, micros - micros_before)


async def command_stats(redis: Redis) -> Commands:
    """Return the server's command statistics since it started."""
    stats = await redis.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): (int(entry["calls"]), float(entry["usec"]))
        for name, entry in stats.items()
    }


async def server_cpu(redis: Redis) -> float:
    """Return the CPU seconds that the server's main thread has used."""
    info = await redis.info("cpu")
    kinds = ("used_cpu_user", "used_cpu_sys")
    return sum(float(info.get(f"{kind}_main_thread", info[kind])) for kind in kinds)


async def take_turns(rounds: int, turns: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run every turn once per round, so that noise of the machine affects all targets alike.

    Every second round runs in reverse order.
    """
    for number in range(rounds):
        for turn in turns if number % 2 == 0 else reversed(turns):
            await turn()


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that at least so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]
