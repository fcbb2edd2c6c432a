"""What the Python programs of this folder share, so that each shows nothing but how its library is used.

A program plays one of two parts, as its command line says, and talks JSON, one line at a time:

- `produce`: it opens a connection, reads commands and adds jobs as they say.
- `work`: it runs jobs. It keeps in memory which ran and when, writes a line when it is warm and when the
  expected number has ended, and at the first line that it reads tells everything that ran, and ends.

Times are those of `time.monotonic_ns()`, which all processes of a machine share on Linux.
Only the standard library is imported here, and uvloop where it is installed.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager


@dataclass(frozen=True)
class Task:
    """What a worker is asked to do.

    Attributes:
        url: Where the server is.
        runs: How many jobs there will be.
        warm: How many of them, the first ones, warm it up.
        concurrency: How many to run at once; None: as many as suit the library best for jobs of no time.
    """

    url: str
    runs: int
    warm: int
    concurrency: int | None


class Producer:
    """How a library adds jobs.

    Args:
        add: Adds the job of a number that takes so many ms; returns when the server has it.
        add_many: Adds the jobs of some numbers in the best way there is for many.
    """

    def __init__(
        self,
        add: Callable[[int, int], Awaitable[object]],
        add_many: Callable[[range, int], Awaitable[object]],
    ) -> None:
        self.add = add
        self.add_many = add_many


class Record:
    """Which jobs ran, and what the process had used at two moments.

    Appending to a list and counting cost well below a µs, so that keeping this is not what is measured.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.warm = self.expected = 0
        self._numbers = itertools.count(1)  # counts right in threads, too
        self._moments: list[dict[str, float]] = []

    def ran(self, number: int, began: int) -> None:
        """The job of this number has ended; it began then."""
        self.runs.append((number, began))
        ended = next(self._numbers)
        if ended in (self.warm, self.expected):
            used = resource.getrusage(resource.RUSAGE_SELF)
            self._moments.append({"at": time.monotonic_ns(), "cpu": used.ru_utime + used.ru_stime})
            say({"ended": ended})

    def told(self) -> dict[str, Any]:
        """Everything that is known."""
        return {"runs": self.runs, "moments": self._moments}


record = Record()
ran = record.ran
now = time.monotonic_ns


def say(what: dict[str, Any]) -> None:
    """Write a line for the conductor."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def run(main: Coroutine[Any, Any, Any]) -> None:
    """Run on uvloop, where that is installed: every library on asyncio is given it, ours as well."""
    factory = None
    if "PLAIN_ASYNCIO" not in os.environ:
        with contextlib.suppress(ModuleNotFoundError):
            factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


async def spread(add: Callable[[int, int], Awaitable[object]], numbers: range, ms: int, width: int) -> None:
    """Add jobs one by one in so many coroutines, for libraries that cannot add many at once."""
    shared = iter(numbers)

    async def some() -> None:
        for number in shared:
            await add(number, ms)

    await asyncio.gather(*(some() for _ in range(width)))


def chunks(numbers: range, size: int) -> Iterable[range]:
    """Cut numbers into pieces of so many."""
    return (numbers[at : at + size] for at in range(0, len(numbers), size))


def main(
    producing: Callable[[str], AbstractAsyncContextManager[Producer]],
    working: Callable[[Task], object],
) -> None:
    """Play the part that the command line names."""
    logging.disable(logging.INFO)  # no library writes a line for each job
    part, told = sys.argv[1:]
    if part == "produce":
        run(_produce(producing(json.loads(told)["url"])))
        return
    task = Task(**json.loads(told))
    record.warm, record.expected = task.warm, task.runs
    threading.Thread(target=_report_when_asked, daemon=True).start()
    working(task)


def _report_when_asked() -> None:
    sys.stdin.readline()
    say(record.told())
    os._exit(0)  # some libraries stop slowly


async def _produce(opened: AbstractAsyncContextManager[Producer]) -> None:
    async with opened as producer:
        say({"ready": True})
        for line in iter(sys.stdin.readline, ""):
            said = json.loads(line)
            numbers = range(said["first"], said["first"] + said["count"])
            say(await _add(producer, numbers, said))
    os._exit(0)


async def _add(producer: Producer, numbers: range, said: dict[str, Any]) -> dict[str, Any]:
    """Add all at once or, each with the moments before and after, one after the other."""
    if said["many"]:
        began = now()
        await producer.add_many(numbers, said["ms"])
        return {"seconds": (now() - began) / 1e9}
    each: list[tuple[int, int]] = []
    for number in numbers:
        if said["pause"]:
            await asyncio.sleep(said["pause"] * random.uniform(0.5, 1.5))  # no poll keeps step
        began = now()
        await producer.add(number, said["ms"])
        each.append((began, now()))
    return {"each": each}
