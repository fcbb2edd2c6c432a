"""A worker that runs in the event loop of an application."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from leasequeue.errors.describing import describe
from leasequeue.errors.log import Log
from leasequeue.worker.signals import SIGNALS, end_process

if TYPE_CHECKING:
    from leasequeue.worker.worker import Worker


#: The exit code of a process that ends because its worker has crashed.
CRASHED = 1
#: How long the server of the application may take to end the process after a crash (s).
EXIT_SECONDS = 30.0

log = Log("leasequeue.fastapi")


class EmbeddedWorker:
    """Runs a worker beside the requests of an application, and notices if it crashes.

    Attributes:
        crash: What has ended the worker; None if nothing has, or if it was stopped.
    """

    def __init__(self, worker: Worker, *, exits: bool) -> None:
        self._worker = worker
        self._exits = exits
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.crash: BaseException | None = None

    async def start(self) -> None:
        """Start the worker, and return when it fetches work; a server that is down is waited for later.

        If the process gets a signal to stop before that, the worker is stopped, and this returns.

        Raises:
            Exception: If it does not start: its lifespan has failed, the server has refused it, or it is
                running elsewhere.
        """
        self._task = task = asyncio.create_task(self._worker.run(), name="leasequeue worker")
        started = asyncio.create_task(self._worker.started())
        try:
            with hurried_by_signals(self._worker.stop):
                await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        finally:
            started.cancel()
        if task.done():
            task.result()
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop the worker as `Worker.stop` does, and return when it has ended.

        If this is cancelled, or the process gets another signal to stop, the runs are interrupted.
        """
        self._is_stopping = True
        if self._task is None or self._task.done():
            return
        self._worker.stop()
        if running := self._worker.health().running:
            log.info(
                "stopping: %d runs have %g s to finish; another signal interrupts them",
                *(running, self._worker.grace),
            )
        try:
            with hurried_by_signals(partial(self._worker.stop, now=True)):
                await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise

    def exit(self) -> None:
        """End the process with the exit code CRASHED, if the worker has crashed and that is asked for.

        Raises:
            Exception: What has ended the worker, if the application runs outside of the main thread, as in a
                test client, where it must not end the process.
        """
        if not self._exits or self.crash is None or isinstance(self.crash, asyncio.CancelledError):
            return
        if not _is_main_thread():
            raise self.crash
        # A server such as uvicorn would end as killed by the signal. Nothing else is left to do.
        asyncio.get_running_loop().call_soon(_exit)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong with the worker, a sentence each; empty if it is healthy, or was ordered to stop.

        They are for answers to anyone: the log has the errors.
        """
        if self.crash is not None:
            return (f"the worker has crashed: {type(self.crash).__name__}, see the log",)
        if self._task is not None and self._task.done() and not self._is_stopping:
            return ()
        return self._worker.health().public_reasons

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = asyncio.CancelledError("its task was cancelled") if task.cancelled() else task.exception()
        if error is None:
            if not self._is_stopping:
                log.info("the embedded worker was stopped; the application continues")
            return
        self.crash = error
        if task.cancelled():
            return  # with all other tasks, as the event loop ends
        log.critical("the embedded worker has crashed: %s", describe(error), exc_info=error)
        if self._exits and not self._is_stopping and _is_main_thread():
            self._end_process()

    def _end_process(self) -> None:
        """Have the application's server end the process gracefully, and end it if that takes too long."""
        log.critical("ending the process, because its worker has crashed")
        last_resort = threading.Timer(EXIT_SECONDS, end_process, (CRASHED,))
        last_resort.daemon = True
        last_resort.start()
        signal.raise_signal(signal.SIGTERM)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _exit() -> NoReturn:
    raise SystemExit(CRASHED)


@contextmanager
def hurried_by_signals(hurry: Callable[[], None]) -> Iterator[None]:
    """Call a function at each SIGTERM and SIGINT inside the block, and then the handler from before.

    The server of the application got the first signal, and passes no other on. Outside of the main thread,
    where no handler can be set, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        hurry()
        previous = before[signal.Signals(number)]
        if callable(previous):
            previous(number, frame)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, previous in before.items():
            if signal.getsignal(number) is on_signal:  # otherwise another part of the program has set its own
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
