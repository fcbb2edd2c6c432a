"""The processes of a benchmark: the server on the first core, and what is measured on the second."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from leasehold.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

#: The longest wait for one step of a benchmark (s).
STEP_TIMEOUT = 60.0
#: The longest wait for a line of a program (s).
LINE_TIMEOUT = 300.0
#: The time that a program has to end by itself (s).
EXIT_TIMEOUT = 5.0
#: The longest line of a program: its report of every run.
LINE_BYTES = 1 << 26

_cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
#: Without fixed cores the kernel moves both processes about, and figures differ by a factor of two.
SERVER_CORE, CLIENT_CORE = _cores[:1], _cores[1:2] or _cores[:1]

#: Children fork from a process that has imported the scenarios and holds no connection.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["benchmarks.scenarios.waiting", "benchmarks.scenarios.worker"])


def pin(cores: list[int]) -> None:
    """Move this process to some cores, where the system allows it; processes that it starts inherit them."""
    if cores:
        os.sched_setaffinity(0, cores)


@contextmanager
def pinned(cores: list[int]) -> Iterator[None]:
    """Run the block on some cores, so that the processes that it starts run there."""
    before = sorted(os.sched_getaffinity(0)) if cores else []
    pin(cores)
    try:
        yield
    finally:
        pin(before)


async def start_server(*, dir: Path | None = None, port: int | None = None) -> EmbeddedServer:  # noqa: A002
    """Start a server on the first core."""
    with pinned(SERVER_CORE):
        return await EmbeddedServer.start(dir=dir, port=port)


@asynccontextmanager
async def fresh_server(*, cores: bool = True) -> AsyncIterator[tuple[str, Redis]]:
    """Run an empty server; yield its URL and a client to observe it.

    Args:
        cores: Whether the server is pinned to the first core.
    """
    server = await (start_server() if cores else EmbeddedServer.start())
    async with server, Redis.from_url(server.url) as redis:
        yield server.url, redis


class Child:
    """A forked process of a scenario, with a pipe to this one; it ends with this process.

    Args:
        work: Runs in the child until it is killed; its first argument is the sending end of the pipe.
        arguments: The further arguments of `work`.
    """

    def __init__(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(work, theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    async def receive(self) -> Any:
        """Wait for a value from the child.

        Raises:
            EOFError: If it has ended.
        """
        return await asyncio.to_thread(self._pipe.recv)

    def kill(self) -> None:
        """End the child with SIGKILL; it can be called again."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _run(work: Callable[..., Coroutine[Any, Any, None]], pipe: Connection, *arguments: Any) -> None:
    asyncio.run(work(pipe, *arguments))


class Program:
    """A running program that reads and writes one JSON value per line."""

    def __init__(self, process: asyncio.subprocess.Process, label: str) -> None:
        self._process = process
        self._label = label

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Write a line and read the reply.

        Raises:
            RuntimeError: If the program ends or does not reply in time.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        """Read a line.

        Raises:
            RuntimeError: If the program ends or does not write one in time.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(LINE_TIMEOUT):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"{self._label} wrote nothing for {LINE_TIMEOUT:.0f} s") from None
        if not line:
            raise RuntimeError(f"{self._label} has ended: see its output above")
        value: dict[str, Any] = json.loads(line)
        return value


@asynccontextmanager
async def program(
    command: list[str], label: str, *, env: dict[str, str], cores: list[int] = CLIENT_CORE
) -> AsyncIterator[Program]:
    """Run a program until the block ends; it ends when its standard input is closed."""
    with pinned(cores):
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=env,
            limit=LINE_BYTES,
        )
    try:
        yield Program(process, label)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
