"""The background thread: a thread with an event loop and connections of its own.

What has to go on while a handler blocks the main event loop happens here: leases are renewed, queues cleaned,
schedules ticked, and the worker's health is watched.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from leasehold.log import Log
from leasehold.queue.internals import twin

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.worker.handler import Handler

#: How long the background thread may take to close (s).
FAREWELL_SECONDS = 1.0

#: The longest and the shortest wait for an answer of the server (s).
MAX_REPLY_TIMEOUT, MIN_REPLY_TIMEOUT = 2.5, 0.5

log = Log("leasehold.worker")

#: A queue for each handler, as an object of the background thread's own event loop.
Twins = "dict[Handler, AsyncWorkQueue]"


class BackgroundThread:
    """Runs tasks in a thread.

    Args:
        handlers: Whose queues the tasks are about.
        tasks: Each is called with the queues, and runs until it is cancelled.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        tasks: Sequence[Callable[[dict[Handler, AsyncWorkQueue]], Coroutine[Any, Any, None]]],
    ) -> None:
        self._handlers = handlers
        self._tasks = tasks
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._closing: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="leasehold background", daemon=True)

    async def start(self) -> None:
        """Start, and return when the tasks have begun."""
        self._thread.start()
        try:
            await self._begun()
        except BaseException:
            await self.stop()
            raise
        self._ready.result()

    async def _begun(self) -> None:
        while not self._ready.done():  # noqa: ASYNC110 - it is a thread
            await asyncio.sleep(0.001)

    def call(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """Run a coroutine in the thread's event loop; callable from any thread, and from a signal handler."""
        return asyncio.run_coroutine_threadsafe(make(), self._ready.result())

    async def stop(self) -> None:
        """Cancel the tasks and close the connections, within FAREWELL_SECONDS if the server is away."""
        await self._begun()
        if self._closing is not None and self._thread.is_alive():
            self._ready.result().call_soon_threadsafe(self._closing.set)
            deadline = time.monotonic() + FAREWELL_SECONDS
            while self._thread.is_alive() and time.monotonic() < deadline:  # noqa: ASYNC110 - it is a thread
                await asyncio.sleep(0.005)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            log.critical("the background thread of the worker has failed", exc_info=error)

    async def _main(self) -> None:
        twins = {
            handler: twin(handler.queue, reply_timeout=_reply_timeout(handler)) for handler in self._handlers
        }
        self._closing = asyncio.Event()
        tasks = [asyncio.create_task(self._keep_up(task, twins)) for task in self._tasks]
        try:
            await asyncio.sleep(0)
            self._ready.set_result(asyncio.get_running_loop())
            await self._closing.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(twin.close() for twin in twins.values()), return_exceptions=True)

    async def _keep_up(
        self,
        task: Callable[[dict[Handler, AsyncWorkQueue]], Coroutine[Any, Any, None]],
        twins: dict[Handler, AsyncWorkQueue],
    ) -> None:
        """Restart a task that fails: the others depend on it, and it keeps no state that matters."""
        while True:
            try:
                await task(twins)
            except Exception:
                log.exception("a background task failed; restarting it")
            await asyncio.sleep(1)


def _reply_timeout(handler: Handler) -> float:
    """How long to wait for an answer: a connection that the network has dropped must not cost a lease."""
    return min(MAX_REPLY_TIMEOUT, max(MIN_REPLY_TIMEOUT, handler.lease_time / 4))
