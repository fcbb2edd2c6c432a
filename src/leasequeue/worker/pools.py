"""Run plain functions in threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from leasequeue.worker.child import call_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.worker.run import ActiveRun


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
            threading.Thread(target=self._work, name=f"leasequeue handler {self._count}", daemon=True).start()
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
    thread = threads.submit(functools.partial(context.run, call_plain, function, *payload, **names))
    try:
        return await asyncio.wrap_future(thread)
    except asyncio.CancelledError:
        if not thread.done():
            run.thread = thread
        raise
