"""Requests that wait for results."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from leasequeue import AsyncWorkQueue, TaskQueue
from leasequeue.queue.queue import engines_of
from tests.eventually import eventually
from tests.fastapi.applications import PREFIX, problem, with_router
from tests.worker.working import new_worker

#: How many requests wait at once.
WAITS = 200


async def test_a_job_that_is_done_without_a_result(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    job = await tasks.tasks[0].add(4)
    waiting = asyncio.create_task(client.get(f"/jobs/{job.id}/result", params={"wait": 20}))
    await eventually("the request waits", lambda: count_of_waits(tasks.queue) == 1)
    await tasks.queue.complete(await tasks.queue.lease(30))
    assert (await waiting).status_code == 204
    problem(await client.get(f"/jobs/{job.id}/result"), 404, "job-unknown")


async def test_a_client_that_goes_away_ends_its_wait(tasks: TaskQueue) -> None:
    app = with_router(tasks)
    job = await tasks.tasks[0].add(4)
    gone = asyncio.Event()
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])
    sent = []

    async def receive() -> Any:
        if message := next(messages, None):
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": f"{PREFIX}/jobs/{job.id}/result",
        "query_string": b"wait=30",
        "headers": [],
        "root_path": "",
    }
    serving = asyncio.create_task(app(scope, receive, send))
    await eventually("the request waits", lambda: count_of_waits(tasks.queue) == 1)
    gone.set()
    async with asyncio.timeout(120):
        await serving
    assert sent[0]["status"] == 499
    assert count_of_waits(tasks.queue) == 0


async def test_many_requests_wait_at_once(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    jobs = await tasks.add_many(tasks.tasks[0].call(number) for number in range(WAITS))
    waits = [asyncio.create_task(client.get(f"/jobs/{job.id}/result", params={"wait": 30})) for job in jobs]
    await eventually("all wait", lambda: count_of_waits(tasks.queue) == WAITS)
    assert (await client.get("/live")).status_code == 200
    await new_worker(tasks).drain()
    answers = await asyncio.gather(*waits)
    assert [one.json()["result"] for one in answers] == [2 * number for number in range(WAITS)]


def count_of_waits(queue: AsyncWorkQueue) -> int:
    """Return for how many items that the server says are unfinished callers wait in this event loop."""
    engine = engines_of(queue).running
    return 0 if engine is None else len(engine.result_waits._unfinished)
