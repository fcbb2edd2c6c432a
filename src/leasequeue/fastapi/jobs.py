"""Look up jobs in the queues of an application, and wait for their results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from fastapi import Request

from leasequeue.errors import (
    InvalidArgument,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobUnknown,
    ResultError,
    UnreadablePayload,
)
from leasequeue.fastapi.models import JobError, State, job_info
from leasequeue.fastapi.problems import (
    JOB_CANCELLED,
    JOB_ENDED,
    JOB_EXPIRED,
    JOB_FAILED,
    JOB_UNKNOWN,
    QUEUE_UNKNOWN,
    RESULT_UNREADABLE,
    ProblemFound,
)
from leasequeue.item import check_id
from leasequeue.tasks.job import Job
from leasequeue.tasks.wire import read_result

if TYPE_CHECKING:
    from leasequeue.fastapi.lifespan import Sources
    from leasequeue.fastapi.models import JobInfo
    from leasequeue.queue.queue import AsyncWorkQueue


T = TypeVar("T")


async def until_disconnected(request: Request, work: Coroutine[Any, Any, T], *, watch: bool) -> T | None:
    """Return what `work` returns, or raise its error; None if the client has closed the connection before."""
    if not watch:
        return await work
    working = asyncio.create_task(work, name="leasequeue wait")
    gone = asyncio.create_task(disconnected(request), name="leasequeue watch client")
    both = (working, gone)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


#: How long to wait for an answer about a job that has ended, as far as is known (s).
ANSWER_SECONDS = 1.0
#: States in which a result may still come.
UNFINISHED = ("waiting", "leased", "scheduled")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a job.

    Attributes:
        data: JSON, or, if `is_json` is False, other data; None if none was stored.
    """

    queue: str
    data: bytes | None
    is_json: bool = True

    def envelope(self, item_id: str) -> bytes:
        """Return the answer in JSON."""
        return b'{"id":%b,"queue":%b,"state":"completed","result":%b}' % (
            msgspec.json.encode(item_id),
            msgspec.json.encode(self.queue),
            self.data or b"null",
        )


class Jobs:
    """The jobs of the queues of an application."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def queues(self, name: str | None) -> list[AsyncWorkQueue]:
        """Return the queue of a name, or all of them."""
        queues = self._sources.queues
        if name is None:
            return [*queues.values()]
        if name not in queues:
            raise ProblemFound(QUEUE_UNKNOWN, f"This application serves no queue {name!r}.")
        return [queues[name]]

    async def find(self, item_id: str, queue: str | None) -> JobInfo:
        """Return a job. If several queues have one of this id, take that of the first queue."""
        known = _checked(item_id)
        found = await asyncio.gather(*(_look_up(one, known) for one in self.queues(queue)))
        for one in found:
            if one.state != "unknown":
                return one
        raise _unknown(item_id)

    async def stream(self, item_id: str, queue: str | None) -> Job[Any]:
        """Return a job whose stream can be read, also if nothing else is kept of it."""
        try:
            places = self.queues((await self.find(item_id, queue)).queue)
        except ProblemFound:
            places = [one for one in self.queues(queue) if await _has_stream(one, _checked(item_id))]
            if not places:
                raise
        return _job(places[0], item_id)

    async def cancel(self, item_id: str, queue: str | None) -> JobInfo:
        """Cancel a job, and return it. To cancel it twice is fine."""
        info = await self.find(item_id, queue)
        if info.state in UNFINISHED:
            (place,) = self.queues(info.queue)
            if await place.cancel(item_id):
                return info.model_copy(update={"state": "cancelled", "due": None, "progress": None})
            info = await self.find(item_id, info.queue)
        if info.state != "cancelled":
            raise ProblemFound(JOB_ENDED, f"The job {item_id!r} is {info.state}.", state=info.state)
        return info

    async def result(self, item_id: str, queue: str | None, *, wait: float) -> Result | JobInfo:
        """Return the result of a job, or the job if it is unfinished after `wait` seconds."""
        known = _checked(item_id)
        places = self.queues(queue)
        if wait == 0 or len(places) > 1:
            info = await self.find(known, queue)
            if info.state in UNFINISHED and wait == 0:
                return info
            places = self.queues(info.queue)
        try:
            return await self._wait(places[0], known, max(wait, ANSWER_SECONDS))
        except TimeoutError:
            return await self.find(known, places[0].name)

    async def _wait(self, queue: AsyncWorkQueue, item_id: str, timeout: float) -> Result:
        try:
            data = await queue.results.wait(item_id, timeout=timeout)
            return self._read(queue, item_id, data)
        except JobFailed as error:
            shown = JobError(type=error.type, message=error.message).model_dump()
            raise ProblemFound(JOB_FAILED, str(error), error=shown) from error
        except JobCancelled as error:
            raise ProblemFound(JOB_CANCELLED, f"The job {item_id!r} was cancelled.") from error
        except JobExpired as error:
            raise ProblemFound(JOB_EXPIRED, f"The job {item_id!r} has expired.") from error
        except JobUnknown as error:
            raise _unknown(item_id) from error
        except (ResultError, UnreadablePayload) as error:
            raise ProblemFound(RESULT_UNREADABLE, error.problem) from error

    def _read(self, queue: AsyncWorkQueue, item_id: str, data: bytes | None) -> Result:
        """Read a result: that of a task, or the data with which an item of another queue was completed."""
        if data is None:
            return Result(queue=queue.name, data=None)
        if queue.name in self._sources.queues_of_tasks:
            return Result(queue=queue.name, data=read_result(item_id, data, _checked_json))
        try:
            return Result(queue=queue.name, data=_checked_json(data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return Result(queue=queue.name, data=data, is_json=False)


async def _look_up(queue: AsyncWorkQueue, item_id: str) -> JobInfo:
    status = await _job(queue, item_id).status()
    state: State = status.state
    if state == "unknown":
        try:
            await queue.results.wait(item_id, timeout=ANSWER_SECONDS)
        except JobExpired:
            state = "expired"
        except (JobFailed, JobCancelled, JobUnknown, TimeoutError):
            pass  # the status is that of a moment before
    return job_info(item_id, queue.name, status, state=state)


def _job(queue: AsyncWorkQueue, item_id: str) -> Job[Any]:
    how: dict[str, Any] = {"read": _checked_json, "keeps_result": True, "read_chunk": msgspec.Raw}
    return Job(queue, "", item_id, created=None, **how)


async def _has_stream(queue: AsyncWorkQueue, item_id: str) -> bool:
    async with contextlib.aclosing(queue.results.stream(item_id)) as chunks:
        try:
            return await anext(chunks, None) is not None
        except JobUnknown:
            return False


def _checked(item_id: str) -> str:
    try:
        return check_id(item_id)
    except InvalidArgument as error:
        raise _unknown(item_id) from error


def _unknown(item_id: str) -> ProblemFound:
    shown = item_id if len(item_id) <= 80 else f"{item_id[:80]}…"
    return ProblemFound(
        JOB_UNKNOWN,
        f"There is no job {shown!r}: it was never added, its result is no longer kept, or it keeps none.",
    )


def _checked_json(data: bytes) -> bytes:
    msgspec.json.decode(data)
    return data
