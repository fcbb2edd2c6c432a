"""A thread with an event loop, for tasks that must not stop while a handler blocks the main event loop.

It has separate connections. It renews leases, cleans queues, ticks schedules and watches the worker's health.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.errors import WorkerNotRunning
from leasequeue.errors.log import Log
from leasequeue.queue.queue import engines_of
from leasequeue.worker.dispatch import foreign_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.handler import Consumer

#: How long the thread may take to close (s).
CLOSE_SECONDS = 1.0
#: The pause before a task that has failed begins again, and how long it then runs until it is healthy (s).
RESTART_SECONDS, HEALED_SECONDS = 1.0, 5.0
#: As long as it is not, the pause doubles, up to this (s).
LONGEST_RESTART = 16.0

#: The longest and the shortest time to wait for a reply of the server (s).
MAX_REPLY_TIMEOUT, MIN_REPLY_TIMEOUT = 2.5, 0.5

log = Log("leasequeue.worker")


#: Runs until it is cancelled.
Task: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"


class BackgroundThread:
    """Runs tasks in a thread. There, the queues act for the sessions of the main event loop.

    A task that fails begins again. `failing` gets those that have failed and have not gone on for a while
    since: when, by `time.monotonic()`, and why. `on_failure` is called in the thread when it ends with an
    error.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        tasks: Sequence[Task],
        *,
        failing: dict[object, tuple[float, BaseException]],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._consumers = consumers
        self._tasks = tasks
        self._on_failure = on_failure
        self._failing = failing
        # With a short timeout, a connection that fell silent costs no lease.
        times = [handler.lease_time for one in consumers for handler in one.all_handlers]
        shortest = min(times, default=MAX_REPLY_TIMEOUT)
        self._reply_timeout = min(MAX_REPLY_TIMEOUT, max(MIN_REPLY_TIMEOUT, shortest / 4))
        #: For each of them, the session of the main event loop, which holds the leases.
        self._sessions: dict[Consumer, str] = {}
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._closing: asyncio.Event | None = None
        #: Held to check or to change whether the thread takes calls. A signal handler may interrupt a holder.
        self._lock = threading.RLock()
        self._takes_calls = True
        self._thread = threading.Thread(target=self._run, name="leasequeue background", daemon=True)

    async def start(self) -> None:
        """Start the thread, and return when its tasks have begun."""
        self._sessions = {one: one.queue.session for one in self._consumers}
        self._thread.start()
        try:
            await self._started()
            self._ready.result()
        except BaseException:
            await self.stop()
            raise

    async def _started(self) -> None:
        while not self._ready.done():  # noqa: ASYNC110 - it is a thread
            await asyncio.sleep(0.001)

    async def assist(self, consumer: Consumer, *foreign: AsyncWorkQueue) -> None:
        """Act for the session that the queue has now in the running event loop, there and on other queues."""
        session = consumer.queue.session
        for queue in (consumer.queue, *foreign):
            again = partial(engines_of(queue).assist_another, session, reply_timeout=self._reply_timeout)
            called = asyncio.wrap_future(self.call(again))
            await asyncio.wait([called])
            if called.cancelled():
                raise WorkerNotRunning
            called.result()

    def call(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """Run a coroutine in the thread's event loop; callable from any thread, and from a signal handler.

        If the thread ends before the coroutine does, the future is cancelled. Raise WorkerNotRunning if the
        thread has ended, or is about to: then `make` is not called.
        """
        with self._lock:
            if not self._takes_calls:
                raise WorkerNotRunning
            return asyncio.run_coroutine_threadsafe(make(), self._ready.result())

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the thread's event loop, unless it has ended; callable from any thread."""
        with self._lock:
            if self._takes_calls:
                self._ready.result().call_soon_threadsafe(function)

    def _take_no_calls(self) -> None:
        with self._lock:
            self._takes_calls = False

    async def stop(self) -> None:
        """Cancel the tasks and close the connections, within CLOSE_SECONDS in any case."""
        await self._started()
        self._take_no_calls()
        if self._closing is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it is just ending
                self._ready.result().call_soon_threadsafe(self._closing.set)
            deadline = time.monotonic() + CLOSE_SECONDS
            while self._thread.is_alive() and time.monotonic() < deadline:  # noqa: ASYNC110 - it is a thread
                await asyncio.sleep(0.001)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            log.critical("the background thread of the worker failed", exc_info=error)
            if self._ready.done():
                self._on_failure(error)
            else:
                self._ready.set_exception(error)

    async def _main(self) -> None:
        for consumer, session in self._sessions.items():
            engines_of(consumer.queue).assist(session, reply_timeout=self._reply_timeout)
        sessions = {queue: session for one, session in self._sessions.items() for queue in one.foreign}
        for queue in foreign_queues(self._consumers):
            engines_of(queue).assist(sessions[queue], reply_timeout=self._reply_timeout)
        self._closing = asyncio.Event()
        tasks = [asyncio.create_task(self._run_forever(task)) for task in self._tasks]
        try:
            await asyncio.sleep(0)
            self._ready.set_result(asyncio.get_running_loop())
            await self._closing.wait()
        finally:
            self._take_no_calls()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # What was called before has become a task by now, which `asyncio.run` cancels.

    async def _run_forever(self, task: Task) -> None:
        pause = RESTART_SECONDS
        while True:
            # Its failure is forgotten when it has gone on for a while.
            healed = asyncio.get_running_loop().call_later(HEALED_SECONDS, self._failing.pop, task, None)
            try:
                await task()
            except Exception as error:
                pause = min(2 * pause, LONGEST_RESTART) if task in self._failing else RESTART_SECONDS
                log.exception("a background task failed; restarting it in %.0f s", pause)
                self._failing[task] = (time.monotonic(), error)
            finally:
                healed.cancel()
            await asyncio.sleep(pause)
