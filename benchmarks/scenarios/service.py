"""The example service of the docs under a load generator, beside the same endpoint without a queue."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import uvicorn

from benchmarks.bench import CLIENT_CORE, SERVER_CORE, STEP_TIMEOUT, Child, pin
from benchmarks.measure import Row, Setting, number_row, percentile, take_turns
from leasequeue import Worker

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "service"
KEY = "a key"
#: The endpoints: without a queue; that of the example, whose tasks a worker in another process runs; with its
#: result, too.
ENDPOINTS = {"/plain": "no queue", "/reports": "adds a task", "/run": "adds a task, returns its result"}
#: How many keep-alive connections post at the same time.
CONNECTIONS = (1, 50)
#: A report takes 0.1 s, so that so many at once are no limit.
CONCURRENCY = 1_000
#: Makes names of letters.
LETTERS = str.maketrans("0123456789", "abcdefghij")

_numbers = itertools.count()


async def service(bench: Bench) -> list[Row]:
    """Measure the requests per second of three endpoints of one web process, which take turns.

    The web process has its own core. The server, the worker and the load generator share the other.
    """
    children = [Child(_serve, bench.url()), Child(_work, bench.url()), Child(_load)]
    web, _, load = children
    found: dict[Load, list[Measured]] = {}
    try:
        async with asyncio.timeout(10 * STEP_TIMEOUT):
            port = await web.receive()
            await bench.blocked(1)

            async def turn(path: str, connections: int) -> None:
                share = 10 if path == "/run" else 1  # a report takes 0.1 s
                requests = max(2 * connections, bench.scaled(2_000 if connections > 1 else 500, 100) // share)
                asked = Load(port, path, connections, requests)
                load.send(asdict(asked))
                found.setdefault(asked, []).append(Measured(**await load.receive()))

            for path in ENDPOINTS:
                await turn(path, 1)
            found.clear()  # that was to warm up
            turns = [partial(turn, path, connections) for path in ENDPOINTS for connections in CONNECTIONS]
            await take_turns(bench.scaled(7, 2), turns)
    finally:
        for child in children:
            child.kill()
    return [_row(asked, measured) for asked, measured in found.items()]


@dataclass(frozen=True)
class Load:
    """Requests for the load generator to make."""

    port: int
    path: str
    connections: int
    requests: int


@dataclass(frozen=True)
class Measured:
    """The requests per second of one turn, and the latencies that half and all but 1 % of them stay below."""

    per_second: float
    p50_ms: float
    p99_ms: float


def _row(asked: Load, measured: list[Measured]) -> Row:
    setting: Setting = {"endpoint": ENDPOINTS[asked.path], "connections": asked.connections}
    more = {name: median(getattr(one, name) for one in measured) for name in ("p50_ms", "p99_ms")}
    return number_row(
        "requests", "requests/s", [one.per_second for one in measured], more=more, setting=setting
    )


async def _serve(pipe: Connection, url: str) -> None:
    """Serve the example with two more endpoints, as `uvicorn` does."""
    pin(CLIENT_CORE)
    _enter_example(url)
    from benchmarks.scenarios.service_app import app

    # With the protocol named, asyncio sets TCP_NODELAY on its connections, as where uvicorn binds by itself.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(128)  # the load generator may connect before the application has started
    pipe.send(listening.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


async def _work(_: Connection, url: str) -> None:
    """Run the tasks of the example."""
    pin(SERVER_CORE)
    _enter_example(url)
    from reports.tasks import lifespan, tasks

    await Worker(tasks, concurrency=CONCURRENCY, lifespan=lifespan).run()


def _enter_example(url: str) -> None:
    """Let this process import the example, for a server."""
    sys.path.insert(0, str(EXAMPLE))
    os.environ |= {"REDIS_URL": url, "API_KEY": KEY}


async def _load(pipe: Connection) -> None:
    """Make the requests that each message asks for, and answer with what was measured."""
    pin(SERVER_CORE)
    while True:
        asked = Load(**await asyncio.to_thread(pipe.recv))
        each: list[float] = []
        share = asked.requests // asked.connections
        started = time.perf_counter()
        await asyncio.gather(*(_post(asked, share, each) for _ in range(asked.connections)))
        seconds = time.perf_counter() - started
        p50, p99 = (1000 * percentile(each, percent) for percent in (50, 99))
        pipe.send(asdict(Measured(len(each) / seconds, p50, p99)))


async def _post(asked: Load, count: int, each: list[float]) -> None:
    """Post so many times on one connection, one after the other, and note how long each took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    head = (
        f"POST {asked.path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    )
    for _ in range(count):
        customer = str(next(_numbers)).translate(LETTERS)
        body = f'{{"customer": "{customer}", "month": "2026-10"}}'
        started = time.perf_counter()
        writer.write(f"{head}{len(body)}\r\n\r\n{body}".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 202 "), answer
        length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        each.append(time.perf_counter() - started)
    writer.close()
    await writer.wait_closed()
