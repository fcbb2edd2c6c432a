"""The server of a benchmark, the processes beside it, and what every scenario is given."""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue
from leasequeue.embedded import EmbeddedServer
from leasequeue.embedded import server as embedded_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from multiprocessing.connection import Connection
    from pathlib import Path

Size = TypeVar("Size")

#: The longest wait for one step of a benchmark, and for a line of a program (s).
STEP_TIMEOUT, LINE_TIMEOUT = 60.0, 300.0
#: The time that a program has to end by itself (s).
EXIT_TIMEOUT = 5.0
#: The longest line of a program: its report of every run.
LINE_BYTES = 1 << 26

_cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
#: Without fixed cores the kernel moves both processes about, and figures differ by a factor of two.
SERVER_CORE, CLIENT_CORE = _cores[:1], _cores[1:2] or _cores[:1]

#: Two blocks at once would leave this process on the cores of one of them, with all that is measured later.
_pinning = asyncio.Lock()

#: Children fork from a process that has imported the scenarios and holds no connection.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [f"benchmarks.scenarios.{name}" for name in ("many", "service", "tasks", "waiting", "worker")]
)


def pin(cores: list[int]) -> None:
    """Move this process to some cores, where the system allows it; processes that it starts inherit them."""
    if cores:
        os.sched_setaffinity(0, cores)


@asynccontextmanager
async def pinned(cores: list[int]) -> AsyncIterator[None]:
    """Run the block on some cores, so that the processes that it starts run there; one block at a time."""
    async with _pinning:
        before = sorted(os.sched_getaffinity(0)) if cores else []
        pin(cores)
        try:
            yield
        finally:
            pin(before)


# Each benchmark configures and watches its server, whose URL has no password, as all rivals read it.
embedded_server.OPEN_RULES = embedded_server.RULES


async def start_server(*, dir: Path | None = None, port: int = 0) -> EmbeddedServer:  # noqa: A002
    """Start a server on the first core."""
    async with pinned(SERVER_CORE):
        return await EmbeddedServer.start(dir=dir, port=port, password="")


@asynccontextmanager
async def fresh_server(*, cores: bool = True) -> AsyncIterator[tuple[str, Redis]]:
    """Run an empty server, on the first core if `cores`; yield its URL and a client to observe it."""
    server = await (start_server() if cores else EmbeddedServer.start(port=0, password=""))
    async with server, Redis.from_url(server.url) as redis:
        yield server.url, redis


class Child:
    """A forked process that runs `work` with a pipe to this one; it ends with this process."""

    def __init__(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self._pipe, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(work, theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    async def receive(self) -> Any:
        """Wait for a value from the child."""
        return await asyncio.to_thread(self._pipe.recv)

    def send(self, value: object) -> None:
        """Send a value to the child."""
        self._pipe.send(value)

    def kill(self) -> None:
        """End the child with SIGKILL; it can be called again."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _run(work: Callable[..., Coroutine[Any, Any, None]], pipe: Connection, *arguments: Any) -> None:
    asyncio.run(work(pipe, *arguments))


@dataclass(frozen=True)
class Program:
    """A running program that reads and writes one JSON value per line."""

    label: str
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    pid: int

    async def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Write a line and read the reply; see `receive`."""
        self.stdin.write(json.dumps(command).encode() + b"\n")
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        """Read a line."""
        try:
            async with asyncio.timeout(LINE_TIMEOUT):
                value: dict[str, Any] = json.loads(await self.stdout.readline())
        except (TimeoutError, json.JSONDecodeError) as error:
            raise RuntimeError(f"{self.label} has ended or wrote nothing: see its output above") from error
        return value


@asynccontextmanager
async def program(
    command: list[str], label: str, *, env: dict[str, str], cores: list[int] = CLIENT_CORE
) -> AsyncIterator[Program]:
    """Run a program until the block ends; it ends when its standard input is closed."""
    pipe = asyncio.subprocess.PIPE
    async with pinned(cores):
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, env=env, limit=LINE_BYTES
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Program(label, process.stdin, process.stdout, process.pid)
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(EXIT_TIMEOUT):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


@dataclass
class Bench:
    """The server that is measured, and what a scenario has opened on it."""

    server_url: str
    redis: Redis  #: observes the server, and is never measured
    quick: bool = False  #: whether to do only as much as shows that everything works
    queues: tuple[int, ...] = (1, 20, 100)  #: the numbers of queues that one worker serves
    rows: int = 1_000_000  #: of the largest table that Spark adds and drains
    scenario: str = ""  #: the scenario that runs
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)  #: what the scenario has opened
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, database: int = 0) -> str:
        """Return the address of one of the server's databases."""
        return urlunsplit(urlsplit(self.server_url)._replace(path=f"/{database}"))

    def name(self) -> str:
        """Return a new name for a queue."""
        return f"bench-{self.scenario}-{next(self._numbers)}"

    async def queue(self, name: str = "", database: int = 0) -> AsyncWorkQueue:
        """Open a queue as users do; `reset` closes it."""
        queue = AsyncWorkQueue.from_url(self.url(database), name or self.name())
        return await self.stack.enter_async_context(queue)

    async def client(self, database: int = 0) -> Redis:
        """Open a client of redis-py with its defaults; `reset` closes it."""
        return await self.stack.enter_async_context(Redis.from_url(self.url(database)))

    def scaled(self, full: Size, quick: Size) -> Size:
        """Return the size for a full run or for a quick one."""
        return quick if self.quick else full

    async def blocked(self, count: int) -> None:
        """Wait until exactly so many connections wait in a blocking command."""
        async with asyncio.timeout(STEP_TIMEOUT):
            while (await self.redis.info("clients"))["blocked_clients"] != count:  # noqa: ASYNC110 - no event exists
                await asyncio.sleep(0.002)

    async def registered(self, name: str, count: int) -> None:
        """Wait until exactly so many sessions wait for items of a queue: of many, only some block."""
        async with asyncio.timeout(STEP_TIMEOUT):
            while await self.redis.zcard(f"{name}:idle") != count:  # noqa: ASYNC110 - no event exists
                await asyncio.sleep(0.002)

    async def reset(self) -> None:
        """Close what the scenario has opened, empty the server and wait until its memory is free."""
        await self.stack.aclose()
        # Newer servers free memory in the background unless they are asked not to.
        await self.redis.execute_command("FLUSHALL", "SYNC")  # type: ignore[no-untyped-call]


@asynccontextmanager
async def open_bench(url: str | None, *, quick: bool, cores: bool = True) -> AsyncIterator[Bench]:
    """Start a server, or use an empty one, which is emptied again; if `cores`, pin both processes."""
    async with AsyncExitStack() as stack:
        if url is None:
            server_url, redis = await stack.enter_async_context(fresh_server(cores=cores))
            if cores:
                pin(CLIENT_CORE)
        else:
            server_url, redis = url, await stack.enter_async_context(Redis.from_url(url))
            if (await redis.info("keyspace")) != {}:
                raise SystemExit(f"{url} holds data; a benchmark deletes everything, so name an empty server")
            stack.push_async_callback(redis.flushall)
        bench = Bench(server_url, redis, quick=quick)
        await stack.enter_async_context(bench.stack)
        yield bench
