"""The worker processes, as their parent sees them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from leasehold.cli.demo.events import DemoFailed, Event, Record

if TYPE_CHECKING:
    import signal
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path


#: How long a worker that is dismissed may take to end.
_FAREWELL_SECONDS = 5.0


class Child(NamedTuple):
    """A process with its ends of the pipes."""

    process: Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader


@asynccontextmanager
async def child(module: str, *arguments: str | Path, **environment: str) -> AsyncIterator[Child]:
    """Run a module of ours in a process of its own, which ends at the end of the block at the latest.

    It is in a process group of its own, so that Ctrl-C reaches us alone and we decide what becomes of it.
    Should we be killed, its standard input ends, and it ends with that; if it is stopped at the time, the
    system wakes it and hangs up on it, because nobody is left who could.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # what lies in the current folder must not be taken for a library
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        process_group=0,
    )
    if process.stdin is None or process.stdout is None:
        raise AssertionError("both are pipes")
    try:
        yield Child(process, process.stdin, process.stdout)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


class Hand:
    """One worker process: takes signals, tells what happens.

    Attributes:
        number: Its name.
    """

    def __init__(self, number: int, child: Child, record: Record) -> None:
        self.number = number
        self._process, self._stdin, self._stdout = child
        self._record = record
        self._may_end = False
        self.listening = asyncio.create_task(self._listen(), name=f"worker {number}")

    def go(self) -> None:
        """Let it begin, or go on with the item that it holds."""
        self._stdin.write(b"\n")

    def signal(self, which: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(which)

    async def kill(self) -> None:
        """Kill it with SIGKILL and return when it is dead."""
        self._may_end = True
        self._process.kill()
        await self._process.wait()

    def dismiss(self) -> None:
        """Let it stop in good order."""
        self._may_end = True
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def _listen(self) -> None:
        async for line in self._stdout:
            if not line.endswith(b"\n"):
                break  # cut short when it was killed
            self._record.add(Event.read(line, self.number))
        code = await self._process.wait()
        if not self._may_end:
            self._record.fail(DemoFailed(f"worker {self.number} ended by itself, with exit code {code}"))


@asynccontextmanager
async def crew(
    arguments: Sequence[Sequence[str | Path]], record: Record, *, url: str
) -> AsyncIterator[list[Hand]]:
    """Start worker processes; whatever happens, they end with the block.

    If the block succeeds, they are dismissed and heard to the end. Else, or if that takes long, they are
    killed.

    Args:
        arguments: For each what it is started with.
        record: Takes down what they tell.
        url: Where the server is. They get it by their environment, since anybody can see arguments.
    """
    async with AsyncExitStack() as stack:
        hands: list[Hand] = []
        for number, its in enumerate(arguments, 1):
            started = child("leasehold.cli.demo.worker", *its, REDIS_URL=url)
            hands.append(Hand(number, await stack.enter_async_context(started), record))
        yield hands
        if hands:
            await _dismiss(hands)


async def _dismiss(hands: Sequence[Hand]) -> None:
    for hand in hands:
        hand.dismiss()
    heard, _ = await asyncio.wait([hand.listening for hand in hands], timeout=_FAREWELL_SECONDS)
    for listening in heard:
        listening.result()  # raises if what it heard made no sense
