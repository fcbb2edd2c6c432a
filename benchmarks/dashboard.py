"""Measure the dashboard: `python -m benchmarks.dashboard`, for two minutes.

How long a page takes at 100 queues, beside a plain route in the same run; what 0, 1 and 50 open pages cost
the server; and what a process with 10,000 queues and 50 open pages takes.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from leasequeue import AsyncWorkQueue, Item
from tests import servers
from tests.dashboard.boards import client_of, open_board
from tests.processes import printed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

#: How long one measurement takes, and how often an open page asks (s).
SECONDS, EVERY = 15.0, 3.0
#: Clock ticks of /proc for each second of CPU time.
TICKS = os.sysconf("SC_CLK_TCK")


async def fill(url: str, count: int) -> None:
    """Add an item to each of so many queues."""
    async with Redis.from_url(url) as client:
        await client.flushall()
        for number in range(count):
            async with AsyncWorkQueue(f"queue-{number}", client) as queue:
                await queue.add_item(Item(b"data"))


async def hello(_: Request) -> PlainTextResponse:
    """Answer as shortly as a route can."""
    return PlainTextResponse("hello")


async def render(url: str) -> None:
    """Print how long the overview takes, beside a plain route."""
    await fill(url, 100)
    plain = Starlette(routes=[Route("/", hello)])
    took: dict[str, list[float]] = {"the overview": [], "the page of a queue": [], "a plain route": []}
    async with open_board(url) as (_, client), client_of(plain) as other:
        for _ in range(300):
            for name, (asked, path) in {
                "the overview": (client, "/"),
                "the page of a queue": (client, "/queues/queue-7"),
                "a plain route": (other, "/"),
            }.items():
                began = time.perf_counter()
                answer = await asked.get(path)
                took[name].append(time.perf_counter() - began)
                assert answer.status_code == 200
    for name, times in took.items():
        print(f"{name}, 100 queues: median {statistics.median(times) * 1e3:.2f} ms")


@asynccontextmanager
async def process(url: str) -> AsyncIterator[tuple[int, str]]:
    """Run `leasequeue dashboard`, and give its pid and its origin."""
    words = ("-m", "leasequeue.cli", "dashboard", url, "--port", "0")
    started = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    try:
        yield started.pid, (await printed(started, b"http://")).split()[0].decode()
    finally:
        started.terminate()
        await started.wait()


async def keep_open(client: httpx.AsyncClient, path: str) -> None:
    """Ask as the script of a page does."""
    tag = ""
    while True:
        answer = await client.get(path, headers={"if-none-match": tag} if tag else {})
        tag = answer.headers.get("etag", "")
        await asyncio.sleep(EVERY)


def cpu_of(pid: int) -> float:
    """Return how many seconds a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> float:
    """Return how many MB a process has in memory."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def pages(url: str, count: int, queues: int) -> None:
    """Print what open pages cost: nine in ten of the overview, the others of a queue."""
    async with process(url) as (pid, origin), Redis.from_url(url) as redis:

        async def server() -> tuple[int, float]:
            commands, cpu = await redis.info("stats"), await redis.info("cpu")
            return commands["total_commands_processed"], cpu["used_cpu_user"] + cpu["used_cpu_sys"]

        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=origin, timeout=60, limits=limits) as client:
            paths = ["/queues/queue-7" if number % 10 == 9 else "/" for number in range(count)]
            open_pages = [asyncio.create_task(keep_open(client, path)) for path in paths]
            await asyncio.sleep(EVERY * 2)
            commands, cpu, own, began = *(await server()), cpu_of(pid), time.monotonic()
            await asyncio.sleep(SECONDS)
            later, more, took = *(await server()), time.monotonic() - began
            print(
                f"{queues:,} queues, {count} open pages: the server does {(later - commands) / took:.0f} "
                f"commands/s with {(more - cpu) / took:.1%} of a core; the dashboard takes "
                f"{(cpu_of(pid) - own) / took:.0%} of a core and {memory_of(pid):.0f} MB",
                flush=True,
            )
            for page in open_pages:
                page.cancel()
            await asyncio.gather(*open_pages, return_exceptions=True)


async def measure(url: str) -> None:
    """Measure all of it on a server, which is emptied."""
    await render(url)
    for count in (0, 1, 50):
        await pages(url, count, 100)
    await fill(url, 10_000)
    for count in (1, 50):
        await pages(url, count, 10_000)


if __name__ == "__main__":
    with servers.running(servers.wanted()) as running:
        asyncio.run(measure(running.url))
