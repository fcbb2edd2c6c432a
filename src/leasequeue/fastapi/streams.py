"""Streams of jobs as server-sent events, which browsers read with `EventSource`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from leasequeue.errors import JobCancelled, JobExpired, JobFailed, JobUnknown
from leasequeue.errors.log import Log
from leasequeue.fastapi.jobs import disconnected
from leasequeue.item import codec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from leasequeue.durations import Duration
    from leasequeue.tasks.job import Job
    from leasequeue.views import Chunk

#: After so long without an event a comment is sent, so that proxies keep the connection open (s).
PING_SECONDS = 15.0
#: The id of the event at the end. The answer to a browser that has it and connects again is to stop.
END = "end"
#: They have proxies keep nothing back.
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
#: How a stream has ended, by what its job raises.
_STATES: dict[type[Exception], str] = {
    JobFailed: "failed",
    JobCancelled: "cancelled",
    JobExpired: "expired",
    JobUnknown: "unknown",
}

#: What ends a line of an event: not all that ends one in Python.
_LINE_END = re.compile(r"\r\n|\r|\n")

log = Log("leasequeue.fastapi")


def stream_response(request: Request, job: Job[Any], *, cancel_after: Duration | None = None) -> Response:
    """Return a response with the stream of a job as server-sent events.

        @app.get("/answers/{id}")
        async def read(request: Request, id: str) -> Response:
            return stream_response(request, answer.job(id), cancel_after=10)

    Each chunk is an event whose data is its JSON, and whose id is its cursor: when the connection is lost, a
    browser connects again with the header `Last-Event-ID`, and gets what follows. The event `restart`, with
    `{"attempt": 2}`, comes before the chunks of another run; `end`, with `{"state": "completed"}`, after the
    last one. Its state may also be `failed` (then with `error`), `cancelled`, `expired` or `unknown`. If the
    server of the queue fails, the response ends without it, so that the browser connects again.

    Args:
        request: The request, which has the header and says when the client has gone.
        job: The job.
        cancel_after: If the client leaves before the end, cancel the job this many seconds later, unless it
            is read again by then: see `Job.stream`. Give browsers 5 s or more to connect again.

    Raises:
        InvalidArgument: If the header is no id of such an event, the task has no `streams`, or `cancel_after`
            is no duration. What can be raised only later ends the response.
    """
    after = request.headers.get("last-event-id") or None
    if after == END:
        return Response(status_code=204)
    chunks = job.stream(after=after, cancel_after=cancel_after)
    return StreamingResponse(_events(request, chunks), headers=_HEADERS, media_type="text/event-stream")


async def _events(request: Request, chunks: AsyncGenerator[Chunk[Any], None]) -> AsyncGenerator[bytes, None]:
    """Yield events. Tasks read the stream and watch the client, as this may be cancelled or left alone."""
    read: asyncio.Queue[Chunk[Any] | Exception | None] = asyncio.Queue(maxsize=1)
    reading = asyncio.create_task(_read(chunks, read), name="leasequeue read stream")
    watching = asyncio.create_task(disconnected(request), name="leasequeue watch client")
    watching.add_done_callback(lambda _: reading.cancel())
    try:
        while not (reading.cancelled() and read.empty()):
            try:
                async with asyncio.timeout(PING_SECONDS):
                    found = await read.get()
            except TimeoutError:
                yield b": still there\n\n"
                continue
            if not isinstance(found, Exception | None):
                if found.restarted:
                    yield _event("restart", json.dumps({"attempt": found.attempt}))
                yield _event("", codec.encode(found.value).decode(errors="replace"), found.cursor)
            elif found is None or type(found) in _STATES:
                yield _event("end", json.dumps(_end(found)), END)
                break
            else:
                log.warning("a stream of a job ends early: %s", found)
                break
    finally:
        watching.cancel()
        reading.cancel()


async def _read(
    chunks: AsyncGenerator[Chunk[Any], None], read: asyncio.Queue[Chunk[Any] | Exception | None]
) -> None:
    try:
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                await read.put(chunk)
    except Exception as error:  # noqa: BLE001 - it is said or logged
        await read.put(error)
    else:
        await read.put(None)


def _end(error: Exception | None) -> dict[str, Any]:
    found: dict[str, Any] = {"state": "completed" if error is None else _STATES[type(error)]}
    if isinstance(error, JobFailed):
        found["error"] = {"type": error.type, "message": error.message}
    return found


def _event(name: str, data: str, event_id: str = "") -> bytes:
    lines = [f"id: {event_id}"] if event_id else []
    lines += [f"event: {name}"] if name else []
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return ("\n".join(lines) + "\n\n").encode()
