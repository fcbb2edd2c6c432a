"""A web service that adds tasks, beside the same endpoint without a queue, under a load generator."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.bench import CLIENT_CORE, SERVER_CORE, STEP_TIMEOUT, Child, pin
from benchmarks.measure import Row, Setting, number_row, percentile, take_turns
from leasehold import TaskQueue, Worker
from leasehold.fastapi import lifespan

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.bench import Bench

#: What the load generator posts.
BODY = b'{"customer": "ann", "month": "2026-10"}'
#: The endpoints: without a queue; with a task, which a worker in another process runs; with its result, too.
ENDPOINTS = {"/plain": "no queue", "/add": "adds a task", "/run": "adds a task, returns its result"}
#: How many keep-alive connections post at the same time.
CONNECTIONS = (1, 50)
KEEP_SECONDS = 60
WAIT_SECONDS = 30


class Order(BaseModel):
    """What is posted."""

    customer: str
    month: str


async def service(bench: Bench) -> list[Row]:
    """Measure the requests per second of three endpoints of one web process, which take turns.

    The web process has a core of its own. The server, the worker and the load generator share the other.
    """
    name = bench.name()
    children = [Child(_serve, bench.url(), name), Child(_work, bench.url(), name), Child(_load)]
    web, _, load = children
    found: dict[Load, list[Measured]] = {}
    try:
        async with asyncio.timeout(10 * STEP_TIMEOUT):
            port = await web.receive()
            await bench.blocked(1)

            async def turn(path: str, connections: int) -> None:
                requests = bench.scaled(2_000 if connections > 1 else 500, 100)
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


async def _serve(pipe: Connection, url: str, name: str) -> None:
    """Serve the endpoints, as `uvicorn` does."""
    pin(CLIENT_CORE)
    tasks = TaskQueue.from_url(url, name)
    make = tasks.task(name="make", keep_result=KEEP_SECONDS)(_make)
    app = FastAPI(lifespan=lifespan(tasks, worker=False))

    @app.post("/plain", status_code=202)
    async def plain(order: Order) -> dict[str, str]:
        return {"id": f"{order.customer}-{order.month}"}

    @app.post("/add", status_code=202)
    async def add(order: Order) -> dict[str, str]:
        job = await make.add(order.customer, order.month)
        return {"id": job.id}

    @app.post("/run", status_code=202)
    async def run(order: Order) -> dict[str, str]:
        job = await make.add(order.customer, order.month)
        return {"id": await job.result(timeout=WAIT_SECONDS)}

    # With the protocol named, asyncio sets TCP_NODELAY on its connections, as where uvicorn binds by itself.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    pipe.send(listening.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    await uvicorn.Server(config).serve(sockets=[listening])


async def _make(customer: str, month: str) -> str:
    return f"{customer}-{month}"


async def _work(_: Connection, url: str, name: str) -> None:
    """Run the tasks."""
    pin(SERVER_CORE)
    tasks = TaskQueue.from_url(url, name)
    tasks.task(name="make", keep_result=KEEP_SECONDS)(_make)
    await Worker(tasks).run()


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
    head = f"POST {asked.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    for _ in range(count):
        started = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 202 "), answer
        length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        each.append(time.perf_counter() - started)
    writer.close()
    await writer.wait_closed()
