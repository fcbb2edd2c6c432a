"""The implementation of the pytest fixtures, which are declared in `_leasequeue_pytest`."""

from __future__ import annotations

import asyncio
import copy
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue.embedded.server import RunningServer, open_server
from leasequeue.errors import InvalidArgument
from leasequeue.queue.engines import Engines
from leasequeue.queue.queue import AsyncWorkQueue, engines_of
from leasequeue.testing.inline import InlineTasks
from leasequeue.wire.endpoints import client_of, close_client
from leasequeue.worker.run import RUNNING
from leasequeue.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping

    from leasequeue.durations import Duration
    from leasequeue.tasks.queue import TaskQueue
    from leasequeue.testing.clock import Clock
    from leasequeue.testing.proxy import Proxy
    from leasequeue.worker.worker import Lifespan


class MovedQueues:
    """The queues that workers of a program serve, in a test.

    Args:
        open_queue: Opens a queue of the test; the same name gives another object of the same queue.
    """

    def __init__(self, open_queue: Callable[[str], AsyncWorkQueue]) -> None:
        self._open = open_queue
        #: For each queue object of the program: its name there, and the object of the test that it became.
        self._moved: dict[AsyncWorkQueue, tuple[str, AsyncWorkQueue]] = {}
        #: The queues that the workers of the test serve.
        self._served: set[AsyncWorkQueue] = set()
        self._before: Callable[[Engines], None] | None = None

    def queue_like(self, queue: AsyncWorkQueue) -> AsyncWorkQueue:
        """Return a queue of the test that stands for one of the program, whose object leads there, too."""
        if self._before is None:
            self._before = Engines.before_use
            Engines.before_use = staticmethod(self._check)
        name, _ = self._moved.get(queue, (queue.name, queue))
        if queue not in self._moved:
            ours = self._open(name)
            self._moved[queue] = (name, ours)
            _exchange(queue, ours)
        served = self._open(name)
        self._served.add(served)
        return served

    def undo(self) -> None:
        """Give the queue objects of the program their own queues again."""
        if self._before is not None:
            Engines.before_use = staticmethod(self._before)
            self._before = None
        while self._moved:
            queue, (_, ours) = self._moved.popitem()
            _exchange(queue, ours)

    def _check(self, used: Engines) -> None:
        """Let no run of these workers use a queue of another server."""
        run = RUNNING.get()
        if run is None or run.handler.queue not in self._served:
            return
        if used.url is None or used.url not in {queue.url for queue in self._served}:
            raise AssertionError(
                f"{run.handler.name} uses the queue {used.name!r} of another server than the test's, "
                f"{used.url or 'a cluster'}: provide the queue, and give the test's in provide="
            )


#: What of a queue object refers to queue objects: it stays where it is, and so leads where the object does.
_OWN = ("admin", "shards", "whole")


