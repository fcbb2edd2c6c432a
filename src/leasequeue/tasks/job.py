"""A job: a task that was added, by the id of its item."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from leasequeue.durations import Duration, seconds
from leasequeue.errors import InvalidArgument, LeasequeueError, ResultError
from leasequeue.errors.describing import text_of
from leasequeue.errors.log import Log
from leasequeue.item import check_id
from leasequeue.queue.cancelling import KEEP_SECONDS
from leasequeue.queue.streams import Chunk, check_cursor
from leasequeue.tasks.wire import read_result

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.run_logs import LoggedRecord

R_co = TypeVar("R_co", covariant=True)

log = Log("leasequeue.tasks")

#: What cancels jobs whose streams were abandoned: the event loop alone keeps no task alive.
_CANCELLING: set[asyncio.Task[None]] = set()

#: Where a job is: unfinished in one of three states, a dead letter, completed with a result that is kept,
#: cancelled, or unknown.
JobState: TypeAlias = Literal["waiting", "leased", "scheduled", "dead", "completed", "cancelled", "unknown"]


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The status of a job at one instant.

    Attributes:
        state: `"waiting"`, `"leased"` (it may be running), `"scheduled"` (delayed, or to be tried again),
            `"dead"`, `"completed"`, `"cancelled"`, or `"unknown"`: never added, or nothing is kept of it.
        attempt: How many attempts have begun; None if that is not kept: it is completed, cancelled or
            unknown.
        error: What is kept of the last attempt that failed; None if none has.
        due: When it is next: when it falls due if it is scheduled, when its lease ends if it is leased;
            seconds since 1970, by the server's clock. Else None.
        progress: What its run has reported last; None: nothing, or it is done.
    """

    state: JobState
    attempt: int | None = None
    error: str | None = None
    due: float | None = None
    progress: Any = None


