"""Measure the dashboard: `python -m benchmarks.dashboard`, for two minutes; `--large`, for three more.

How long each page takes at 100 queues, beside a plain route in the same run, and what of it is the template;
with `--large`, how long the server takes for each call of a page with 10^6 dead letters, 10^5 flow runs,
1,000 workers and 10,000 queues; what 0, 1 and 50 open pages cost the server; and what a process with 10,000
queues and 50 open pages takes. Where others compute beside it, compare with the plain route, and medians.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import httpx
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from leasequeue import AsyncWorkQueue
from leasequeue.dashboard.rendering import Renderer
from leasequeue.dashboard.sampler import KEPT
from tests import servers
from tests.dashboard import masses
from tests.dashboard.boards import client_of, open_board
from tests.processes import printed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

#: How long one measurement takes, and how often an open page asks (s).
SECONDS, EVERY = 15.0, 3.0
#: How often each page is opened to be measured.
TIMES = 50
#: From how long on the server logs a command (µs): as it logs also what scripts run, it would log for long.
LOGGED = 200
#: Clock ticks of /proc for each second of CPU time.
TICKS = os.sysconf("SC_CLK_TCK")
#: An error as tracebacks are.
ERROR = (
    "Traceback (most recent call last):\n" + '  File "mail.py", line 7, in send\n' * 25 + "ValueError: bad"
)
#: The pages, and searches that find nothing.
PAGES = {
    "the overview": "/",
    "a queue": "/queues/large",
    "dead letters": "/dead",
    "... of a queue, from the middle": "/dead?before={died}.copy-{dead}",
    "... with an error that none has": "/dead?queue=large&error=none",
    "workers": "/workers",
    "a worker": "/workers/first",
    "flow runs": "/flows",
    "... of a queue": "/flows/large",
    "... from the middle": "/flows/large?after={started}+copy-{runs}",
    "... of a flow that is rare": "/flows/large?flow=rare",
    "... with an attribute": "/flows/large?flow=access&find=size%3D1",
    "a flow run": "/flows/large/first",
    "a job": "/queues/large/jobs/copy-{dead}",
    "a job that is nowhere": "/jobs?q=none",
    "jobs by task": "/jobs?q=task:none",
    "schedules": "/schedules",
    "the autoscaler": "/autoscaler",
}


async def fill(url: str, queues: int, dead: int = 0, runs: int = 0, workers: int = 0) -> dict[str, str]:
    """Have so many queues, with so many of each in one; return the paths of the pages."""
    async with Redis.from_url(url) as client:
        await client.flushall()
        await masses.add_queues(client, queues)
        if not dead:
            return PAGES
        async with AsyncWorkQueue.from_url(url, "large") as queue:
            await masses.add_dead_letters(client, queue, dead, ERROR)
            await masses.add_flow_runs(client, queue, runs)
            await masses.add_workers(client, url, queue, workers)
        places: dict[str, Any] = {"dead": dead // 2, "runs": runs // 2}
        places["died"] = round(await client.zscore("large:dead", f"copy-{dead // 2}") or 0)
        places["started"] = round(await client.zscore("large:runs:active", f"copy-{runs // 2}") or 0)
    return {name: path.format(**places) for name, path in PAGES.items()}


async def hello(_: Request) -> PlainTextResponse:
    """Answer as shortly as a route can."""
    return PlainTextResponse("hello")


async def render(url: str) -> None:
    """Print how long each page takes when nobody else looks, and of it the template; beside a plain route."""
    paths = await fill(url, 99, 100, 100, 100)
    templates: list[float] = []
    page = Renderer.page

    def timed(*args: Any) -> Any:
        began = time.process_time()
        try:
            return page(*args)
        finally:
            templates.append(time.process_time() - began)

    plain_app = Starlette(routes=[Route("/", hello)])
    with patch.object(Renderer, "page", timed):
        async with open_board(url) as (app, client), client_of(plain_app) as other:
            sampler = app.state.board.sampler
            sampler._every = 3600.0  # noqa: SLF001 - its turns are these, as many as it keeps
            for _ in range(KEPT):
                await sampler.turn()
            for name, path in paths.items():
                took: list[tuple[float, float, float]] = []
                templates.clear()
                for _ in range(TIMES):
                    app.state.board.reads.forget()
                    cpu, times = time.process_time(), [time.perf_counter()]
                    for asked, where in ((client, path), (other, "/")):
                        assert (await asked.get(where)).status_code in {200, 303}, where
                        times.append(time.perf_counter())
                    cpu = time.process_time() - cpu
                    took.append((times[1] - times[0], times[2] - times[1], cpu))
                whole, plain, cpu = (statistics.median(column) * 1e3 for column in zip(*took, strict=True))
                drawn = statistics.median(templates) * 1e3 if templates else 0.0
                share = f"{cpu:5.2f} ms of CPU with the plain route, {drawn:5.2f} ms in the template"
                print(f"{name:32} {whole:6.2f} ms, {share}; a plain route {plain:.2f} ms", flush=True)


async def large(url: str) -> None:
    """Print for how long each page keeps the server from other work, with a lot of everything."""
    paths = await fill(url, 10_000, 1_000_000, 100_000, 1_000)
    async with Redis.from_url(url) as redis, open_board(url) as (app, client):
        await redis.config_set("slowlog-log-slower-than", LOGGED)
        await redis.config_set("slowlog-max-len", 10_000)
        board = app.state.board
        board.sampler._every = 3600.0  # noqa: SLF001 - it does not begin a second turn

        async def measure(name: str, path: str, times: int) -> None:
            await redis.config_resetstat()
            await redis.slowlog_reset()
            took, cpu = [], time.process_time()
            for _ in range(times):
                board.reads.forget()
                began = time.perf_counter()
                assert (await client.get(path)).status_code in {200, 303}, path
                took.append(time.perf_counter() - began)
            cpu = (time.process_time() - cpu) / times
            calls = (await redis.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"]
            found = (await redis.info("latencystats")).get("latency_percentiles_usec_evalsha", {})
            log = await redis.slowlog_get(10_000)
            slow = [one["duration"] for one in log if not one["command"].startswith(b"SLOWLOG")]
            print(
                f"{name:32} {statistics.median(took) * 1e3:6.1f} ms, {cpu * 1e3:.1f} of CPU, "
                f"{calls / times:4.0f} calls: median {found.get('p50', 0):.0f}, "
                f"p99 {found.get('p99', 0):.0f}, longest {max(slow, default=0)} µs",
                flush=True,
            )

        await measure("the first page: finding queues", "/", 1)
        for name, path in paths.items():
            await client.get(path)
            await measure(name, path, 10)


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
            paths = ["/queues/queue-00007" if number % 10 == 9 else "/" for number in range(count)]
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
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    await render(url)
    await fill(url, 100)
    for count in (0, 1, 50):
        await pages(url, count, 100)
    await fill(url, 10_000)
    for count in (1, 50):
        await pages(url, count, 10_000)
    if "--large" in sys.argv:
        await large(url)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    with servers.running(servers.wanted()) as running:
        asyncio.run(measure(running.url))
