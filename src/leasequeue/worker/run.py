"""One run of a handler: the leases it works on, and how it ends."""

from __future__ import annotations

import enum
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

from leasequeue.errors import InvalidArgument, NoCurrentRun
from leasequeue.queue.run_logs import RunLogs
from leasequeue.worker.stage_context import StageContext

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from typing import Any

    from leasequeue.queue.lease import Lease
    from leasequeue.worker.handler import Consumer, Handler
    from leasequeue.worker.handler_process import HandlerProcess
    from leasequeue.worker.outcomes import Outcome
    from leasequeue.worker.payload import Emission

RUNNING: ContextVar[Run | None] = ContextVar("leasequeue run", default=None)


class Interruption(enum.Enum):
    """Why the worker cancels a run."""

    CANCELLED = "its item was cancelled"
    LEASE_LOST = "its lease was lost"
    TIMEOUT = "its time limit has passed"
    SHUTDOWN = "the worker is stopping"


class Run:
    """One run of a handler, as middleware sees it.

    Attributes:
        handler: The handler: `handler.name` is the function's name, `handler.queue` its queue.
        leases: The items of the run: one, or those of a batch.
        began: When the handler was called, by `time.monotonic()`; 0 before.
        interruption: Why the worker cancelled the run: `SHUTDOWN`, `TIMEOUT`, `LEASE_LOST` or `CANCELLED` of
            `leasequeue.worker.run.Interruption`; or None.
        logs: Its log records until they are written; None: its handler has no `keep_logs`.
    """

    __slots__ = ("began", "handler", "interruption", "leases", "logs")

    def __init__(self, handler: Handler, leases: Sequence[Lease]) -> None:
        self.handler = handler
        self.leases = leases
        self.logs: RunLogs | None = None
        self.began = 0.0
        self.interruption: Interruption | None = None

    @property
    def lease(self) -> Lease:
        """The item of the run; the first one of a batch."""
        return self.leases[0]

    @property
    def attempt(self) -> int:
        """The number of this attempt, beginning with 1; runs whose items were released do not count."""
        return self.leases[0].attempt

    @property
    def cancelled(self) -> bool:
        """Whether the worker has cancelled the run; `interruption` says why.

        A thread cannot be cancelled: let its function look at `current_run().cancelled` now and then, and
        return early. What it returns is discarded.
        """
        return self.interruption is not None

    def progress(self, value: Any) -> None:
        """Report how far the run is, for each of its items, as `Lease.progress` does; from any thread.

        Args:
            value: Any value that can be written as JSON of at most 1,000 bytes.

        Raises:
            InvalidArgument: If the value cannot be used.
            QueueClosed: If the queue object is closed.
        """
        for lease in self.leases:
            lease.progress(value)

    async def emit(self, chunk: Any) -> bool:
        """Add a chunk to the stream of the job, for those who read `Job.stream`.

            @tasks.task(streams=str)
            async def answer(question: str) -> int:
                async for word in model.answer(question):
                    await current_run().emit(word)

        In a thread, `call_sync(current_run().emit, word)`. Each chunk is sent at once, and those of several
        runs share trips. If the reply is lost, ConnectionLost is raised, and the chunk may be there.

        Args:
            chunk: A value of the type `streams` of the task, at most 65,536 bytes of JSON.

        Returns:
            False if the lease was lost or the job cancelled: the chunk was discarded.

        Raises:
            InvalidArgument: If the task has no `streams`, or the value is not of its type.
            StreamFull: If the run has emitted `max_stream` bytes.
            QueueClosed, ServerError: As in `AsyncWorkQueue.progress`.
        """
        if (stream := self.handler.stream) is None:
            raise InvalidArgument("streams", None, f"a type of chunks: {self.handler.name} has streams=None")
        return await self._emit(stream, stream.write(chunk))

    async def begin_stream(self, stream: Emission) -> None:
        """Remove the stream of an earlier item with this id; for the worker."""
        await self._emit(stream, b"")

    async def _emit(self, stream: Emission, chunk: bytes) -> bool:
        (lease,) = self.leases
        return await lease.queue.emit(lease, chunk, keep=stream.keep, max_bytes=stream.max_bytes)

    @property
    def record_fields(self) -> dict[str, object]:
        """What each log record below the run has as attributes: texts and numbers or, of a batch, lists."""
        first = self.leases[0]
        ids: Any = first.id
        tokens: Any = first.token
        if len(self.leases) > 1:
            ids, tokens = [one.id for one in self.leases], [one.token for one in self.leases]
        return {"task": self.handler.name, "id": ids, "attempt": first.attempt, "token": tokens}

    def __repr__(self) -> str:
        ids = ", ".join(repr(lease.id) for lease in self.leases[:3])
        more = f" and {len(self.leases) - 3} more" if len(self.leases) > 3 else ""
        return f"<run of {self.handler.name} on {ids}{more}>"


class FlowItems:
    """The items of one run that are for stages of flow runs.

    Attributes:
        contexts: The stage of each, by the lease's token.
        skipped: The outcomes of those whose handler is not called, by the lease's token.
        trace: The `traceparent` of the span of the run; None: it is not traced.
    """

    __slots__ = ("contexts", "leases", "skipped", "trace")

    def __init__(self, leases: Sequence[Lease]) -> None:
        self.leases = [lease for lease in leases if lease.stage is not None]
        self.contexts = {lease.token: StageContext.of(lease) for lease in self.leases}
        self.skipped: dict[int, Outcome] = {}
        self.trace: bytes | None = None

    @property
    def only(self) -> StageContext | None:
        """The stage, if there is one only."""
        return next(iter(self.contexts.values())) if len(self.contexts) == 1 else None

    @property
    def correlation(self) -> str | None:
        """The correlation id that all of them have; None: they have none, or different ones."""
        found = {context.correlation for context in self.contexts.values()}
        return found.pop() if len(found) == 1 else None

    @property
    def log_fields(self) -> dict[str, object]:
        """The `extra` fields of log records about them: texts or, of a batch, lists."""
        contexts = [*self.contexts.values()]
        runs, paths = [context.run for context in contexts], [context.path for context in contexts]
        correlations = [context.correlation for context in contexts]
        if len(contexts) == 1:
            return {"run": runs[0], "stage": paths[0], "correlation": correlations[0]}
        return {"run": runs, "stage": paths, "correlation": correlations}


