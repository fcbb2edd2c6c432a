"""Tasks of a module, and a program of several modules."""

from __future__ import annotations

import os

from leasequeue import TaskQueue

tasks = TaskQueue.from_url("redis://localhost:1", "models")


@tasks.task(run_in="process")
def pid(number: int, *, factor: int = 1) -> list[int]:
    return [os.getpid(), number * factor]


def plain(number: int) -> int:
    return os.getpid() + number
