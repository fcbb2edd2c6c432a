"""A program as users write it, for `leasequeue worker`: each item says what its handler does.

REDIS_URL and QUEUE name the server and the queue. The start and the end of each run are written to RECORD.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import threading
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Lease, RetryPolicy, Worker
from leasequeue.alive import ring
from leasequeue.cli.worker import process
from leasequeue.worker import executor, health, runtime, signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECORD = Path(os.environ["RECORD"])
#: A run that holds continues when this file exists.
RELEASE = RECORD.with_name("release")
HANGS_AT = os.environ.get("HANGS_AT")
URL, QUEUE = os.environ["REDIS_URL"], os.environ["QUEUE"]

#: A query without an end. The library releases the interpreter's lock, but reacts to no signal.
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"

#: The memory of runs that grow.
GROWN: list[bytes] = []

log = logging.getLogger("program")

IS_SHORT = os.environ.get("LIMITS") == "short"
if IS_SHORT and HANGS_AT != "end":  # for tests that reach the time limits of a stop
    signals.BLOCKED_SECONDS, signals.LAST_SECONDS = 0.5, 1.0
    health.BLOCKED_SECONDS, health.CHECK_SECONDS = 0.5, 0.1
    executor.CLEAN_UP_SECONDS, executor.HURRIED_SECONDS = 0.3, 0.3
    runtime.ACKNOWLEDGE_SECONDS = 0.5
    process.EXIT_SECONDS = 0.5


def write(*words: object) -> None:
    """Append a line to the record in one write."""
    with RECORD.open("ab", buffering=0) as file:
        file.write((" ".join(map(str, words)) + "\n").encode())


if os.environ.get("PEERS") == "soon":  # they conclude soon that another worker is dead
    ring.LOOK_SECONDS, ring.GONE_SECONDS, ring.READ_SECONDS, ring.STANDING_SECONDS = 0.1, 0.5, 0.2, 0.0
elif os.environ.get("PEERS") == "sooner":
    # A worker that has had no server for `GONE_SECONDS` stops its runs.
    ring.LOOK_SECONDS, ring.GONE_SECONDS, ring.STANDING_SECONDS = 0.2, 6.0, 1.0
elif os.environ.get("PEERS") == "as they are":  # but that a busy machine may take long to start a server
    ring.GONE_SECONDS = 20.0
elif os.environ.get("PEERS") == "never":
    ring.LOOK_SECONDS = 3600.0


@asynccontextmanager
async def lifespan() -> AsyncIterator[dict[str, str]]:
    """Provide what handlers ask for, and record the end; fail or hang where HANGS_AT says so."""
    if HANGS_AT == "nowhere":
        raise LookupError("no database")
    if HANGS_AT == "start":
        log.warning("it hangs")
        await asyncio.sleep(600)
    yield {"greeting": "hello"}
    if HANGS_AT == "end":
        log.warning("it hangs")
        if IS_SHORT:  # not before: a busy machine would reach the limit before this line
            signals.LAST_SECONDS = 0.5
        await asyncio.sleep(600)
    write("lifespan", "over", os.getpid())


worker = Worker(
    concurrency=10,
    lease_time=float(os.environ.get("LEASE", "30")),
    retry=RetryPolicy(attempts=2, first=0.05),
    lifespan=lifespan,
    dead_after=float(os.environ.get("DEAD_AFTER", "15")),
    gone_after=ring.GONE_SECONDS,
)


def use(verb: str, number: str) -> None:
    """Use memory, a thread, or the event loop inside a library."""
    if verb == "grow":
        GROWN.append(b"x" * (int(number) << 20))
    elif verb == "leave":
        threading.Thread(target=time.sleep, args=(600,)).start()
    else:
        sqlite3.connect(":memory:").execute(ENDLESS)


@worker.handler(AsyncWorkQueue.from_url(URL, QUEUE))
async def do(order: str, lease: Lease, greeting: str) -> None:
    """Do what the item says."""
    verb, _, number = order.partition(" ")
    write("began", lease.id, os.getpid(), greeting)
    if verb == "sleep":
        await asyncio.sleep(float(number))
    elif verb == "hold":
        while not RELEASE.exists():  # noqa: ASYNC110 - the test creates the file
            await asyncio.sleep(0.01)
    elif verb == "block":
        time.sleep(600)  # noqa: ASYNC251 - it blocks the event loop on purpose
    elif verb == "refuse":
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
    elif verb in ("grow", "leave", "query"):
        use(verb, number)
    elif verb == "boom":
        raise ValueError("no such thing")
    write("ended", lease.id, os.getpid())


@worker.handler(AsyncWorkQueue.from_url(URL, f"{QUEUE}-thread"))
def in_thread(order: str, lease: Lease) -> None:
    """Never return."""
    write("began", lease.id, os.getpid(), order)
    time.sleep(600)


@worker.handler(AsyncWorkQueue.from_url(URL, f"{QUEUE}-process"), run_in="process")
def in_process(order: str) -> None:
    """Never return."""
    write("began", order, os.getpid())
    time.sleep(600)


def make() -> Worker:
    """Return the worker, as a factory does."""
    return worker


def fails() -> Worker:
    """Fail to make a worker."""
    raise LookupError("no settings")


not_a_worker = 5
idle = Worker()

needy = Worker()


@needy.handler(AsyncWorkQueue.from_url(URL, QUEUE))
async def wants(order: str, database: str) -> None:
    """Ask for a parameter that no lifespan provides."""
    raise AssertionError(order, database)
