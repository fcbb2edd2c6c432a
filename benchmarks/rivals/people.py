"""The processes of a measurement: a fresh server, and the programs of one contestant, each on its core."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from leasehold.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.rivals.contestants import Contestant

#: After so long without a word, something is wrong (s).
PATIENCE_SECONDS = 300.0
#: A program that has been left alone for so long is killed (s).
END_SECONDS = 5.0
#: The longest line that a program may write: a report of every run.
LINE_BYTES = 1 << 26

_cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
#: The server's core, on which those sit who have nothing to do meanwhile, and that of who is measured.
SERVER_CORE, CLIENT_CORE = _cores[0], _cores[min(1, len(_cores) - 1)]


def settle_down() -> None:
    """Sit on the server's core, and have the server start there."""
    sit(SERVER_CORE)


def sit(core: int) -> None:
    """Move this process to a core, where that can be done; what it starts then begins there."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [core])


@asynccontextmanager
async def fresh_server() -> AsyncIterator[tuple[str, Redis]]:
    """A server with nothing in it, and a client that looks at it."""
    async with await EmbeddedServer.start() as server, Redis.from_url(server.url) as redis:
        yield server.url, redis


class Program:
    """A running program, and the lines to and from it."""

    def __init__(self, process: asyncio.subprocess.Process, who: str) -> None:
        self._process = process
        self._who = who

    async def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """Write a line and wait for the answer.

        Raises:
            RuntimeError: If the program ends or stays silent instead.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        """Wait for a line.

        Raises:
            RuntimeError: If the program ends or stays silent instead.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"{self._who} has said nothing for {PATIENCE_SECONDS:.0f} s") from None
        if not line:
            raise RuntimeError(f"{self._who} has ended: see above")
        heard: dict[str, Any] = json.loads(line)
        return heard


@asynccontextmanager
async def program(
    contestant: Contestant, part: str, task: dict[str, Any], core: int = CLIENT_CORE
) -> AsyncIterator[Program]:
    """Have one of a contestant's programs run, until the block ends."""
    sit(core)
    try:
        process = await asyncio.create_subprocess_exec(
            *contestant.command(),
            part,
            json.dumps(task),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=contestant.environment(),
            limit=LINE_BYTES,
        )
    finally:
        settle_down()
    try:
        yield Program(process, f"{contestant.label} ({part})")
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the programs end then by themselves
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
