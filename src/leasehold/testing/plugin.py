"""What the fixtures of the pytest plugin do. The fixtures themselves are in `_leasehold_pytest`."""

from __future__ import annotations

import asyncio
import copy
import os
import re
import threading
import uuid
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from leasehold.embedded.server import Server, open_server
from leasehold.queue.internals import running_engine
from leasehold.queue.queue import AsyncWorkQueue
from leasehold.scripting.endpoints import client_of, close_client
from leasehold.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from leasehold.durations import Duration
    from leasehold.testing.clock import Clock
    from leasehold.testing.proxy import Proxy

#: How long a worker that a test has left running may take to stop (s).
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.005


@contextmanager
def running_server() -> Iterator[Server]:
    """Give the server of LEASEHOLD_TEST_URL, or of REDIS_URL, or else one that is started for this run.

    Raises:
        EmbeddedServerError: If there is no server program, or it does not start.
    """
    url = os.environ.get("LEASEHOLD_TEST_URL")
    server = Server(url) if url else _elsewhere(open_server())
    try:
        yield server
    finally:
        _elsewhere(server.stop())


class Queues:
    """Opens the queues of one test: call it with a name. It leaves nothing of them behind.

    Args:
        server: Where they are.
        clock: The clock that the test moves, if it asked for one.
        faults: The way to the server that the test spoils, if it asked for one.
    """

    def __init__(self, server: Server, *, clock: Clock | None, faults: Proxy | None) -> None:
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
        """Open a queue that no other test has; called with the same name again, another object of the same.

        Args:
            name: How its name begins.
            direct: Whether to go straight to the server though the test has asked for `leasehold_faults`.
            return_to: As for `AsyncWorkQueue`.
            reply_timeout: As for `AsyncWorkQueue`.

        Raises:
            InvalidArgument: If one of them is not as said.
        """
        url = self._server.url if direct or self._faults is None else self._faults.url
        queue = AsyncWorkQueue.from_url(
            url, f"{name}-{self._label}", return_to=return_to, reply_timeout=reply_timeout, clock=self._clock
        )
        self._opened.append(queue)
        if self._clock is not None:
            self._clock.attach(queue)
        return queue

    async def close(self) -> None:
        """Close the queues and remove their keys."""
        if self._faults is not None:
            await self._faults.heal()
            await self._faults.cut()  # what waits for an answer that was swallowed gets it now: none
        for queue in reversed(self._opened):
            await _close(queue)
        await remove_keys(self._server.url, {queue.name for queue in self._opened})


class Workers:
    """Makes the workers of one test: call it as `Worker`. None of them outlives the test.

    Args:
        queues: Opens the queues of the test.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
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

    def copy(self, worker: Worker) -> Worker:
        """Make a worker with the settings and handlers of one of yours, on queues of this test.

        What yours takes from the queue `emails`, this one takes from `leasehold_queues("emails")`. Your
        worker and its queues are left alone. A handler that itself adds to a queue of yours goes on doing
        that: let the lifespan give it the queue, and replace that.

        Args:
            worker: The worker, which need not run.
        """
        made = copy.copy(worker)
        made._loop = made._runtime = made._stopping = None  # noqa: SLF001 - it is a worker in the making
        made._handlers = [copy.copy(handler) for handler in worker.handlers]  # noqa: SLF001 - the same
        for handler in made.handlers:
            handler.queue = self._queues(handler.queue.name)
        self._made.append(made)
        return made

    async def close(self) -> None:
        """Stop those that the test has left running."""
        here = asyncio.get_running_loop()
        for worker in self._made:
            worker.stop(now=True)
        async with asyncio.timeout(STOP_SECONDS):
            while any(worker._loop is here for worker in self._made):  # noqa: ASYNC110, SLF001 - a test's
                await asyncio.sleep(_POLL_SECONDS)


async def remove_keys(url: str, names: set[str]) -> None:
    """Remove all keys of some queues."""
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
    """Close a queue in the event loop that used it, which need not be the one of the fixtures."""
    engine = running_engine(queue)
    loop = None if engine is None else engine.loop
    if loop is None or loop is asyncio.get_running_loop():
        await queue.close()
    elif not loop.is_closed():
        await asyncio.to_thread(loop.run_until_complete, queue.close())


def _elsewhere(doing: Coroutine[Any, Any, Any]) -> Any:
    """Run something in an event loop and a thread of its own: those of the tests are not ours."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(doing))
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            done.set_exception(error)

    thread = threading.Thread(target=run, name="leasehold test server")
    thread.start()
    thread.join()
    return done.result()
