"""How soon a worker goes on after the server was killed and started again.

The server is one of its own, which keeps its data. It is back when it answers; then an item is added, and the
time runs until the handler begins.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench import PATIENCE_SECONDS, pin
from benchmarks.rows import Row, time_row
from benchmarks.scenarios.worker_idle import running
from leasehold import AsyncWorkQueue, Item, Worker
from leasehold.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bench import Bench

NAME = "bench-worker"
#: Seconds without a server -> how often.
OUTAGES = {0.2: 5, 3.0: 5}
QUICK_OUTAGES = {0.2: 1}


async def run(bench: Bench) -> list[Row]:
    """Measure after outages of different length."""
    rows: list[Row] = []
    with quiet(), tempfile.TemporaryDirectory(prefix="leasehold-bench-") as folder:
        for away, times in (QUICK_OUTAGES if bench.quick else OUTAGES).items():
            late = await outages(Path(folder), away, times)
            rows.append(
                time_row(
                    "worker_restart",
                    "server back to handler",
                    "leasehold",
                    {"away": f"{away:g} s"},
                    late,
                    rounds=times,
                )
            )
    return rows


@contextmanager
def quiet() -> Iterator[None]:
    """Say nothing of an outage that was made on purpose."""
    log = logging.getLogger("leasehold")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def outages(folder: Path, away: float, times: int) -> list[float]:
    """Kill the server under an idle worker and start it again, so many times."""
    late: list[float] = []
    server = await started(folder, None)
    try:
        async with AsyncWorkQueue.from_url(server.url, NAME) as queue:
            began: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
            worker = Worker()

            @worker.handler(queue)
            async def work(number: str) -> None:
                began.put_nowait((number, time.perf_counter()))

            async with running(worker), asyncio.timeout(PATIENCE_SECONDS * times):
                await at_work(worker)
                for number in range(times):
                    os.kill(server.pid, signal.SIGKILL)
                    await server.stop()
                    await asyncio.sleep(away)
                    server = await started(folder, server.port)
                    back = time.perf_counter()
                    await add(server, str(number))
                    # What the server had not written down when it was killed may run once more.
                    while (run := await began.get())[0] != str(number):
                        pass
                    late.append(run[1] - back)
    finally:
        await server.stop()
    return late


async def at_work(worker: Worker) -> None:
    """Wait until it has begun to work."""
    while not worker.health().ok:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def started(folder: Path, port: int | None) -> EmbeddedServer:
    """Start it on the data that it had."""
    server = await EmbeddedServer.start(dir=folder, port=port)
    pin(server.pid)
    return server


async def add(server: EmbeddedServer, number: str) -> None:
    """Add an item, by somebody who has just come."""
    async with AsyncWorkQueue.from_url(server.url, NAME) as queue:
        await queue.add_item(Item(number))