class ActiveRun(Run):
    """A run as the parts of the worker see it, until its outcomes are acknowledged.

    Attributes:
        arrived: When the items were leased, by `time.monotonic()`.
        deadline: When the run's time limit ends, by `time.monotonic()`; None before it starts and without a
            limit.
        lost: The tokens of its leases that are known to be lost; None: none.
        outcomes: One for each lease, once the run has finished.
        process: The process that it was lent; None: it needs none, or has not started.
        stages: Its items that are for stages of flow runs; None: none is.
        task: The task that runs the handler, while it does.
        thread: The thread that still runs the function although the run was cancelled.
        unacknowledged: How many of its outcomes the server has not accepted or rejected yet.
    """

    __slots__ = (
        "_timer",
        "arrived",
        "deadline",
        "lost",
        "outcomes",
        "process",
        "stages",
        "task",
        "thread",
        "unacknowledged",
    )

    def __init__(self, handler: Handler, leases: Sequence[Lease]) -> None:
        # The base class's attributes are set here as well: another call would cost 3 % of a quick run.
        self.handler = handler
        self.leases = leases
        self.logs = None if handler.keep_logs is None else RunLogs(handler.keep_logs)
        self.began = 0.0
        self.interruption = None
        self.arrived = time.monotonic()
        self.deadline: float | None = None
        self.lost: set[int] | None = None
        self.outcomes: Sequence[Outcome] = ()
        self.process: HandlerProcess | None = None
        self.stages: FlowItems | None = None
        self.task: asyncio.Task[None] | None = None
        self.thread: Future[Any] | None = None
        self.unacknowledged = len(leases)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def log_fields(self) -> dict[str, object]:
        """The `extra` fields of each log record about this run."""
        fields = {"queue": self.handler.queue.whole.name, **self.record_fields}
        if (correlation := self.correlation) is not None:
            fields["correlation"] = correlation
        return fields if self.stages is None else fields | self.stages.log_fields

    @property
    def correlation(self) -> str | None:
        """The correlation id that all of its items have; None: they have none, or different ones."""
        if self.stages is not None:
            return self.stages.correlation
        if len(self.leases) == 1:
            return self.handler.correlation_of(self.leases[0].data)
        found = {self.handler.correlation_of(lease.data) for lease in self.leases}
        return found.pop() if len(found) == 1 else None

    def start(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> bool:
        """Start the time limit, before the handler is called in `task`.

        Return False if the handler must not be called: a lease has expired, because the process stood still
        or the server was away, and another worker may hold the item by now.
        """
        self.began = time.monotonic()
        for lease in self.leases:
            if lease.remaining() <= 0:
                return False
        self.task = task
        timeout = self.handler.timeout
        if timeout is not None:
            self.deadline = self.began + timeout
            self._timer = loop.call_later(timeout, self.interrupt, Interruption.TIMEOUT)
        return True

    def finish(self) -> None:
        """Note that the handler has ended: the run can no longer be interrupted."""
        # Without a deadline, the lease is renewed until its outcome is acknowledged.
        self.task = self.deadline = None
        if self._timer is not None:
            self._timer.cancel()

    def interrupt(self, why: Interruption) -> None:
        """Cancel the handler if it is running; do not call it if it has not started."""
        if self.interruption is None and not self.outcomes:
            self.interruption = why
            if self.task is not None:
                self.task.cancel()

    def lose(self, lease: Lease, why: Interruption = Interruption.LEASE_LOST) -> None:
        """Discard the outcome of a lost lease. Interrupt the run if it has no other lease."""
        if any(one is lease for one in self.leases):
            self.lost = (self.lost or set()) | {lease.token}
            if len(self.lost) == len(self.leases):
                self.interrupt(why)

    def cancel(self, lease: Lease) -> None:
        """Discard the outcome of a lease whose item was cancelled, as `lose` does."""
        lease._cancel()  # noqa: SLF001 - only its worker and its queue do
        self.lose(lease, Interruption.CANCELLED)

    def leave_out_lost(self) -> None:
        """Leave out the lost leases of a run that has not started and has others."""
        lost = self.lost or set()
        kept = [lease for lease in self.leases if lease.token not in lost]
        self.unacknowledged -= len(self.leases) - len(kept)
        self.leases, self.lost = kept, None


def by_consumer(runs: Iterable[ActiveRun]) -> dict[Consumer, list[ActiveRun]]:
    """Group runs by what their items were leased for, and so by their queue, in order."""
    found: dict[Consumer, list[ActiveRun]] = {}
    for run in runs:
        found.setdefault(run.handler.consumer, []).append(run)
    return found


def current_run() -> Run:
    """Return the run that calls this: anywhere below its handler, also in tasks and threads that it started.

    Raises:
        NoCurrentRun: Outside of a run, and in a separate process.
    """
    run = RUNNING.get()
    if run is None:
        raise NoCurrentRun
    return run
