"""The worker: handlers in, runs out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from leasehold.durations import LONGEST_KEPT_SECONDS, Duration, check_int, seconds
from leasehold.errors import InvalidArgument, WorkerBusy
from leasehold.log import Log
from leasehold.retry import RetryPolicy
from leasehold.worker.fetcher import Order
from leasehold.worker.handler import Handler, Place
from leasehold.worker.health import Health
from leasehold.worker.runtime import WorkerRuntime
from leasehold.worker.signals import CUT_OFF, STOPPED, UNHEALTHY, SignalHandler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.queue.queue import AsyncWorkQueue

#: Gives what handlers may ask for by name, for as long as the worker runs.
Lifespan = Callable[[], AbstractAsyncContextManager[Mapping[str, Any] | None]]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

#: How long leaving the queues may take at the end (s).
LEAVING_SECONDS = 1.0

log = Log("leasehold.worker")


class Worker:
    """Takes items from queues, runs handlers on them, and sees to leases, retries, dead letters and shutdown.

        emails = AsyncWorkQueue.from_url("redis://localhost", "emails")
        worker = Worker(concurrency=50)

        @worker.handler(emails, timeout=60)
        async def send(mail: Mail) -> None:
            ...

        asyncio.run(worker.serve())

    An item is completed when its handler returns, tried again when it raises, and a dead letter after the
    last attempt. While it is here its lease is renewed, from a thread of its own, whatever the handler does.
    Execution is at least once: a handler may run twice for one item, if a lease was lost.

    Args:
        concurrency: How many runs at once, over all handlers: 1 to 10,000.
        order: How to choose among queues with work: `"weighted"`, by the handlers' weights, or `"strict"`, in
            the order in which the handlers were made.
        lease_time: For how long items are leased, in seconds: how soon another worker takes over if this one
            dies.
        grace: How long runs may go on after a stop, in seconds.
        retry: When failed items are tried again.
        lifespan: Called once at the start: an async context manager that yields a mapping. Handlers are given
            what it holds under the names of their parameters.
        middleware: Async functions `(run, call_next)`, the outermost first, around each run.
        clean_every: Seconds between two light cleans of each queue; None: somebody else cleans, ticks the
            schedules and drops old dead letters.
        keep_dead: How long dead letters are kept, in seconds; None: until somebody drops them.

    Raises:
        InvalidArgument: If one of them is not as said.
    """

    def __init__(  # noqa: PLR0913 - all by name
        self,
        *,
        concurrency: int = 100,
        order: Order = "weighted",
        lease_time: Duration = 30.0,
        grace: Duration = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is frozen
        lifespan: Lifespan | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
        clean_every: Duration | None = 60.0,
        keep_dead: Duration | None = timedelta(days=30),
    ) -> None:
        self.concurrency = check_int("concurrency", concurrency, minimum=1, maximum=10_000)
        if order not in get_args(Order):
            raise InvalidArgument("order", order, '"weighted" or "strict"')
        if not isinstance(retry, RetryPolicy):
            raise InvalidArgument("retry", retry, "a RetryPolicy")
        self._order = order
        self._lease_time = seconds("lease_time", lease_time, zero=False)
        self.grace = seconds("grace", grace, zero=True)
        self._retry = retry
        self._lifespan = lifespan
        self._middleware = tuple(middleware)
        self._clean_every = None if clean_every is None else seconds("clean_every", clean_every, zero=False)
        self._keep_dead = (
            None
            if keep_dead is None
            else seconds("keep_dead", keep_dead, zero=False, longest=LONGEST_KEPT_SECONDS)
        )
        self._handlers: list[Handler] = []
        self._runtime: WorkerRuntime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        #: The task that waits for the lifespan to begin.
        self._starting: asyncio.Task[Any] | None = None
        self._signal_handler: SignalHandler | None = None

    @property
    def runtime(self) -> WorkerRuntime | None:
        """What it does now; for use inside the package."""
        return self._runtime

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The handlers, in the order in which they were made."""
        return tuple(self._handlers)

    def handler(
        self,
        queue: AsyncWorkQueue,
        *,
        run_in: Place | None = None,
        batch: int | None = None,
        weight: float = 1.0,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        lease_time: Duration | None = None,
        keep_result: Duration | None = None,
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Make a function the handler of a queue; the function itself stays as it is.

        Its first parameter takes the payload, in the type of its annotation: `bytes`, `str`, a pydantic model
        or a msgspec struct, any other type in JSON, or `Lease` for all of it. A further parameter annotated
        `Lease` is given the lease; any other, what the lifespan holds under its name. A payload that does not
        parse is a dead letter at once.

        Args:
            queue: Whose items; one handler each.
            run_in: `"loop"` for async functions; for others `"thread"` (the default), or `"process"` for work
                that
                keeps a CPU busy: the function must then be importable and the payload picklable.
            batch: If given, the handler gets a list of up to so many payloads, and returns None, or a list
                with a
                value or an exception for each.
            weight: Its share of the slots while several queues have work.
            retry: When failed items are tried again; None: as the worker says.
            timeout: The longest a run may take, in seconds. Then it is cancelled, which counts as a failure.
            lease_time: For how long its items are leased, in seconds; None: as the worker says.
            keep_result: If given, what the handler returns is kept as the item's result for so many seconds:
                bytes as they are, anything else as JSON.

        Raises:
            InvalidArgument: If one of them, or the function's signature, cannot be used.
        """
        if any(
            one.queue.name == getattr(queue, "name", None) and one.queue is queue for one in self._handlers
        ):
            raise InvalidArgument("queue", queue, "a queue that has no handler of this worker yet")

        def take(function: AnyFunction) -> AnyFunction:
            self._handlers.append(
                Handler(
                    queue,
                    function,
                    run_in=run_in,
                    batch=batch,
                    weight=weight,
                    retry=self._retry if retry is None else retry,
                    timeout=timeout,
                    lease_time=self._lease_time if lease_time is None else lease_time,
                    keep_result=keep_result,
                )
            )
            return function

        return take

    async def run(self) -> None:
        """Work until `stop` is called; signals are left to the caller.

        Raises:
            InvalidArgument: If there is no handler, or one asks for something that the lifespan does not
                give.
            WorkerBusy: If this worker runs already.
            QueueClosed: If somebody closes one of its queues.
        """
        await self._work(self._until_stopped)

    async def check(self) -> None:
        """Begin the lifespan and end it, and see whether it gives what the handlers ask for. Take no work.

        Raises:
            InvalidArgument: If it does not.
        """
        async with AsyncExitStack() as stack:
            resources = await self._resources(stack)
            WorkerRuntime(
                self._handlers,
                concurrency=self.concurrency,
                order=self._order,
                clean_every=None,
                keep_dead=None,
            ).prepare(resources or {}, self._middleware)

    async def drain(self) -> None:
        """Work until nothing is left: no item waits in its queues, and none is in its hands. Then stop.

        Delayed items that are not due yet stay where they are. Schedules are not ticked and nothing is
        cleaned.

        Raises:
            InvalidArgument, WorkerBusy, QueueClosed: As in `run`.
            ServerError: If the server cannot be asked whether anything is left.
        """
        await self._work(self._until_drained, maintenance=False)

    def stop(self, *, now: bool = False) -> None:
        """Stop: take no more work, give back what has not begun, let the rest go on for the grace time.

        What is cut off at the end of it goes back to the front of its queue, and was no attempt. This returns
        at once; `run` returns when all is done. It may be called from any thread, and once more to hurry.

        Args:
            now: Whether to cut runs off at once.
        """
        signal_handler, loop = self._signal_handler, self._loop
        if signal_handler is not None:
            signal_handler.stopping(now=now)
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(self._stop, now)

    def health(self) -> Health:
        """How it is doing, callable from any thread.

        It turns red within 5 s when work waits and none is taken though a slot is free, when leases cannot be
        renewed, when the server does not answer, and when a handler blocks the event loop.
        """
        runtime = self._runtime
        if runtime is None:
            return Health(ok=False, reasons=("the worker does not run",), running=0, waiting=0, took_ago=0.0)
        return runtime.monitor.health()

    async def serve(self, *, unhealthy_after: Duration | None = None) -> int:
        """Work until SIGTERM or SIGINT, stop as `stop` does, and close the queues.

        A second signal cuts off what runs, a third ends the process. Call it in the main thread of a program
        that does nothing else. Once told to stop, it comes to its end within the grace time and 10 s more,
        also while the server is away. Should a handler block the event loop for longer, all is given back
        from another thread, and the process ends there and then.

        Args:
            unhealthy_after: Stop when `health` has been red for so many seconds; None: go on.

        Returns:
            The code for the process to exit with: 0 if every run came to its end, 3 if some were cut off or
            the server could not be told of their end, 4 if it was unhealthy.

        Raises:
            InvalidArgument, WorkerBusy, QueueClosed: As in `run`.
        """
        limit = None if unhealthy_after is None else seconds("unhealthy_after", unhealthy_after, zero=False)
        with SignalHandler(self, unhealthy_after=limit) as signal_handler:
            self._signal_handler = signal_handler
            try:
                runtime = await self._work(self._until_stopped)
                await self._close_queues()
            finally:
                self._signal_handler = None
        if signal_handler.unhealthy:
            return UNHEALTHY
        return CUT_OFF if runtime is not None and runtime.loose_ends else STOPPED

    # -------------------------------------------------------------------------- inside

    async def _work(
        self, until: Callable[[WorkerRuntime], Any], *, maintenance: bool = True
    ) -> WorkerRuntime | None:
        if not self._handlers:
            raise InvalidArgument("handler", None, "at least one: see Worker.handler")
        if self._loop is not None:
            raise WorkerBusy
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                resources = await self._resources(stack)
                if resources is None:
                    return None
                runtime = WorkerRuntime(
                    self._handlers,
                    concurrency=self.concurrency,
                    order=self._order,
                    clean_every=self._clean_every if maintenance else None,
                    keep_dead=self._keep_dead,
                )
                await self._until_over(runtime, until, resources)
                return runtime
        finally:
            self._loop = self._stopping = None

    async def _resources(self, stack: AsyncExitStack) -> Mapping[str, Any] | None:
        """Begin the lifespan and give what it yields; None if the worker is to stop before it has begun."""
        if self._lifespan is None:
            return {}
        task = self._starting = asyncio.current_task()
        try:
            return await stack.enter_async_context(self._lifespan()) or {}
        except asyncio.CancelledError:
            if task is None or not self._told_to_stop or task.uncancel():
                raise
            return None
        finally:
            self._starting = None

    async def _close_queues(self) -> None:
        """Leave, so that nothing is on its way to a process that is about to end."""
        closing = [asyncio.create_task(handler.queue.close()) for handler in self._handlers]
        _, late = await asyncio.wait(closing, timeout=LEAVING_SECONDS)
        if late:
            log.warning("the server is away: connections are dropped, and the session expires by itself")

    async def _until_over(
        self, runtime: WorkerRuntime, until: Callable[[WorkerRuntime], Any], resources: Mapping[str, Any]
    ) -> None:
        taking = await runtime.start(resources, self._middleware)
        self._runtime = runtime
        log.info("working on %s", runtime)
        waiting = asyncio.create_task(until(runtime), name="leasehold until")
        grace = 0.0
        try:
            await asyncio.wait([taking, waiting], return_when=asyncio.FIRST_COMPLETED)
            grace = self.grace
        finally:
            waiting.cancel()
            # When a queue was closed, nothing that goes on could be settled.
            try:
                await self._end(runtime, grace=0.0 if taking.done() else grace)
            finally:
                self._runtime = None
                log.info("stopped: %s", runtime.tally())
        if taking.done() and not taking.cancelled():
            taking.result()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting

    async def _end(self, runtime: WorkerRuntime, *, grace: float) -> None:
        """End a runtime. Also when this task is cancelled, and once more, everything has to be given back."""
        ending = asyncio.create_task(runtime.end(grace=grace), name="leasehold end")
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                cancelled = error
                runtime.hurry.set()
        if cancelled is not None:
            raise cancelled
        ending.result()

    async def _until_stopped(self, _: WorkerRuntime) -> None:
        if self._stopping is not None:
            await self._stopping.wait()

    async def _until_drained(self, runtime: WorkerRuntime) -> None:
        stopping = asyncio.create_task(self._until_stopped(runtime))
        drained = asyncio.create_task(runtime.drained())
        try:
            await asyncio.wait([stopping, drained], return_when=asyncio.FIRST_COMPLETED)
            if drained.done():
                drained.result()
        finally:
            stopping.cancel()
            drained.cancel()

    @property
    def _told_to_stop(self) -> bool:
        return self._stopping is not None and self._stopping.is_set()

    def _stop(self, now: bool) -> None:  # noqa: FBT001 - call_soon_threadsafe gives no names
        if self._stopping is not None and not self._stopping.is_set():
            self._stopping.set()
            if self._starting is not None:
                self._starting.cancel()
        if now and self._runtime is not None:
            self._runtime.hurry.set()
