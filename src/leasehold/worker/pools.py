"""Where plain functions run: in threads, or in processes of their own."""

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
import traceback
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import anyio.to_process

from leasehold.errors import InvalidArgument
from leasehold.worker.outcomes import Signal
from leasehold.worker.parent_watch import end_with

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasehold.worker.run import Run

#: Where a run is made to happen: an async callable that takes the payload.
Invoke = "Callable[..., Awaitable[Any]]"


class Threads:
    """The threads of a worker. They end with the process, whatever they are at.

    The pool of the standard library waits for its threads when the process ends; one that is stuck would
    keep a worker from ever leaving.

    Args:
        most: How many there may be at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Have something called in a thread. For the event loop alone."""
        future: Future[Any] = Future()
        self._jobs.put((future, call))
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._work, name=f"leasehold handler {self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """Let each thread end after what it is at."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
                    future.set_exception(error)
            del job, future, call  # so that nothing of it lives on while this waits
            self._idle.release()


#: The run whose function is called.
_current: contextvars.ContextVar[Run] = contextvars.ContextVar("leasehold run")


class InThread:
    """Runs a function in a thread, in a copy of the caller's context.

    Args:
        function: What to run.
        threads: Where.
    """

    def __init__(self, function: Callable[..., Any], threads: Threads) -> None:
        self._function = function
        self._threads = threads

    async def __call__(self, payload: Any, **names: Any) -> Any:
        """Run it, and wait for it. A thread cannot be cancelled: it goes on, and nobody hears of it."""
        context = contextvars.copy_context()
        thread = self._threads.submit(
            functools.partial(context.run, _plainly, self._function, payload, **names)
        )
        try:
            return await asyncio.wrap_future(thread)
        except asyncio.CancelledError:
            if not thread.done():
                _current.get().thread = thread
            raise


async def noting(call: Callable[[Run], Awaitable[Any]], run: Run) -> Any:
    """Call what may run in a thread. Should the thread be left behind, the run has it then.

    The task does not tell which run it is: middleware may have put the call into one of its own.
    """
    before = _current.set(run)
    try:
        return await call(run)
    finally:
        _current.reset(before)


def in_process(function: Callable[..., Any], name: str, limiter: anyio.CapacityLimiter) -> Any:
    """Run a function in a process of its own, which is killed if the run is cut off.

    Raises:
        InvalidArgument: If it cannot be sent to another process.
    """
    call = functools.partial(_apart, function)
    try:
        pickle.dumps(call)
    except Exception as error:
        raise InvalidArgument(
            "handler",
            name,
            f"for a process, a function of a module, and resources that can be pickled: {error}",
        ) from error

    def invoke(payload: Any) -> Awaitable[Any]:
        return anyio.to_process.run_sync(call, os.getpid(), payload, cancellable=True, limiter=limiter)

    return invoke


def _plainly(function: Callable[..., Any], payload: Any, **names: Any) -> Any:
    """Call a function, and let nothing out that an event loop would take for its own."""
    try:
        value = function(payload, **names)
    except (StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"the handler returned {type(value).__name__}, which nobody awaits: make it an async function"
        )
    return value


def _apart(function: Callable[..., Any], parent: int, payload: Any) -> Any:
    """What happens in the other process."""
    # A terminal and some supervisors signal the whole group. The worker decides when this process ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with(parent)
    try:
        return _plainly(function, payload)
    except Signal:
        raise
    except Exception as error:  # noqa: BLE001 - it is sent on
        text = "".join(traceback.format_exception(error))
        raise _sendable(error, f"In the other process:\n{text}") from None


def _sendable(error: BaseException, note: str) -> BaseException:
    """The error as it can go to another process: its traceback cannot, but is in the note."""
    error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own, of this very moment
    except Exception:  # noqa: BLE001 - whatever keeps it from travelling
        error = RuntimeError(f"{type(error).__qualname__}: {error}")
    error.add_note(note)
    return error
