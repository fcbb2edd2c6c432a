"""The worker: calls handlers with the items of queues until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from leasequeue.alive.ring import GONE_SECONDS
from leasequeue.durations import (
    LONGEST_KEPT_SECONDS,
    LONGEST_SECONDS,
    Duration,
    Size,
    check_int,
    check_list,
    seconds,
)
from leasequeue.errors import InvalidArgument, WorkerBusy, WorkerNotRunning
from leasequeue.errors.log import Log
from leasequeue.keys import check_prefix
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.worker.child import imports_main
from leasequeue.worker.dispatch import for_each_shard, one_for_each_queue
from leasequeue.worker.handler import Consumer, Handler, RunIn
from leasequeue.worker.health import Health
from leasequeue.worker.refusals import check_admission
from leasequeue.worker.retry import RetryPolicy
from leasequeue.worker.runtime import WorkerRuntime
from leasequeue.worker.signals import INTERRUPTED, STOPPED, UNHEALTHY, SignalHandler
from leasequeue.worker.turns import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.worker.dispatch import HandlerSource
    from leasequeue.worker.runtime import OnSessions

#: Provides resources for handlers, by name, while the worker runs.
Lifespan = Callable[[], AbstractAsyncContextManager[Mapping[str, Any] | None]]
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

#: The longest name of a worker, and the shortest time after which it is dead (s).
MAX_NAME, MIN_DEAD_AFTER = 200, 0.5
#: How long closing the queues may take at the end (s).
CLOSE_SECONDS = 1.0

log = Log("leasequeue.worker")


class Worker:
    """Leases items from queues and calls handlers with them.

    It renews leases, retries failures and shuts down cleanly.

        emails = AsyncWorkQueue.from_url("redis://localhost", "emails")
        worker = Worker(concurrency=50)

        @worker.handler(emails, timeout=60)
        async def send(mail: Mail) -> None:
            ...

        asyncio.run(worker.serve())

    An item is completed when its handler returns, retried when it raises, and a dead letter after the last
    attempt. Its lease is renewed from a separate thread, even while the handler blocks the event loop.
    Execution is at least once: if a lease is lost, a handler may run twice for one item.

    Args:
        sources: The task queues whose tasks it runs; see `TaskQueue`. Those on one queue are joined.
        concurrency: The maximum number of runs at once, over all handlers: 1 to 10,000.
        handler_processes: The maximum number of processes for handlers with `run_in="process"`, 1 to 1,000;
            None: one for each core that the worker may use, or its share of them under
            `leasequeue worker --processes`. There are never more than `concurrency`.
        order: How to choose among queues with work: `"weighted"`, by the handlers' weights, or `"strict"`, in
            the order in which the handlers were defined.
        lease_time: For how long items are leased, in seconds. If this worker dies and no other one notices,
            its items are leased again after this time.
        grace: How long runs may continue after a stop, in seconds.
        retry: When failed items are tried again.
        lifespan: Called once at the start: an async context manager that yields a mapping. A handler is
            passed the values whose names are among its parameters.
        middleware: Async functions `(run, call_next)`, the outermost first, around each run.
        clean_every: Average seconds between two light cleans of each queue, by one of its workers; one in 60
            is a deep one. None: this worker cleans nothing, ticks no schedules and drops no dead letters.
        feeds: To which queues flow runs may add items, by the name of their home, the queue that holds them:
            `{"shop": ["mails"]}`. Only chains and groups across task queues, and flows that the worker does
            not serve, need it: the queues of its flows, and of the tasks of a task queue, are known.
        keep_dead: How long dead letters are kept, in seconds; None: until they are dropped by hand.
        name: What the worker is called in `Fleet.workers`, `leasequeue workers` and events, 1 to 200
            characters; None: `<host>/<pid>`.
        dead_after: After how many seconds without a heartbeat the worker is dead: other workers return its
            items to the front of the queue, and it stops its runs if it is not dead after all. At least 0.5;
            a heartbeat is sent three times as often. None: never; only its leases expire.
        gone_after: After how many seconds without a connection the worker is dead: other workers, if there
            are some, return its items, and it stops its runs, as the server may have leased them to others.
            At least 0.5. None: never; it names no connections, and `dead_after` decides.

    Raises:
        InvalidArgument: If an argument is invalid.
    """

    #: What the lifespan has raised when it began. `leasequeue worker` reads it.
    lifespan_error: Exception | None = None
    #: Whether each run that has returned is a line of the log. `leasequeue worker --log-runs` sets it.
    log_runs = False
    #: Whether it was made quiet before it had a runtime; and whether it retires, or has stopped in this way.
    _quiet = _retiring = False

    def __init__(  # noqa: PLR0913 - all but the sources by name
        self,
        *sources: HandlerSource,
        concurrency: int = 100,
        handler_processes: int | None = None,
        order: Order = "weighted",
        lease_time: Duration = 30.0,
        grace: Duration = 30.0,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - it is frozen
        lifespan: Lifespan | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
        feeds: Mapping[str, Sequence[str]] | None = None,
        clean_every: Duration | None = 60.0,
        keep_dead: Duration | None = timedelta(days=30),
        name: str | None = None,
        dead_after: Duration | None = 30.0,
        gone_after: Duration | None = GONE_SECONDS,
    ) -> None:
        self.concurrency = check_int("concurrency", concurrency, minimum=1, maximum=10_000)
        if handler_processes is not None:
            check_int("handler_processes", handler_processes, minimum=1, maximum=1000)
        self.handler_processes = handler_processes
        if order not in get_args(Order):
            raise InvalidArgument("order", order, '"weighted" or "strict"')
        if not isinstance(retry, RetryPolicy):
            raise InvalidArgument("retry", retry, "a RetryPolicy")
        self._order = order
        self._lease_time = seconds("lease_time", lease_time, zero=False)
        self.grace = seconds("grace", grace, zero=True)
        #: After so many runs the worker retires; None: never. `leasequeue worker --max-runs` sets it.
        self.max_runs: int | None = None
        #: Called with pairs of a queue and the session that holds its leases. `leasequeue worker` sets it.
        self.on_sessions: OnSessions = lambda _: None
        self._retry = retry
        if lifespan is not None and not callable(lifespan):
            raise InvalidArgument("lifespan", lifespan, "a function that returns an async context manager")
        self._lifespan = lifespan
        self._middleware = tuple(check_list("middleware", middleware, "async functions"))
        if wrong := [one for one in self._middleware if not callable(one)]:
            raise InvalidArgument("middleware", wrong[0], "an async function (run, call_next)")
        self._feeds = _checked_feeds(feeds or {})
        self._clean_every = _time("clean_every", clean_every)
        self._keep_dead = _time("keep_dead", keep_dead, longest=LONGEST_KEPT_SECONDS)
        self._name = None if name is None else _checked_name(name)
        self._dead_after = _checked_time("dead_after", dead_after)
        self._gone_after = _checked_time("gone_after", gone_after)
        for source in sources:
            if isinstance(source, AsyncWorkQueue) or not hasattr(source, "consumers"):
                raise InvalidArgument(
                    "sources", source, "a TaskQueue; for a queue, write @worker.handler(queue)"
                )
        self._sources = sources
        self._handlers: list[Consumer] = []
        self._runtime: WorkerRuntime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._has_started = asyncio.Event()
        #: The task that waits for the lifespan to start.
        self._starting: asyncio.Task[Any] | None = None
        self._signal_handler: SignalHandler | None = None

    @property
    def name(self) -> str:
        """What the worker is called; see the argument."""
        return self._name or f"{socket.gethostname()}/{os.getpid()}"

    @name.setter
    def name(self, name: str) -> None:
        self._name = _checked_name(name)

    @property
    def has_lifespan(self) -> bool:
        """Whether it was given a lifespan."""
        return self._lifespan is not None

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The handlers, in the order in which they were defined, and those of its task queues."""
        return tuple(handler for consumer in self._consumers() for handler in consumer.handlers)

    def handler(  # noqa: PLR0913 - all but the queue by name
        self,
        queue: AsyncWorkQueue,
        *,
        run_in: RunIn | None = None,
        batch: int | None = None,
        weight: float = 1.0,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        lease_time: Duration | None = None,
        keep_result: Duration | None = None,
        keep_logs: Size | None = None,
    ) -> Callable[[AnyFunction], AnyFunction]:
        """Make a function the handler of a queue. The function itself is returned unchanged.

        The annotation of its first parameter decides how the payload is passed: `bytes`, `str`, a pydantic
        model or a msgspec struct, any other type decoded from JSON, or `Lease` for the lease itself. Another
        parameter annotated `Lease` is passed the lease; any other parameter, the resource of its name from
        the lifespan. An item whose data does not parse is a dead letter at once.

        Args:
            queue: The queue; it has one handler in a worker.
            run_in: `"loop"` for async functions; for others `"thread"` (the default), or `"process"` for work
                that keeps a CPU busy: then the function must be importable and the payload picklable.
            batch: Pass a list of up to this many payloads, 1 to 1,000. The function returns None, or a list
                with a value or an exception for each.
            weight: Its share of the slots while several queues have work.
            retry: When failed items are tried again; None: as the worker does.
            timeout: The longest a run may take, in seconds. Then it is cancelled, which counts as a failure.
            lease_time: For how long its items are leased, in seconds; None: as the worker does.
            keep_result: For how many seconds the returned value is kept as the item's result, bytes as they
                are and anything else as JSON; None: not at all. If it cannot be written, the item is
                completed with the result `{"error": {"type": "ResultError", "message": …}}`.
            keep_logs: How much of what is logged below a run is kept, for `Results.logs`; see
                `TaskQueue.task`.

        Raises:
            InvalidArgument: If an argument, or the function's signature, is invalid.
        """
        if not isinstance(queue, AsyncWorkQueue):
            raise InvalidArgument("queue", queue, "an AsyncWorkQueue: write @worker.handler(queue)")
        if any(one.queue is queue for one in self._handlers):
            raise InvalidArgument("queue", queue, "a queue that has no handler of this worker yet")

        def register(function: AnyFunction) -> AnyFunction:
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
                    keep_logs=keep_logs,
                )
            )
            return function

        return register

    async def run(self) -> None:
        """Work until `stop` is called. The caller handles signals.

        If a server is away, the worker waits for it. If one refuses at the start, before anything was leased,
        this raises; if one refuses later, such as after its password was changed, the worker keeps trying, is
        unhealthy, and logs the error once a minute.

        Raises:
            ServerRefused, ServerTooOld: If a server refuses the login, the database, the certificate or a
                command, or is too old, before anything was leased.
            InvalidArgument: If there is no handler, or one has a parameter that the lifespan does not
                provide.
            WorkerBusy: If this worker is already running.
            QueueClosed: If one of its queues is closed.
            Exception: What a part of the worker has failed with, which is a bug. The worker has then stopped
                as after `stop`, and was unhealthy until then.
        """
        await self._work()

    async def started(self) -> None:
        """Wait until the worker has started: its lifespan has, and it fetches work.

            running = asyncio.create_task(worker.run())
            await worker.started()

        If it fails before, this waits on. Call it in the event loop of `run`.
        """
        await self._has_started.wait()

    async def check(self) -> None:
        """Start and end the lifespan, to check that it provides the handlers' parameters. Lease nothing.

        Raises:
            InvalidArgument: If it does not.
        """
        async with AsyncExitStack() as stack:
            resources = await self._resources(stack)
            self._new_runtime(maintains=False).prepare(resources or {}, self._middleware)

    async def drain(self) -> None:
        """Work until no item waits in its queues and no run is left, then stop.

        First, the schedules of its tasks are declared, and what the schedules of its queues have due is
        added, once, unless `clean_every` is None. Delayed items that are not due stay in the queue. Nothing
        is cleaned.

        Raises:
            InvalidArgument, WorkerBusy, QueueClosed, ServerRefused, ServerTooOld: As in `run`.
            ServerError: If the server cannot be asked whether anything is left.
        """
        await self._work(drain=True)

    def stop(self, *, now: bool = False) -> None:
        """Stop: fetch nothing more, release what has not started, give runs the grace time to finish.

        Runs that take longer are interrupted: their items return to the front of the queue, and the runs do
        not count as attempts. This returns at once; `run` returns when everything is done. Call it from any
        thread, and a second time with `now` to shorten the wait. Before `run` has begun, it has no effect.

        Args:
            now: Whether to interrupt runs at once.
        """
        signal_handler, loop = self._signal_handler, self._loop
        if signal_handler is not None:
            signal_handler.stopping(now=now)
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(self._stop, now)

    def retire(self) -> None:
        """Stop, and give the runs all the time that they take; `stop` then begins the grace time.

        Another worker process should take over: nothing more is fetched, and what has not started is
        released. This returns at once; call it from any thread.
        """
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(self._retire)

    def quiet(self) -> None:
        """Fetch nothing more, until `resume` or the end. Runs continue.

        A worker that gets this order before it runs begins quiet. This returns at once; call it from any
        thread.
        """
        self._set_quiet(quiet=True)

    def resume(self) -> None:
        """Fetch again, after `quiet`. This returns at once; call it from any thread."""
        self._set_quiet(quiet=False)

    async def start_queue(self, queue: str) -> None:
        """Serve a queue from now on, while the worker runs. Call it in the worker's event loop.

        Its handler may be older than the worker's start, or have been defined since. A queue that is served
        already is left alone; one that is being stopped is started after that. It is started also if the
        caller is cancelled.

        Args:
            queue: The queue's name.

        Raises:
            InvalidArgument: If the worker has no handler for a queue of this name.
            WorkerNotRunning: If it is not running, or ends.
        """
        runtime = self._running()
        found = runtime.queues.consumers_of(queue) or [
            one for one in self._consumers() if one.queue.whole.name == queue
        ]
        if not found:
            raise InvalidArgument("queue", queue, "the name of a queue that this worker has a handler for")
        await asyncio.gather(*(runtime.queues.start_queue(one) for one in found))

    async def stop_queue(self, queue: str, *, grace: Duration | None = None) -> None:
        """Serve a queue no more, while the worker runs. Call it in the worker's event loop.

        What has not started is released. This returns when no item of the queue is held any more. It is
        stopped also if the caller is cancelled.

        Args:
            queue: The queue's name.
            grace: How long its runs may continue, in seconds; then they are interrupted, and their items
                return to the front of the queue. None: as the worker's.

        Raises:
            InvalidArgument: If the worker has no handler for a queue of this name.
            WorkerNotRunning: If it is not running.
        """
        within = self.grace if grace is None else seconds("grace", grace, zero=True)
        runtime = self._running()
        found = runtime.queues.consumers_of(queue)
        if not found:
            raise InvalidArgument("queue", queue, "the name of a queue that this worker has a handler for")
        await asyncio.gather(*(runtime.queues.stop_queue(one, grace=within) for one in found))

    def fail_sessions(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Return what a dead process held to the front of the queues; callable from any thread.

        For the supervisor of `leasequeue worker`, which knows that the process is dead. It does nothing while
        this worker does not run.

        Args:
            sessions: Pairs of a queue and a session, as `on_sessions` got them in that process.
        """
        runtime = self._runtime
        if runtime is not None:
            runtime.queues.fail_sessions(sessions)

    @property
    def retiring(self) -> bool:
        """Whether the worker retires, or has stopped in this way."""
        return self._retiring

    @property
    def stopping(self) -> bool:
        """Whether it was ordered to stop, or retires, and has not ended yet; callable from any thread."""
        return self._stopping.is_set() or (self._retiring and self._runtime is not None)

    @property
    def runs(self) -> int:
        """How many runs have ended since it started; 0 if it does not run. A batch is one run."""
        runtime = self._runtime
        return 0 if runtime is None else runtime.runs

    def health(self) -> Health:
        """Return the worker's health; callable from any thread.

        It turns bad within 5 s when items wait and none is leased though a slot is free, when leases cannot
        be renewed, when the server does not answer or has reached its `maxmemory`, and when a handler blocks
        the event loop, which is logged once, with the line of the handler.
        """
        runtime = self._runtime
        if runtime is None:
            reasons = ("the worker is not running",)
            return Health(
                ok=False,
                reasons=reasons,
                public_reasons=reasons,
                running=0,
                waiting=0,
                since_last_lease=0.0,
                works=False,
            )
        return runtime.monitor.health()

    async def serve(self, *, unhealthy_after: Duration | None = None) -> int:
        """Work until SIGTERM or SIGINT, then stop as `stop` does, and close the queues.

        A second signal interrupts the runs, a third ends the process. Call it in the main thread of a program
        that does nothing else. After the first signal, the process ends within the grace time and 10 s, even
        while the server is unavailable: if a handler blocks the event loop for longer, another thread
        releases all items and exits the process.

        Args:
            unhealthy_after: Stop when `health` has been bad for so many seconds; None: never.

        Returns:
            The exit code for the process: 0 if every run finished, 3 if some were interrupted or could not be
            acknowledged, 4 if the worker was unhealthy.

        Raises:
            InvalidArgument, WorkerBusy, QueueClosed, ServerRefused, ServerTooOld: As in `run`.
        """
        limit = None if unhealthy_after is None else seconds("unhealthy_after", unhealthy_after, zero=False)
        with SignalHandler(self.stop, self.health, grace=self.grace, unhealthy_after=limit) as signal_handler:
            self._signal_handler = signal_handler
            try:
                runtime = await self._work()
                await self._close_queues()
            finally:
                self._signal_handler = None
        if signal_handler.unhealthy:
            return UNHEALTHY
        return INTERRUPTED if runtime is not None and runtime.unfinished else STOPPED

    async def _work(self, *, drain: bool = False) -> WorkerRuntime | None:
        if imports_main():
            raise RuntimeError(
                "a process for handlers imports the main module, which starts a worker: let it do so only "
                'below `if __name__ == "__main__":`'
            )
        if not self.handlers:
            raise InvalidArgument("handler", None, "at least one: see TaskQueue.task and Worker.handler")
        if self._loop is not None:
            raise WorkerBusy
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._retiring = False
        try:
            # Before the lifespan, which may take long, and may change something elsewhere.
            await check_admission(self._consumers(), self._stopping)
            if self._stopping.is_set():
                return None
            async with AsyncExitStack() as stack:
                resources = await self._resources(stack)
                if resources is None:
                    return None
                runtime = self._new_runtime(maintains=not drain)
                await self._run(runtime, resources, drain=drain)
                return runtime
        finally:
            self._loop, self._stopping, self._has_started = None, asyncio.Event(), asyncio.Event()
            self._quiet = False

    def _new_runtime(self, *, maintains: bool) -> WorkerRuntime:
        return WorkerRuntime(
            self._consumers(),
            name=self.name,
            dead_after=self._dead_after,
            gone_after=self._gone_after,
            stop=self.stop,
            concurrency=self.concurrency,
            handler_processes=self.handler_processes,
            order=self._order,
            clean_every=self._clean_every if maintains else None,
            keep_dead=self._keep_dead,
            max_runs=self.max_runs,
            log_runs=self.log_runs,
        )

    def _consumers(self) -> list[Consumer]:
        """Return what items are leased for, one for each queue. Tasks may be defined until it starts."""
        tasks = [
            consumer
            for source in self._sources
            for consumer in source.consumers(retry=self._retry, lease_time=self._lease_time)
        ]
        found = one_for_each_queue(self._handlers, tasks)
        for one in found:
            one.feeds = [*dict.fromkeys([*one.feeds, *self._feeds])]
        return [part for one in found for part in for_each_shard(one)]

    async def _resources(self, stack: AsyncExitStack) -> Mapping[str, Any] | None:
        """Start the lifespan and return what it yields; None if the worker is stopped before that."""
        if self._lifespan is None:
            return {}
        task = self._starting = asyncio.current_task()
        try:
            return await stack.enter_async_context(self._lifespan()) or {}
        except asyncio.CancelledError:
            if task is None or not self._stopping.is_set() or task.uncancel():
                raise
            return None
        except Exception as error:
            self.lifespan_error = error
            raise
        finally:
            self._starting = None

    async def _close_queues(self) -> None:
        """Close the queues, so that no item is moved to the session of a process that is about to end."""
        queues = {handler.queue: None for handler in self.handlers}
        closing = [asyncio.create_task(queue.close()) for queue in queues]
        _, late = await asyncio.wait(closing, timeout=CLOSE_SECONDS)
        if late:
            log.warning("the server is unavailable: disconnecting; the session expires later")

    async def _run(self, runtime: WorkerRuntime, resources: Mapping[str, Any], *, drain: bool) -> None:
        runtime.queues.on_sessions = self.on_sessions
        fetching = await runtime.start(resources, self._middleware)
        self._set_runtime(runtime)
        if self._stopping.is_set():
            runtime.take_nothing_more()
        if self._quiet:
            runtime.queues.set_quiet(quiet=True)
        log.info("working on %s", runtime)
        ends: list[asyncio.Future[Any]] = [
            fetching,
            runtime.failure,
            asyncio.create_task(self._stopping.wait()),
            asyncio.create_task(runtime.retiring.wait()),
        ]
        if drain:
            ends.append(asyncio.create_task(runtime.drained(ticks=self._clean_every is not None)))
        grace = 0.0
        try:
            runtime.queues.announce()  # before the first lease, and when `fail_sessions` has an effect
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            grace = self.grace
            if runtime.retiring.is_set() and not self._stopping.is_set():
                self._retiring, grace = True, math.inf
                log.info("retiring after %d runs: waiting for those that run", runtime.runs)
        finally:
            for task in ends[1:]:
                task.cancel()
            runtime.take_nothing_more()
            # If a queue was closed, runs that finish later could not be acknowledged.
            try:
                await self._end(runtime, grace=0.0 if fetching.done() else grace)
            finally:
                self._set_runtime(None)
                log.info("stopped: %s", runtime.summary())
        for task in ends:
            if task.done() and not task.cancelled():
                task.result()  # raises the error that ended the work

    async def _end(self, runtime: WorkerRuntime, *, grace: float) -> None:
        """End a runtime. Release everything even if this task is cancelled, any number of times."""
        ending = asyncio.create_task(runtime.end(grace=grace), name="leasequeue end")
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

    def _set_runtime(self, runtime: WorkerRuntime | None) -> None:
        self._runtime = runtime
        if runtime is not None:
            self._has_started.set()
        if self._signal_handler is not None:
            self._signal_handler.runtime = runtime

    def _stop(self, now: bool) -> None:  # noqa: FBT001 - call_soon_threadsafe gives no names
        if self._loop is None:
            return  # the work has ended
        if self._starting is not None and not self._stopping.is_set():
            self._starting.cancel()
        if self._retiring and not self._stopping.is_set() and self._runtime is not None:
            self._loop.call_later(self.grace, self._runtime.hurry.set)
        self._stopping.set()
        if self._runtime is not None:
            self._runtime.take_nothing_more()
        if now and self._runtime is not None:
            self._runtime.hurry.set()

    def _running(self) -> WorkerRuntime:
        if self._runtime is None:
            raise WorkerNotRunning
        return self._runtime

    def _set_quiet(self, *, quiet: bool) -> None:
        loop = self._loop
        if loop is None:
            self._quiet = quiet
        else:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(self._be_quiet, quiet)

    def _be_quiet(self, quiet: bool) -> None:  # noqa: FBT001 - call_soon_threadsafe gives no names
        if self._runtime is not None:
            self._runtime.queues.set_quiet(quiet=quiet)
        elif self._loop is not None:
            self._quiet = quiet

    def _retire(self) -> None:
        if self._runtime is not None:
            self._runtime.retire()
        else:
            self._stop(now=False)  # it has no runs yet


def _time(name: str, given: Duration | None, *, longest: float = LONGEST_SECONDS) -> float | None:
    return None if given is None else seconds(name, given, zero=False, longest=longest)


def _checked_time(argument: str, value: Duration | None) -> float | None:
    """Return after how many seconds a worker is dead; None: never."""
    number = _time(argument, value)
    if number is not None and number < MIN_DEAD_AFTER:
        raise InvalidArgument(argument, value, f"at least {MIN_DEAD_AFTER} s, or None")
    return number


def _checked_feeds(feeds: object) -> list[tuple[str, str]]:
    """Return the pairs of a home and a queue that its flow runs may feed."""
    if not isinstance(feeds, Mapping):
        raise InvalidArgument("feeds", feeds, 'names of queues by that of a home: {"shop": ["mails"]}')
    return [
        (check_prefix(home), check_prefix(queue))
        for home, queues in feeds.items()
        for queue in check_list("feeds", queues, "names of queues")
    ]


def _checked_name(name: object) -> str:
    if not (isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()):
        raise InvalidArgument("name", name, f"1 to {MAX_NAME} printable characters")
    return str(name)