class Job(Generic[R_co]):
    """A task that was added. Its `id` is that of its item: `task.job(id)` makes the same job elsewhere.

        job = await send_mail.add("ann@example.org")
        receipt = await job.result(timeout=10)

    Attributes:
        id: The id of the item.
        task: The name of the task.
        created: Whether it was added, and not there already under this id; None if it was not this object's
            call.
    """

    __slots__ = ("_keeps_result", "_queue", "_read", "_read_chunk", "created", "id", "task")

    def __init__(
        self,
        queue: AsyncWorkQueue,
        task: str,
        item_id: str,
        *,
        created: bool | None,
        read: Callable[[bytes], Any],
        keeps_result: bool,
        read_chunk: Callable[[bytes], Any] | None = None,
    ) -> None:
        self.id = check_id(item_id)
        self.task = task
        self.created = created
        self._queue = queue
        self._read = read
        self._keeps_result = keeps_result
        self._read_chunk = read_chunk

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the job is done, and return what the function returned.

        Args:
            timeout: How long to wait, in seconds; None waits without limit.

        Raises:
            JobFailed: If its last attempt has failed.
            JobCancelled: If it was cancelled.
            JobExpired: If no worker had begun with it in time; see `expires_in` of `Task.options`.
            JobUnknown: If there is no such job, or its result is no longer kept.
            ResultError: If it was done, but what the function returned cannot be written or read.
            TimeoutError: If it is unfinished after `timeout`.
            InvalidArgument: If the task keeps no results (`keep_result=None`).
            QueueClosed, ServerError: As in `AsyncWorkQueue.lease`.
        """
        if not self._keeps_result:
            raise InvalidArgument(
                "keep_result", None, f"a time to keep results: {self.task} has keep_result=None"
            )
        data = await self._queue.results.wait(self.id, timeout=timeout)
        if data is None:
            raise ResultError(self.id, "it has no result: the client that completed it stored none")
        value: R_co = read_result(self.id, data, self._read)
        return value

    async def progress(self) -> AsyncGenerator[Any, None]:
        """Yield what the run of the job reports with `current_run().progress`, until the job is done.

            async for done in job.progress():
                print(f"{done:.0%}")

        The first value is the last one that was reported before. How the job has ended, `result` says.

        Raises:
            JobUnknown: If there is no such job, or nothing is kept of it.
            QueueClosed, ServerError: As in `AsyncWorkQueue.lease`.
        """
        async with contextlib.aclosing(self._queue.results.progress(self.id)) as values:
            async for value in values:
                yield value

    def stream(
        self, *, after: str | None = None, cancel_after: Duration | None = None
    ) -> AsyncGenerator[Chunk[Any], None]:
        """Yield what the runs of the job emit with `current_run().emit`, from the first chunk to the end.

            async with contextlib.aclosing(job.stream(cancel_after=5)) as chunks:
                async for chunk in chunks:
                    print(chunk.value, end="")

        See `Results.stream` for what late and slow readers get.

        Args:
            after: The cursor of a chunk after which to begin; None: with the first.
            cancel_after: If the stream is abandoned before its end, cancel the job this many seconds later,
                unless any process then reads its stream or waits for its result; 0: at once; None: do not.
                A process that ends before that cancels nothing.

        Raises:
            InvalidArgument: If the task has no `streams`, or an argument cannot be used.
            JobFailed: After the last chunk, if its last attempt has failed.
            JobCancelled: After the last chunk, if it was cancelled.
            JobExpired: If no worker had begun with it in time.
            JobUnknown: If there is no such job, or nothing is kept of it.
            ResultError: If a chunk cannot be read.
            QueueClosed, ServerError: As in `AsyncWorkQueue.lease`.
        """
        if (read := self._read_chunk) is None:
            raise InvalidArgument("streams", None, f"a type of chunks: {self.task} has streams=None")
        grace = None if cancel_after is None else seconds("cancel_after", cancel_after, zero=True)
        check_cursor(after)
        return self._stream(read, after, grace)

    async def _stream(
        self, read: Callable[[bytes], Any], after: str | None, grace: float | None
    ) -> AsyncGenerator[Chunk[Any], None]:
        ended = False
        try:
            async with contextlib.aclosing(self._queue.results.stream(self.id, after=after)) as chunks:
                async for chunk in chunks:
                    try:
                        value = read(chunk.value)
                    except Exception as error:
                        problem = f"a chunk of its stream cannot be read: {text_of(error)}"
                        raise ResultError(self.id, problem) from error
                    yield dataclasses.replace(chunk, value=value)
            ended = True
        except LeasequeueError:
            ended = True
            raise
        finally:
            if grace is not None and not ended:
                # A task, as whoever abandons the stream may be about to be cancelled.
                task = asyncio.create_task(self._cancel_unread(grace), name="leasequeue cancel unread")
                _CANCELLING.add(task)
                task.add_done_callback(_CANCELLING.discard)

    async def _cancel_unread(self, grace: float) -> None:
        await asyncio.sleep(grace)
        try:
            if not await self._queue.results.is_awaited(self.id):
                await self._queue.cancel(self.id)
        except LeasequeueError as error:
            log.warning("%r is not read any more, and could not be cancelled: %s", self, error)

    async def logs(self) -> list[LoggedRecord]:
        """Return what was logged below the runs of the job, if its task has `keep_logs`: see `Results.logs`.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return await self._queue.results.logs(self.id)

    async def cancel(self, *, keep: Duration = KEEP_SECONDS) -> bool:
        """Cancel the job, whether it waits or runs: see `AsyncWorkQueue.cancel`.

        Args:
            keep: How long those who ask for the result later get JobCancelled, in seconds.

        Returns:
            False if it is not unfinished: it was done before, or has failed, or there is none.

        Raises:
            InvalidArgument: If `keep` is no duration.
            QueueClosed, ServerError: As in `AsyncWorkQueue.cancel`.
        """
        return await self._queue.cancel(self.id, keep=keep)

    async def status(self) -> JobStatus:
        """Return the state of the job, its attempt, its last error, and when it is next.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        for _ in range(2):  # between two calls, a dead letter may be requeued and its item completed
            if view := await self._queue.find(self.id, data=False):
                return JobStatus(
                    state=view.state,
                    attempt=view.attempt,
                    error=view.error,
                    due=view.due,
                    progress=view.progress,
                )
            if letter := await self._queue.dead_letters.get(self.id):
                return JobStatus(state="dead", attempt=letter.attempt, error=letter.error)
            if await self._queue.results._shown(self.id) is not None:  # noqa: SLF001 - it may be unreadable
                return JobStatus(state="completed")
            if await self._queue.results.is_cancelled(self.id):
                return JobStatus(state="cancelled")
        return JobStatus(state="unknown")

    def __repr__(self) -> str:
        return f"<job {self.id!r} of {self.task}>"
