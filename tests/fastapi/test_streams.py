"""Streams of jobs as server-sent events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import current_run
from leasequeue.worker import RetryPolicy
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    import httpx

    from leasequeue import TaskQueue

pytestmark = pytest.mark.core


def events_in(text: str) -> list[tuple[str, str, Any]]:
    """Return the name, the id and the data of each event."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        found.append((fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])))
    return found


async def test_a_stream_is_read_as_events_again_and_from_a_place(
    tasks: TaskQueue, client: httpx.AsyncClient
) -> None:

    @tasks.task(streams=dict[str, int], retry=RetryPolicy(attempts=2, first=0), keep_result=None)
    async def write() -> None:
        run = current_run()
        await run.emit({"n": run.attempt})
        if run.attempt == 1:
            raise OSError

    job = await write.add()
    async with working(new_worker(tasks)):
        answer = await client.get(f"/jobs/{job.id}/stream")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_in(answer.text)
    first, second = events[0][1], events[2][1]
    assert events == [
        ("", first, {"n": 1}),
        ("restart", "", {"attempt": 2}),
        ("", second, {"n": 2}),
        ("end", "end", {"state": "completed"}),
    ]
    headers = {"Last-Event-ID": first}
    answer = await client.get(f"/jobs/{job.id}/stream", headers=headers)
    assert events_in(answer.text) == events[1:], "nothing but the stream is kept of the job"
    answer = await client.get(f"/jobs/{job.id}/stream", headers={"Last-Event-ID": "end"})
    assert answer.status_code == 204
    answer = await client.get(f"/jobs/{job.id}/stream", headers={"Last-Event-ID": "what"})
    assert answer.status_code == 422
    answer = await client.get("/jobs/none/stream")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:leasequeue:job-unknown")


async def test_a_chunk_may_contain_null(tasks: TaskQueue, client: httpx.AsyncClient) -> None:

    @tasks.task(streams=dict[str, str | None])
    async def write() -> None:
        await current_run().emit({"next": None})

    job = await write.add()
    await new_worker(tasks).drain()
    answer = await client.get(f"/jobs/{job.id}/stream")
    assert [data for _, _, data in events_in(answer.text)] == [{"next": None}, {"state": "completed"}]


async def test_the_last_event_says_how_a_job_has_failed(tasks: TaskQueue, client: httpx.AsyncClient) -> None:

    @tasks.task(streams=str, retry=RetryPolicy(attempts=1))
    async def write() -> None:
        await current_run().emit("a\u2028b")
        raise ValueError("no ink")

    job = await write.add()
    await new_worker(tasks).drain()
    answer = await client.get(f"/jobs/{job.id}/stream")
    *_, (_, _, chunk), (name, _, end) = events_in(answer.text)
    assert chunk == "a\u2028b"
    assert (name, end) == (
        "end",
        {"state": "failed", "error": {"type": "ValueError", "message": "no ink"}},
    )
    waiting = await write.add()
    await waiting.cancel()
    answer = await client.get(f"/jobs/{waiting.id}/stream")
    assert events_in(answer.text) == [("end", "end", {"state": "cancelled"})]
