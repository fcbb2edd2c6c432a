"""Measure steps, in rounds that take turns, and return their figures as rows."""

from __future__ import annotations

import resource
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from operator import add, sub
from statistics import median
from typing import TYPE_CHECKING, TypedDict, Unpack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from redis.asyncio import Redis

#: The commands that call our scripts. Their time includes that of the commands inside the scripts.
SCRIPT_COMMANDS = ("evalsha", "eval")
#: The commands that clients of queues send and that no script calls.
SENT = (*SCRIPT_COMMANDS, "blmove", "ping", "hello", "select", "client|setinfo", "subscribe", "script|load")


@dataclass
class Sample:
    """The cost of one measured step."""

    items: int = 0
    seconds: float = 0.0  #: wall-clock time
    client_cpu: float = 0.0  #: CPU seconds of this process
    client_kernel: float = 0.0  #: those of them that the kernel used for this process
    server_cpu: float = 0.0  #: CPU seconds of the server's main thread, where it reports it separately
    server_kernel: float = 0.0  #: those of them that the kernel used for the server
    calls: Counter[str] = field(default_factory=Counter)  #: of each command, also inside scripts
    micros: Counter[str] = field(default_factory=Counter)  #: the server's µs in each command

    @property
    def script_calls(self) -> int:
        """The number of script calls."""
        return sum(self.calls[name] for name in SCRIPT_COMMANDS)

    @property
    def trips(self) -> int:
        """The number of commands that clients sent."""
        return sum(self.calls[name] for name in SENT)

    @property
    def script_us(self) -> int:
        """The server's µs in scripts."""
        return sum(self.micros[name] for name in SCRIPT_COMMANDS)

    def __add__(self, other: Sample) -> Sample:
        return Sample(*map(add, vars(self).values(), vars(other).values()))


#: The cost figures of a row -> their sum over the items of a sample.
COSTS: dict[str, Callable[[Sample], float]] = {
    "us_per_item": lambda sample: 1e6 * sample.seconds,
    "client_cpu_us_per_item": lambda sample: 1e6 * sample.client_cpu,
    "server_cpu_us_per_item": lambda sample: 1e6 * sample.server_cpu,
    "script_us_per_item": lambda sample: sample.script_us,
    "calls_per_item": lambda sample: sample.script_calls,
}
#: The same by step and side: trips are commands of clients, the others run inside scripts.
STEP_COSTS = COSTS | {
    "client_kernel_us_per_item": lambda sample: 1e6 * sample.client_kernel,
    "server_kernel_us_per_item": lambda sample: 1e6 * sample.server_kernel,
    "trips_per_item": lambda sample: sample.trips,
    "commands_per_item": lambda sample: sum(sample.calls.values()) - sample.trips - sample.calls["info"],
}


@asynccontextmanager
async def metered(redis: Redis, items: int) -> AsyncIterator[Sample]:
    """Measure the block, which processes so many items; the sample is complete after the block."""
    sample = Sample(items=items)
    (calls, micros), server_before = await _command_stats(redis), await _server_cpu(redis)
    cpu_before, started = _cpu(), time.perf_counter()
    yield sample
    sample.seconds = time.perf_counter() - started
    sample.client_cpu, sample.client_kernel = map(sub, _cpu(), cpu_before)
    (calls_after, micros_after), server_after = await _command_stats(redis), await _server_cpu(redis)
    sample.server_cpu, sample.server_kernel = map(sub, server_after, server_before)
    sample.calls, sample.micros = calls_after - calls, micros_after - micros


def _cpu() -> tuple[float, float]:
    """Return the CPU seconds that this process has used, and those of them in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_stime


async def _command_stats(redis: Redis) -> tuple[Counter[str], Counter[str]]:
    """Return the calls and the µs of each command since the server started."""
    stats = (await redis.info("commandstats")).items()
    calls, micros = (
        Counter({name.removeprefix("cmdstat_"): int(entry[figure]) for name, entry in stats})
        for figure in ("calls", "usec")
    )
    return calls, micros


async def _server_cpu(redis: Redis) -> tuple[float, float]:
    """Return the CPU seconds that the server's main thread has used, and those of them in the kernel."""
    info = await redis.info("cpu")
    user, kernel = (
        float(info.get(f"{kind}_main_thread", info[kind])) for kind in ("used_cpu_user", "used_cpu_sys")
    )
    return user + kernel, kernel


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


Setting = dict[str, int | str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure."""

    scenario: str = ""
    what: str
    who: str = "leasequeue"  #: or a reference, "bare" or "ceiling", or another library
    setting: Setting = field(default_factory=dict)  #: the number of coroutines, the payload and so on
    unit: str  #: of `value`, `low` and `high`
    value: float  #: the median of the rounds
    low: float
    high: float
    rounds: int = 1
    more: dict[str, float] = field(default_factory=dict)  #: further figures, with the unit in the name
    samples: list[float] = field(default_factory=list)  #: single measurements, where a plot needs them
    command: str = ""  #: the command that measures this row


class Target(TypedDict, total=False):
    """The fields of a row that say what was measured."""

    who: str
    setting: Setting


def number_row(
    what: str,
    unit: str,
    values: Sequence[float],
    samples: Sequence[float] = (),
    more: dict[str, float] | None = None,
    **target: Unpack[Target],
) -> Row:
    """Return a row with the median, the minimum and the maximum of some values."""
    row = Row(what=what, unit=unit, value=median(values), low=min(values), high=max(values), **target)
    return replace(row, rounds=len(values), more=more or {}, samples=list(samples))


def speed_row(
    what: str,
    samples: Sequence[Sample],
    unit: str = "items/s",
    costs: Iterable[str] = COSTS,
    **target: Unpack[Target],
) -> Row:
    """Return a row of items per second, with the cost of an item."""
    speeds = [sample.items / sample.seconds for sample in samples]
    more = {cost: median(STEP_COSTS[cost](sample) / sample.items for sample in samples) for cost in costs}
    return number_row(what, unit, speeds, more=more, **target)


def time_row(what: str, seconds: Sequence[float], rounds: int = 1, **target: Unpack[Target]) -> Row:
    """Return a row of ms from many single measurements, with percentiles; the samples are kept."""
    ms = sorted(1000 * one for one in seconds)
    target["setting"] = {**target.get("setting", {}), "samples": len(ms)}
    more = {f"p{percent}_ms": percentile(ms, percent) for percent in (90, 99)}
    row = number_row(what, "ms", ms, [round(one, 4) for one in ms], more, **target)
    return replace(row, rounds=rounds)
