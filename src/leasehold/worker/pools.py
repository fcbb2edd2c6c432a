"""Run plain functions in threads or in separate processes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import pickle
import queue
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import anyio.to_process

from leasehold import telemetry
from leasehold.describing import describe, traceback_of
from leasehold.errors import OTHER_PROCESS, InvalidArgument
from leasehold.worker.outcomes import Signal
from leasehold.worker.parent_watch import exit_with
from leasehold.worker.stage_context import CURRENT, correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.worker.run import ActiveRun
    from leasehold.worker.stage_context import StageContext


class Threads:
    """A pool of daemon threads.

    The pool of the standard library joins its threads when the process exits, so that one thread that hangs
    would keep a worker from exiting.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._count = 0
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Call a function in a thread. Only the event loop may use this."""
        future: Future[Any] = Future()
        self._jobs.put((future, call))
        if not self._idle.acquire(blocking=False) and self._count < self._maximum:
            self._count += 1
            threading.Thread(target=self._work, name=f"leasehold handler {self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """End each thread after its current call."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                    future.set_exception(error)
            del job, future, call  # keep no references while waiting
            self._idle.release()


async def in_thread(
    threads: Threads, function: Callable[..., Any], run: ActiveRun, /, *payload: Any, **names: Any
) -> Any:
    """Call a function in a thread, in a copy of the caller's context.

    If this is cancelled while the thread works, the thread is noted in the run.
    """
    context = contextvars.copy_context()
    thread = threads.submit(functools.partial(context.run, _call_plain, function, *payload, **names))
    try:
        return await asyncio.wrap_future(thread)
    except asyncio.CancelledError:
        if not thread.done():
            run.thread = thread
        raise


def in_process(function: Callable[..., Any], name: str, limiter: anyio.CapacityLimiter) -> Any:
    """Wrap a function to run in a separate process, which is killed if the run is cancelled.

    Raises:
        InvalidArgument: If the function cannot be sent to another process.
    """
    call = functools.partial(_in_child, function)
    try:
        pickle.dumps(call)
    except Exception as error:
        raise InvalidArgument(
            "handler",
            name,
            f"for a process, a function of a module, and resources that can be pickled: {error}",
        ) from error

    async def invoke(*payload: Any, **names: Any) -> Any:
        trace = None if telemetry.active is None else telemetry.active.current_trace()
        around = trace, CURRENT.get(), correlation_id.get()
        value, raised = await anyio.to_process.run_sync(
            call, os.getpid(), payload, names, around, cancellable=True, limiter=limiter
        )
        if raised is not None:
            error: BaseException = pickle.loads(raised)  # noqa: S301 - pickled by our own process
            raise error
        return value

    return invoke


def _call_plain(function: Callable[..., Any], /, *payload: Any, **names: Any) -> Any:
    """Call a function. Convert exceptions that have a meaning for the event loop or for generators."""
    try:
        value = function(*payload, **names)
    except (StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"the handler returned {type(value).__name__}, which is not awaited: make it an async function"
        )
    return value


def _in_child(
    function: Callable[..., Any],
    parent: int,
    payload: tuple[Any, ...],
    names: dict[str, Any],
    around: tuple[bytes | None, StageContext | None, str | None],
) -> tuple[Any, bytes | None]:
    """Call a function in the child process; return its value and, pickled, what it raised.

    `around` has the trace of the run, of whose span those of the function are children, the stage that it
    works on, and the correlation id.
    """
    trace, stage, correlation = around
    # A terminal and some supervisors signal the whole process group. The worker decides when this process
    # ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    exit_with(parent)
    CURRENT.set(stage)  # the process sets it anew for each call
    correlation_id.set(correlation)
    try:
        with telemetry.continued(trace):
            return _call_plain(function, *payload, **names), None
    except Exception as error:  # noqa: BLE001 - raised again in the worker
        return None, _pickled(error)


def _pickled(error: BaseException) -> bytes:
    """Pickle an exception, or a substitute for one that cannot be pickled, with its traceback as a note."""
    note = None if issubclass(type(error), Signal) else f"{OTHER_PROCESS}{traceback_of(error)}"
    try:
        error.__cause__ = error.__context__ = None
        if note is not None:
            error.add_note(note)
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - pickled in the line above
    except BaseException as problem:  # noqa: BLE001 - any error of a user's class
        substitute = RuntimeError(describe(error))
        substitute.add_note(note or f"It cannot be sent to the worker: {describe(problem)}")
        return pickle.dumps(substitute)
    return pickled