def _exchange(one: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
    own, others = ({name: getattr(queue, name) for name in _OWN} for queue in (one, other))
    one.__dict__, other.__dict__ = other.__dict__ | own, one.__dict__ | others
    groups, theirs = one.groups, other.groups
    groups._other_name, theirs._other_name = theirs._other_name, groups._other_name  # noqa: SLF001 - as above


#: Seconds within which a worker that a test left running must stop.
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.005
NOTHING: Mapping[str, Any] = MappingProxyType({})

Q = TypeVar("Q", bound=AsyncWorkQueue)


@contextmanager
def running_server() -> Iterator[RunningServer]:
    """Yield the server at LEASEQUEUE_TEST_URL or REDIS_URL, or one that is started for this test run.

    Raises:
        EmbeddedServerError: If no server program was found, or it did not start.
    """
    url = os.environ.get("LEASEQUEUE_TEST_URL")
    server = RunningServer(url) if url else _run_in_thread(open_server())
    try:
        yield server
    finally:
        _run_in_thread(server.stop())


class Queues:
    """Opens the queues of one test, when called with a name, and removes their keys when the test ends.

    Args:
        server: The server of the queues.
        clock: The test's clock, if it uses one.
        faults: The proxy to the server, if the test uses one.
    """

    def __init__(self, server: RunningServer, *, clock: Clock | None, faults: Proxy | None) -> None:
        self._server = server
        self._clock = clock
        self._faults = faults
        self._label = uuid.uuid4().hex[:12]
        self._opened: list[AsyncWorkQueue] = []

    def __call__(
        self,
        name: str = "queue",
        *,
        direct: bool = False,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
    ) -> AsyncWorkQueue:
        """Open a queue that no other test uses. The same name gives another object of the same queue.

        Args:
            name: The first part of the queue's name.
            direct: Whether to connect to the server directly although the test uses `leasequeue_faults`.
            return_to: As for `AsyncWorkQueue`.
            reply_timeout: As for `AsyncWorkQueue`.

        Raises:
            InvalidArgument: If an argument is invalid.
        """
        return self._open(
            AsyncWorkQueue, name, direct=direct, return_to=return_to, reply_timeout=reply_timeout
        )

    def _open(self, kind: type[Q], name: str, *, direct: bool = False, **settings: Any) -> Q:
        url = self._server.url if direct or self._faults is None else self._faults.url
        queue = kind.from_url(url, f"{name}-{self._label}", clock=self._clock, **settings)
        self._opened.append(queue)
        if self._clock is not None:
            self._clock.attach(queue)
        return queue

    async def close(self) -> None:
        """Close the queues and remove their keys."""
        if self._faults is not None:
            await self._faults.heal()
            await self._faults.cut()  # callers whose reply was dropped fail now
        for queue in reversed(self._opened):
            await _close(queue)
        await remove_keys(self._server.url, {queue.name for queue in self._opened})


class Workers:
    """Makes the workers of one test, when called like `Worker`, and stops them when the test ends.

    Args:
        queues: The queues of the test.
    """

    def __init__(self, queues: Queues) -> None:
        self._moved = MovedQueues(queues)
        self._made: list[Worker] = []

    def __call__(self, **settings: Any) -> Worker:
        """Make a worker.

        Args:
            settings: As for `Worker`.

        Raises:
            InvalidArgument: As for `Worker`.
        """
        worker = Worker(**settings)
        self._made.append(worker)
        return worker

    def like(
        self, worker: Worker, *, provide: Mapping[str, Any] = NOTHING, lifespan: Lifespan | None = None
    ) -> Worker:
        """Make a worker with the settings and handlers of another worker, on queues of this test.

        A handler for the queue `emails` becomes a handler for `leasequeue_queues("emails")`. Until the test
        ends, the worker's own queue objects, and its tasks, lead there too, so that a handler may add items.
        The lifespan of the worker is not run, and functions for processes run in threads. A run that uses a
        queue of another server fails with an AssertionError.

        Args:
            worker: The worker, of which a copy is made. It need not be running.
            provide: What the handlers are passed, by name, in place of what the lifespan yields.
            lifespan: Run in place of the worker's lifespan; None: it provides `provide`.

        Raises:
            InvalidArgument: If both are given.
        """
        if provide and lifespan is not None:
            raise InvalidArgument("provide", provide, "either provide or lifespan")
        made = copy.copy(worker)
        made._loop = made._runtime = None  # noqa: SLF001 - part of making the copy
        consumers = worker._consumers()  # noqa: SLF001 - as above
        names = [one.queue.name for one in consumers]  # before they lead elsewhere
        made._handlers = [one.on(self._moved.queue_like(one.queue)) for one in consumers]  # noqa: SLF001 - as above
        made._sources = ()  # noqa: SLF001 - as above
        moved = dict(zip(names, (one.queue.name for one in made._handlers), strict=True))  # noqa: SLF001 - as above
        pairs = (pair for one in consumers for pair in one.feeds)
        made._feeds = [(moved.get(home, home), moved.get(queue, queue)) for home, queue in pairs]  # noqa: SLF001 - as above
        made._lifespan = lifespan or (lambda: _yield(provide))  # noqa: SLF001 - as above
        for handler in made.handlers:
            if handler.run_in == "process":
                handler.run_in = "thread"  # another process would import the module with its own queues
        self._made.append(made)
        return made

    async def close(self) -> None:
        """Stop the workers that the test left running, and give queue objects their own queues again."""
        loop = asyncio.get_running_loop()
        for worker in self._made:
            worker.stop(now=True)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                while any(worker._loop is loop for worker in self._made):  # noqa: ASYNC110, SLF001 - only tests need this
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._moved.undo()


class Inline:
    """Makes tasks run as soon as they are added, when called with task queues, until the test ends.

    Args:
        queues: The queues of the test.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._made: list[InlineTasks] = []

    def __call__(
        self, *queues: TaskQueue, provide: Mapping[str, Any] = NOTHING, raise_errors: bool = True
    ) -> InlineTasks:
        """Run the tasks of these task queues as soon as they are added, on queues of this test.

        Args:
            queues: The task queues, such as those of your modules.
            provide: What the worker fills in where a parameter is `Provided()`, by name.
            raise_errors: Whether the call that adds a task raises what the last attempt at it raised. If not,
                see `InlineTasks.runs`, and `Job.result`, which raises JobFailed.

        Raises:
            InvalidArgument: If an argument is invalid.
        """
        made = InlineTasks(
            queues,
            open_queue=self._queues._open,  # noqa: SLF001 - of this module
            provide=provide,
            raise_errors=raise_errors,
        )
        self._made.append(made)
        return made

    def close(self) -> None:
        """Give the task queues their own queues again."""
        for made in reversed(self._made):
            made.close()


@asynccontextmanager
async def _yield(resources: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
    yield resources


async def remove_keys(url: str, names: set[str]) -> None:
    """Remove all keys of the queues with these names."""
    if not names:
        return
    client = client_of(url)
    try:
        for name in names:
            pattern = re.sub(r"([\\*?\[\]])", r"\\\1", name) + ":*"
            keys = [key async for key in client.scan_iter(match=pattern, count=1000)]
            for at in range(0, len(keys), 1000):
                await client.unlink(*keys[at : at + 1000])
    finally:
        await close_client(client)


async def _close(queue: AsyncWorkQueue) -> None:
    """Close a queue, also in the event loops of tests, which stand still now."""
    for loop in {engine.loop for engine in engines_of(queue).all}:
        if not (loop.is_running() or loop.is_closed()):
            await asyncio.to_thread(loop.run_until_complete, queue.close())
    await queue.close()


def _run_in_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop and thread, apart from the event loops of the tests."""
    with ThreadPoolExecutor(1, "leasequeue test server") as threads:
        return threads.submit(asyncio.run, coroutine).result()
