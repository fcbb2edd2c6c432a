"""Requests with odd ids and numbers, and what other clients have written."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import httpx
import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, TaskQueue
from tests.fastapi.applications import PREFIX, client_of, problem, with_router
from tests.queue.asking import until
from tests.worker.working import new_worker


@pytest.mark.parametrize(
    "item_id", ["a/b", "a/b/c d", "ä ß", "?x=1#y", "%2F", "\x00", "../x", "line\nbreak", "x" * 512]
)
async def test_ids_with_odd_characters(tasks: TaskQueue, client: httpx.AsyncClient, item_id: str) -> None:
    await tasks.tasks[0].options(id=item_id).add(4)
    path = f"/jobs/{quote(item_id, safe='').replace('.', '%2E')}"
    assert (await client.get(path)).json()["id"] == item_id
    answer = await client.get(f"{path}/result")
    assert answer.json()["id"] == item_id
    assert answer.headers["location"] == f"{PREFIX}{path}/result"
    answer = await client.post(f"{path}/cancel", params={"token": "secret"})
    assert answer.json()["state"] == "cancelled"


@pytest.mark.parametrize("item_id", ["x" * 513, "ä" * 300, "%FF"])
async def test_what_cannot_be_an_id_is_unknown(client: httpx.AsyncClient, item_id: str) -> None:
    problem(await client.get(f"/jobs/{item_id}"), 404, "job-unknown")
    problem(await client.get(f"/jobs/{item_id}/result", params={"wait": 1}), 404, "job-unknown")


@pytest.mark.parametrize("wait", ["-1", "1e9", "30.1", "nan", "inf", "soon", ""])
async def test_a_wait_that_cannot_be_used_is_refused(client: httpx.AsyncClient, wait: str) -> None:
    found = problem(await client.get("/jobs/1/result", params={"wait": wait}), 422, "request-invalid")
    assert [(one["in"], one["name"]) for one in found["errors"]] == [("query", "wait")]
    assert found["detail"].startswith("wait: ")


async def test_results_of_queues_without_tasks_may_be_any_bytes(redis_url: str, name: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, name) as queue,
        client_of(with_router(queue)) as client,
    ):

        async def answer_to(result: bytes) -> httpx.Response:
            await queue.add_item(Item(b"", id="1"))
            await queue.complete(await queue.lease(30), result=result)
            return await client.get("/jobs/1/result")

        for result in (b"\xff\x00", b"not JSON", b"", b"NaN", b"[" * 100_000):
            answer = await answer_to(result)
            assert (answer.status_code, answer.content) == (200, result)
            assert answer.headers["content-type"] == "application/octet-stream"
        answer = await answer_to(b'{"a": [1.50, 123456789012345678901234567890]}')
        assert answer.text.endswith('"result":{"a": [1.50, 123456789012345678901234567890]}}')


@pytest.mark.parametrize("result", [b"\xff", b"not JSON", b"[1]", b'{"result": nul}', b'{"error": {}}'])
async def test_a_result_of_a_task_that_cannot_be_read(
    tasks: TaskQueue, client: httpx.AsyncClient, result: bytes
) -> None:
    job = await tasks.tasks[0].add(4)
    await tasks.queue.complete(await tasks.queue.lease(30), result=result)
    answer = await client.get(f"/jobs/{job.id}/result")
    name, status = ("job-failed", 424) if b"error" in result else ("result-unreadable", 502)
    problem(answer, status, name)


@pytest.mark.parametrize(
    "progress", [b"NaN", b'{"a": Infinity}', b'"\\ud800"', b"[" * 500 + b"]" * 500, b"[" * 5000, b"no JSON"]
)
async def test_progress_that_cannot_be_shown_is_left_out(
    tasks: TaskQueue, client: httpx.AsyncClient, redis: Redis, progress: bytes
) -> None:
    job = await tasks.tasks[0].add(4)
    await redis.hset(f"{tasks.name}:progress", job.id, progress)
    for path in (f"/jobs/{job.id}", f"/jobs/{job.id}/result"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["progress"]) == ({"t": 202}.get(path[-1], 200), None)


async def test_a_run_of_an_id_that_is_no_text_is_shown(redis: Redis, redis_url: str, name: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, name) as queue,
        client_of(with_router(queue)) as client,
    ):
        worker, runs = new_worker(dead_after=0.5), asyncio.Event()

        @worker.handler(queue)
        async def wait(_: bytes) -> None:
            runs.set()
            await asyncio.Event().wait()

        # As clients of other libraries may add it.
        await redis.set(f"{name}:item:".encode() + b"\xff", b"")
        await redis.lpush(f"{name}:queue", b"\xff")
        running = asyncio.create_task(worker.run())
        await runs.wait()

        async def is_shown() -> bool:
            answer = await client.get("/workers")
            assert answer.status_code == 200, answer.text
            return [run["id"] for one in answer.json() for run in one["running"]] == ["\\udcff"]

        await until("the run is listed", is_shown)
        worker.stop(now=True)
        await running
