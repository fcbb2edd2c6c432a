"""Types of payloads, and plain functions that can be sent to another process."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic

from leasehold.worker import Snooze


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


def own_pid(_: bytes) -> int:
    return os.getpid()


def twice(numbers: list[int]) -> int:
    return 2 * sum(numbers)


def sleep_for(seconds: float) -> None:
    time.sleep(seconds)


def ends_badly(how: str) -> None:
    """End as `how` says: with an error, a signal to the worker, or killed."""
    ways: dict[str, Any] = {
        "picky": Picky("this", "that") if how == "picky" else None,
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "snooze": Snooze(3600),
        "division": ZeroDivisionError("by zero"),
    }
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ways[how]
