"""The worker in the process of an application: its health, its crash, its stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from leasequeue import QueueClosed, TaskQueue, Worker
from leasequeue.fastapi import lifespan, router
from leasequeue.testing import Proxy
from leasequeue.worker.signals import SIGNALS
from tests.fastapi.applications import app_of, double
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@pytest.fixture
def of_worker(redis_url: str, tasks: TaskQueue) -> TaskQueue:
    """Return a task queue for the worker, which can be closed without closing that of the requests."""
    of_worker = TaskQueue.from_url(redis_url, tasks.name)
    of_worker.task(name="double")(tasks.tasks[0].function)
    return of_worker


def with_health(app: FastAPI, tasks: TaskQueue) -> FastAPI:
    app.include_router(router(tasks))
    return app


def crash(client: TestClient) -> None:
    """Let the worker of an application crash, and wait for that."""
    client.post("/crash")
    eventually("the health is red", lambda: client.get("/ready").status_code == 503)


def eventually(what: str, condition: Callable[[], bool]) -> None:
    """Wait in a thread without an event loop."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def test_a_crash_is_logged_and_turns_the_health_red(
    tasks: TaskQueue, of_worker: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    app = with_health(app_of(tasks, worker=Worker(of_worker)), tasks)
    app.post("/crash")(of_worker.close)
    with TestClient(app) as client:
        assert client.get("/ready").status_code == 200
        assert double(client, 2) == 4
        crash(client)
        (reason,) = client.get("/ready").json()["reasons"]
        assert reason == "the worker has crashed: QueueClosed, see the log"
        assert client.get("/live").status_code == 200
        assert client.get("/counts").status_code == 200
    (line,) = [one for one in caplog.records if one.name == "leasequeue.fastapi"]
    assert line.levelno == logging.CRITICAL
    assert line.exc_info


def test_a_test_client_raises_the_error_that_would_end_the_process(
    tasks: TaskQueue, of_worker: TaskQueue
) -> None:
    app = with_health(app_of(tasks, worker=Worker(of_worker), on_crash="exit"), tasks)
    app.post("/crash")(of_worker.close)
    with pytest.raises(QueueClosed), TestClient(app) as client:
        crash(client)


def test_a_worker_that_was_told_to_stop_has_not_crashed(
    tasks: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    worker = Worker(tasks)
    with TestClient(with_health(app_of(tasks, worker=worker, on_crash="exit"), tasks)) as client:
        worker.stop()
        eventually("it was stopped", lambda: "the embedded worker was stopped" in caplog.text)
        assert client.get("/ready").status_code == 200
        assert client.post("/double", params={"number": 1}).status_code == 202


async def test_the_health_follows_the_server(proxy: Proxy, name: str) -> None:
    tasks = TaskQueue.from_url(proxy.url, name, reply_timeout=1)
    worked = asyncio.Event()

    @tasks.task
    async def work() -> None:
        worked.set()

    app = with_health(FastAPI(lifespan=lifespan(tasks, worker=True)), tasks)
    async with app.router.lifespan_context(app) as state:

        async def serve(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(serve), base_url="http://test") as client:

            async def is_ready() -> bool:
                return (await client.get("/ready")).status_code == 200

            async def is_red() -> bool:
                answer = await client.get("/ready")
                return answer.status_code == 503 and any("leased" in one for one in answer.json()["reasons"])

            assert await is_ready()
            await proxy.fail()
            await until("the server is missed, by the worker too", is_red)
            assert (await client.get("/live")).status_code == 200
            await proxy.heal()
            await until("it is ready again", is_ready)
            await work.add()
            await worked.wait()


async def test_another_signal_interrupts_the_runs(tasks: TaskQueue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    begun = asyncio.Event()

    @tasks.task
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def signal_again() -> None:
        async def stops() -> bool:
            return "another signal interrupts them" in caplog.text

        await until("the worker stops", stops)
        signal.raise_signal(signal.SIGTERM)

    before = [signal.getsignal(number) for number in SIGNALS]
    app = FastAPI(lifespan=lifespan(tasks, worker=Worker(tasks, grace=3600)))
    async with asyncio.timeout(120), app.router.lifespan_context(app):
        job = await endless.add()
        await begun.wait()
        signalling = asyncio.create_task(signal_again())
    await signalling
    assert (await job.status()).state == "waiting"
    assert [signal.getsignal(number) for number in SIGNALS] == before


async def test_a_signal_ends_the_start_of_a_worker(tasks: TaskQueue) -> None:
    @asynccontextmanager
    async def loading() -> AsyncIterator[None]:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        await asyncio.Event().wait()
        yield

    app = FastAPI(lifespan=lifespan(tasks, worker=Worker(tasks, lifespan=loading)))
    async with asyncio.timeout(120), app.router.lifespan_context(app):
        pass  # its server would stop now


def test_all_that_the_lifespan_was_given_counts_for_the_health(tasks: TaskQueue) -> None:
    away = TaskQueue.from_url("redis://127.0.0.1:1", f"{tasks.name}-away", reply_timeout=0.1)
    with TestClient(with_health(FastAPI(lifespan=lifespan(tasks, away)), tasks)) as client:
        assert client.get("/ready").status_code == 503
