"""The synchronous door: call asynchronous methods from plain code.

All calls of a process share one event loop, which runs in a thread, and so its connections. It starts with
the first call, and ends with the process; a forked process starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from anyio.from_thread import start_blocking_portal

from leasequeue.errors import InsideEventLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

P = ParamSpec("P")
T = TypeVar("T")


def call_sync(function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call an asynchronous method, wait for it, and return its result.

    Any thread may call it, and the calls of many threads share trips to the server.

        queue = AsyncWorkQueue.from_url("redis://localhost", "emails")
        call_sync(queue.add_item, Item(b"hello"))

    If the caller is interrupted (Ctrl-C), the call is cancelled.

    Args:
        function: The method, without parentheses.
        args: Its positional arguments.
        kwargs: Its other arguments.

    Raises:
        InsideEventLoop: In a thread that runs an event loop: `await` the method there.
        BaseException: What the method raises.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InsideEventLoop(getattr(function, "__qualname__", repr(function)))
    loop = _door.loop()
    ended: SimpleQueue[asyncio.Task[tuple[T] | BaseException]] = SimpleQueue()
    running: list[asyncio.Task[tuple[T] | BaseException]] = []

    async def call() -> tuple[T] | BaseException:
        try:
            return (await function(*args, **kwargs),)
        except (SystemExit, KeyboardInterrupt) as error:
            return error  # raised here, it would end the event loop of all callers

    def start() -> None:
        running.append(task := loop.create_task(call(), name="leasequeue call_sync"))
        task.add_done_callback(ended.put)

    def cancel() -> None:
        for task in running:
            task.cancel()

    # A call through the portal, or through a future, would take about twice the time.
    loop.call_soon_threadsafe(start)
    try:
        task = ended.get()
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        raise
    result = task.result()
    if isinstance(result, BaseException):
        raise result
    return result[0]


class _Door:
    """The event loop of this process's synchronous calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = contextlib.ExitStack()
        self._inherited: list[contextlib.ExitStack] = []

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, which the first call starts."""
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    portal = self._running.enter_context(start_blocking_portal(name="leasequeue sync"))
                    self._loop = portal.call(asyncio.get_running_loop)
                    atexit.register(self.close)
        return self._loop

    def close(self) -> None:
        """Cancel the calls that are still waiting, and end the event loop, which closes its connections."""
        with self._lock:
            running, self._running = self._running, contextlib.ExitStack()
            self._loop = None  # a later call, of a function that was registered before, starts another one
        running.__exit__(SystemExit, SystemExit(), None)

    def forget(self) -> None:
        """Forget the event loop of the parent process: its thread does not exist here."""
        atexit.unregister(self.close)
        self._lock = threading.Lock()
        self._loop = None
        # Without a reference it would be closed, which waits for the thread.
        self._inherited.append(self._running)
        self._running = contextlib.ExitStack()


_door = _Door()
os.register_at_fork(after_in_child=_door.forget)
