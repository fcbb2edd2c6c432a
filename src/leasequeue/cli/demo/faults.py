"""The demo's faults: signals that workers get while they hold an item, so that its lease expires."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from leasequeue.cli.demo.workers import DemoFailed

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable


async def interrupt(worker: Process, fault: signal.Signals, say: Callable[[str], None]) -> None:
    """Send SIGKILL or SIGSTOP to a worker when it has begun to work on an item."""
    line: bytes = await worker.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
    if not line:
        raise DemoFailed("a worker process ended before it leased an item")
    worker.send_signal(fault)
    say(f"sent {fault.name} to a worker that holds {line.decode().rstrip()}")


def resume(worker: Process) -> None:
    """Continue a worker that was stopped or pauses."""
    worker.send_signal(signal.SIGCONT)
    worker.stdin.write(b"\n")  # type: ignore[union-attr]  # it is a pipe
