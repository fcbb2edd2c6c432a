"""Types of payloads, and plain functions that can be sent to another process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic

from leasequeue.worker import Snooze, current_run

if TYPE_CHECKING:
    from leasequeue import Task, TaskQueue


class Mail(pydantic.BaseModel):
    to: str
    copies: int = 1


class Parcel(msgspec.Struct):
    weight: int


@dataclass
class Order:
    number: int
    lines: list[str]


class Opaque:
    """A type that cannot be read from JSON."""


class Picky(Exception):
    """An error that cannot be unpickled, since its constructor does not take its `args`."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class Shifty(Exception):
    """An error that is a number when it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("3",)


def own_pid(_: bytes) -> int:
    return os.getpid()


def twice(numbers: list[int]) -> int:
    return 2 * sum(numbers)


def ends_badly(how: str) -> None:
    """End as `how` says: with an error, a signal to the worker, or killed."""
    ways: dict[str, Any] = {
        "picky": Picky("this", "that") if how == "picky" else None,
        "shifty": Shifty("slips away"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "snooze": Snooze(3600),
        "division": ZeroDivisionError("by zero"),
    }
    if how == "current":
        current_run()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ways[how]


def hold(folder: str) -> None:
    """Note that it runs, and wait until the file `open` is in the folder."""
    (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}.begun").touch()
    while not (Path(folder) / "open").exists():
        time.sleep(0.005)


def note_pid(what: str) -> None:
    """Sleep so many seconds, after writing this process's id to a file."""
    seconds, path = what.split(maxsplit=1)
    Path(path).write_text(f"{os.getpid()}")
    time.sleep(float(seconds))


async def pass_by(number: int) -> int:
    return number


def tasks_of(tasks: TaskQueue) -> tuple[Task[[str], None], Task[[int], int]]:
    """Define two tasks: one that waits in a process, and an async one."""
    slow = tasks.task(run_in="process", keep_result=60, name="hold")(hold)
    quick = tasks.task(keep_result=60, name="pass_by")(pass_by)
    return slow, quick
