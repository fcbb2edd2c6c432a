"""The router: jobs, results, cancelling, queues and workers, with problem+json for errors."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, InvalidArgument, Item, RetryPolicy, TaskQueue
from leasequeue.fastapi import anyone, lifespan, router
from leasequeue.queue.queue import engines_of
from tests.eventually import eventually
from tests.fastapi.applications import PREFIX, admin, client_of, problem, with_router
from tests.hostile import BYTES, TEXT, fill
from tests.queue.asking import until
from tests.worker.working import new_worker


async def test_a_job_waits_runs_and_is_done(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    job = await tasks.tasks[0].add(4)
    status = await client.get(f"/jobs/{job.id}")
    assert status.json() == {
        "id": job.id,
        "queue": tasks.name,
        "state": "waiting",
        "attempt": 0,
        "error": None,
        "due": None,
        "progress": None,
    }
    waits = await client.get(f"/jobs/{job.id}/result", params={"wait": 0.01})
    assert (waits.status_code, waits.json()["state"]) == (202, "waiting")
    assert waits.headers["location"] == f"{PREFIX}/jobs/{job.id}/result?wait=0.01"
    assert waits.headers["retry-after"] == "1"
    assert (await client.get(f"/jobs/{job.id}/result")).status_code == 202

    waiting = asyncio.create_task(client.get(f"/jobs/{job.id}/result", params={"wait": 20}))
    await new_worker(tasks).drain()
    result = await waiting
    assert result.json() == {"id": job.id, "queue": tasks.name, "state": "completed", "result": 8}
    assert (await client.get(f"/jobs/{job.id}/result")).json() == result.json()
    ended = (await client.get(f"/jobs/{job.id}")).json()
    assert (ended["state"], ended["attempt"]) == ("completed", None)


async def test_a_scheduled_job_says_when_to_ask_again(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    job = await tasks.tasks[0].options(delay=25).add(4)
    answer = await client.get(f"/jobs/{job.id}/result")
    assert answer.status_code == 202
    assert 20 < int(answer.headers["retry-after"]) <= 25
    due = datetime.fromisoformat(answer.json()["due"])
    assert timedelta(0) < due - datetime.now(UTC) <= timedelta(seconds=25)
    later = await tasks.tasks[0].options(delay=90_000).add(4)
    assert (await client.get(f"/jobs/{later.id}/result")).headers["retry-after"] == "60"


async def test_a_failed_job_shows_its_error_without_the_traceback(
    tasks: TaskQueue, client: httpx.AsyncClient
) -> None:
    @tasks.task(retry=RetryPolicy(attempts=1))
    async def fail() -> None:
        raise ValueError("it is bad")

    job = await fail.add()
    await new_worker(tasks).drain()
    error = {"type": "ValueError", "message": "it is bad"}
    found = problem(await client.get(f"/jobs/{job.id}/result"), 424, "job-failed")
    assert found["error"] == error
    assert found["instance"] == f"{PREFIX}/jobs/{job.id}/result"
    status = await client.get(f"/jobs/{job.id}")
    assert (status.json()["state"], status.json()["error"]) == ("dead", error)
    assert "Traceback" not in f"{found}{status.text}"


async def test_an_expired_job(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    job = await tasks.tasks[0].options(expires_in=0.001).add(4)
    await asyncio.sleep(0.01)
    await new_worker(tasks).drain()
    problem(await client.get(f"/jobs/{job.id}/result"), 410, "job-expired")
    assert (await client.get(f"/jobs/{job.id}")).json()["state"] == "expired"


async def test_a_job_is_cancelled_once_or_twice(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    job = await tasks.tasks[0].add(4)
    for _ in range(2):
        answer = await client.post(f"/jobs/{job.id}/cancel", params={"token": "secret"})
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    ended = (await client.get(f"/jobs/{job.id}")).json()
    assert (ended["state"], ended["attempt"]) == ("cancelled", None)
    problem(await client.get(f"/jobs/{job.id}/result"), 410, "job-cancelled")


async def test_a_job_that_has_ended_or_is_unknown_cannot_be_cancelled(
    tasks: TaskQueue, client: httpx.AsyncClient
) -> None:
    job = await tasks.tasks[0].add(4)
    await new_worker(tasks).drain()
    answer = await client.post(f"/jobs/{job.id}/cancel", params={"token": "secret"})
    assert problem(answer, 409, "job-ended")["state"] == "completed"
    problem(await client.post("/jobs/7/cancel", params={"token": "secret"}), 404, "job-unknown")


async def test_writes_are_refused_without_the_dependency(tasks: TaskQueue, client: httpx.AsyncClient) -> None:
    job = await tasks.tasks[0].add(4)
    refused = await client.post(f"/jobs/{job.id}/cancel")
    assert problem(refused, 401, "")["title"] == "say who you are"
    assert refused.headers["www-authenticate"] == "Bearer"
    async with client_of(with_router(tasks, writes=None)) as readers:
        assert (await readers.post(f"/jobs/{job.id}/cancel")).status_code == 404
    assert (await job.status()).state == "waiting"


async def test_reads_are_refused_without_the_dependency(tasks: TaskQueue) -> None:
    async with client_of(with_router(tasks, reads=[Depends(admin)])) as client:
        for path in ("/jobs/1", "/jobs/1/result", "/queues", f"/queues/{tasks.name}", "/workers"):
            problem(await client.get(path), 401, "")
            assert (await client.get(path, params={"token": "secret"})).status_code in {200, 404}
        for path in ("/live", "/ready"):
            assert (await client.get(path)).json() == {"status": "ok"}


async def test_a_stranger_reaches_only_the_probes(tasks: TaskQueue) -> None:
    """Ids of runs lead to results, and texts of errors may hold passwords: they need `reads`."""
    job = await tasks.tasks[0].add(4)
    await new_worker(tasks).drain()
    app = with_router(tasks, reads=None, writes=None)
    assert app.openapi()["paths"].keys() == {f"{PREFIX}/live", f"{PREFIX}/ready"}
    async with client_of(app) as stranger:
        reads = (f"/jobs/{job.id}", f"/jobs/{job.id}/result", "/queues", f"/queues/{tasks.name}", "/workers")
        for path in reads:
            assert (await stranger.get(path)).status_code == 404
        for path in ("/live", "/ready"):
            assert (await stranger.get(path)).text == '{"status":"ok"}'


async def test_anyone_may_read_where_the_application_says_so(tasks: TaskQueue) -> None:
    job = await tasks.tasks[0].add(4)
    async with client_of(with_router(tasks, reads=[Depends(anyone)], writes=None)) as client:
        assert (await client.get(f"/jobs/{job.id}")).json()["state"] == "waiting"
        assert (await client.post(f"/jobs/{job.id}/cancel")).status_code == 404


@pytest.mark.core
async def test_what_others_have_written_is_answered_as_json(
    redis_url: str, redis: Redis, name: str, tasks: TaskQueue
) -> None:
    async with AsyncWorkQueue.from_url(redis_url, f"{{{name}}} {TEXT}") as queue:
        await fill(redis, queue)
        paths = ["/queues", "/workers", f"/queues/{quote(queue.name, safe='')}", "/ready"]
        for item_id in (TEXT.encode(), BYTES[:500], f"{TEXT} later".encode()):
            paths += [f"/jobs/{quote(item_id, safe='')}", f"/jobs/{quote(item_id, safe='')}/result"]
        async with client_of(with_router(tasks, queue)) as client:
            answers = [await client.get(path) for path in paths]
    assert {answer.status_code for answer in answers} <= {200, 202, 404, 422, 424}
    for answer in answers:
        kind = answer.headers["content-type"]
        if kind == "application/octet-stream":
            assert answer.headers["x-content-type-options"] == "nosniff"
        else:
            assert kind in {"application/json", "application/problem+json"}
            assert json.loads(answer.content.decode())
            assert not re.search("[\0-\x1f]", answer.text)


async def test_jobs_are_looked_for_in_each_queue(
    tasks: TaskQueue, client: httpx.AsyncClient, name: str
) -> None:
    @tasks.task(queue=f"{name}-own")
    async def elsewhere() -> str:
        return "done"

    job = await elsewhere.add()
    assert (await client.get(f"/jobs/{job.id}")).json()["queue"] == f"{name}-own"
    problem(await client.get(f"/jobs/{job.id}", params={"queue": name}), 404, "job-unknown")
    problem(await client.get(f"/jobs/{job.id}", params={"queue": "other"}), 404, "queue-unknown")
    waiting = asyncio.create_task(client.get(f"/jobs/{job.id}/result", params={"wait": 20}))
    await new_worker(tasks).drain()
    assert (await waiting).json()["result"] == "done"
    answer = await client.post(f"/jobs/{(await elsewhere.add()).id}/cancel", params={"token": "secret"})
    assert answer.json()["state"] == "cancelled"


async def test_queues_and_workers(tasks: TaskQueue, client: httpx.AsyncClient, name: str) -> None:
    await tasks.tasks[0].add(4)
    counts = {"name": name, "waiting": 1, "leased": 0, "scheduled": 0, "dead": 0}
    assert (await client.get("/queues")).json() == [counts]
    details = (await client.get(f"/queues/{name}")).json()
    assert details.items() >= {**counts, "workers": 0, "leases": 0, "paused": None}.items()
    assert details.keys() - counts.keys() >= {"oldest_age", "oldest_age_error", "wait"}
    await tasks.queue.pause(reason="for now")
    assert (await client.get(f"/queues/{name}")).json()["paused"]["reason"] == "for now"
    await tasks.queue.resume()
    problem(await client.get("/queues/other"), 404, "queue-unknown")
    assert (await client.get("/workers")).json() == []
    worker = new_worker(tasks, name="ours")
    running = asyncio.create_task(worker.run())
    await worker.started()
    await eventually("the worker has worked", lambda: worker.runs == 1)

    async def is_listed() -> bool:
        found = (await client.get("/workers")).json()
        return [(one["name"], one["queues"], one["dead"]) for one in found] == [("ours", [name], False)]

    await until("the worker is listed", is_listed)
    worker.stop()
    await running


async def test_a_server_that_is_down_is_a_problem(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskQueue.from_url("redis://127.0.0.1:1", "away", reply_timeout=2)
    async with client_of(with_router(tasks)) as client:
        for path in ("/jobs/1", "/jobs/1/result", "/jobs/1/result?wait=1", "/queues", "/workers"):
            answer = await client.get(path)
            found = problem(answer, 503, "server-unavailable")
            assert answer.headers["retry-after"] == "2"
            assert "127.0.0.1" not in f"{found}", "addresses are not for clients"
        assert (await client.get("/live")).status_code == 200
        for _ in range(2):
            found = problem(await client.get("/ready"), 503, "not-ready")
            assert found["reasons"] == ["the server does not answer: ConnectionLost, see the log"]
            assert "127.0.0.1" not in f"{found}"
    [line] = [line for line in caplog.text.splitlines() if "not ready" in line]
    assert "the server does not answer: " in line
    assert "127.0.0.1:1" in line


async def test_a_server_that_refuses_is_said_and_the_log_says_what_to_change(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = TaskQueue.from_url(redis_url.replace("redis://", "redis://stranger:wrong@"), "refused")
    async with client_of(with_router(tasks)) as client:
        [reason] = problem(await client.get("/ready"), 503, "not-ready")["reasons"]
    assert reason == "the server refuses: LoginRefused, see the log"
    assert "not ready: the server refuses: WRONGPASS " in caplog.text


def test_a_mounted_application_behind_a_proxy(tasks: TaskQueue) -> None:
    app = FastAPI(lifespan=lifespan(tasks, worker=True))
    app.mount("/inner", with_router(tasks))

    @app.post("/double")
    async def add() -> str:
        return (await tasks.tasks[0].options(delay=60).add(4)).id

    with TestClient(app, root_path="/proxied") as client:
        path = f"/proxied/inner/tasks/jobs/{client.post('/double').json()}/result"
        assert client.get(path).headers["location"] == path
        assert client.get("/proxied/inner/tasks/ready").json() == {"status": "ok"}
        inside = f"{PREFIX}{path.partition(PREFIX)[2]}"
        with TestClient(with_router(tasks), root_path="/proxied") as proxied:
            assert proxied.get(inside).headers["location"] == f"/proxied{inside}"


def test_urls_of_its_routes_can_be_made(tasks: TaskQueue) -> None:
    app = with_router(tasks)
    assert app.url_path_for("job_result", id="a/b") == f"{PREFIX}/jobs/a%2Fb/result"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writes": []}, "one or more Depends"),
        ({"writes": [admin]}, "writes"),
        ({"writes": Depends(admin)}, "writes"),
        ({"reads": [admin]}, "reads"),
        ({"reads": []}, "one or more Depends"),
    ],
)
def test_an_invalid_argument_is_refused(tasks: TaskQueue, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        router(tasks, **options)


# ----------------------------------------------------------------------------------------------- odd requests


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


# ----------------------------------------------------------------------------------------- requests that wait


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
