"""What the Python programs of this folder share, so that each shows only how its library is used.

A program plays one of two parts, as its command line says, and reads and writes one JSON value per line:

- `produce` connects, and adds jobs as each command says.
- `work` runs jobs and keeps in memory which ran and when. It writes a line when it is warm and when the
  expected number of jobs has ended; at the first line that it reads it reports all runs and exits. To measure
  what happens when it is killed, it also writes a line when a job begins.

Times are those of `time.monotonic_ns()`, which all processes of a machine share on Linux. This module imports
only the standard library, and uvloop where it is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import logging
import os
import random
import resource
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

now = time.monotonic_ns
#: Coroutines that add jobs concurrently, for libraries that cannot add many at once.
WIDTH = 50


@dataclass(frozen=True)
class Task:
    """What a worker runs."""

    url: str
    runs: int  #: all jobs
    warm: int  #: how many of them, the first ones, warm it up
    concurrency: int | None  #: None: as many at once as suit the library best for jobs that do nothing
    results: bool = False  #: whether results are kept, and the caller waits for them
    announces: bool = False  #: whether to write a line when a job begins
    flow: dict[str, Any] = field(default_factory=dict)  #: the `Flow` of its jobs; empty: they are no stages


@dataclass(frozen=True)
class Flow:
    """What a run of a flow is. Its stages are jobs with numbers in a row, the last stage with the last one.

    Attributes:
        size: How many stages it has.
        joins: Whether the last stage waits for all others, its children; or each stage for the one before.
    """

    size: int
    joins: bool

    def check(self, before: Any, number: int) -> None:
        """Compare what a stage was passed with the results of those that it waited for."""
        expected = list(range(number - self.size + 1, number)) if self.joins else number - 1
        if (sorted(before) if isinstance(before, list) else before) != expected:
            raise AssertionError(f"stage {number} was passed {before!r:.200}")


class Record:
    """Which jobs ran, and the CPU time of the process at two moments; it costs well below 1 µs per job."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.moments: list[dict[str, float]] = []
        self.warm = self.expected = 0
        self.announces = False
        self._numbers = itertools.count(1)  # thread-safe

    def ran(self, number: int, began: int) -> None:
        """Record the end of a job's run."""
        self.runs.append((number, began))
        ended = next(self._numbers)
        if ended in (self.warm, self.expected):
            used = resource.getrusage(resource.RUSAGE_SELF)
            self.moments.append({"at": now(), "cpu": used.ru_utime + used.ru_stime})
            write({"ended": ended})


record = Record()
ran = record.ran


async def job(number: int, ms: int) -> int:
    """Run a job: sleep so long, and record the run. Return its number, which only a round trip keeps."""
    began = now()
    if record.announces:
        write({"began": number, "at": began, "pid": os.getpid()})
    if ms:
        await asyncio.sleep(ms / 1000)
    ran(number, began)
    return number


def write(value: dict[str, Any]) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def chunks(numbers: range, size: int) -> Iterable[range]:
    """Split numbers into parts of a size."""
    return (numbers[at : at + size] for at in range(0, len(numbers), size))


async def produce(
    add: Callable[[int, int], Awaitable[object]],
    add_many: Callable[[range, int], Awaitable[object]] | None = None,
    ask: Callable[[int], Awaitable[object]] | None = None,
) -> None:
    """Add jobs as the commands on standard input say, until it ends.

    Args:
        add: Adds the job of a number that takes so many ms; returns when the server has it.
        add_many: Adds the jobs of some numbers in the fastest way; None: by 50 coroutines that call `add`.
        ask: Adds the job of a number, waits for its result, and returns it; None: there are no results.
    """

    async def concurrently(numbers: range, ms: int) -> None:
        shared = iter(numbers)

        async def some() -> None:
            for number in shared:
                await add(number, ms)

        await asyncio.gather(*(some() for _ in range(WIDTH)))

    write({"ready": True})
    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        ms, numbers = command["ms"], range(command["first"], command["first"] + command["count"])
        if command["many"]:
            began = now()
            await (add_many or concurrently)(numbers, ms)
            write({"seconds": (now() - began) / 1e9})
            continue
        each: list[tuple[int, int]] = []
        for number in numbers:
            if command["pause"]:
                # Irregular, so that it matches no polling interval.
                await asyncio.sleep(command["pause"] * random.uniform(0.5, 1.5))
            began = now()
            if ask is not None:
                answer = await ask(number)
                if answer != number:
                    raise AssertionError(f"the result of job {number} is {answer!r}")
            else:
                await add(number, ms)
            each.append((began, now()))
        write({"each": each})


async def refused(number: int, ms: int) -> None:
    """Refuse to add a single job: programs for flows start many runs at once."""
    raise NotImplementedError(f"job {number} of {ms} ms")


def main(program: Any, part: str, argument: str) -> None:
    """Play a part of a program, on uvloop where it is installed."""
    logging.disable(logging.INFO)  # no library logs each job
    factory = None
    if "PLAIN_ASYNCIO" not in os.environ:
        with contextlib.suppress(ModuleNotFoundError):
            factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if part == "produce":
            runner.run(program.produce(**json.loads(argument)))
            os._exit(0)  # some libraries stop slowly
        task = Task(**json.loads(argument))
        record.warm, record.expected, record.announces = task.warm, task.runs, task.announces
        threading.Thread(target=_report_when_asked, daemon=True).start()
        runner.run(program.work(task))


def _report_when_asked() -> None:
    sys.stdin.readline()
    write({"runs": record.runs, "moments": record.moments})
    os._exit(0)
