"""What a worker does when a server refuses it: at the start it ends; later it waits, and says so."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leasequeue.errors import InvalidArgument, LeasequeueError, ServerRefused, ServerTooOld
from leasequeue.errors.log import Log
from leasequeue.queue.formats import read_format
from leasequeue.queue.queue import engine_of
from leasequeue.queue.shards.queue import ShardedQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.handler import Consumer

#: How long to wait at the start for a server that does not answer (s).
START_SECONDS = 5.0
#: How often to log that a server still refuses this worker (s), and how many texts are remembered.
REMIND_SECONDS = 60.0
MAX_TEXTS = 100

log = Log("leasequeue.worker")


def is_refusal(error: BaseException) -> bool:
    """Return whether a server refuses this client, so that another try at once would fail as well."""
    return isinstance(error, (ServerRefused, ServerTooOld))


async def check_admission(consumers: Iterable[Consumer], stopping: asyncio.Event) -> None:
    """Ask the servers of queues whether they accept this client, until all have answered.

    A server that is away is not waited for: the worker begins, and waits for it then. Raise ServerRefused or
    ServerTooOld if one of them refuses. Return when `stopping` is set.
    """
    stopped = asyncio.create_task(stopping.wait())
    adds_to: dict[AsyncWorkQueue, list[str]] = {}
    for one in consumers:
        names = [*one.adds_to, *(queue.name for queue in one.foreign)]
        adds_to.setdefault(one.queue, []).extend(names)
    asking = [asyncio.create_task(_ask(queue, names)) for queue, names in adds_to.items()]
    try:
        async with asyncio.timeout(START_SECONDS):
            for asked in asking:
                await asyncio.wait([asked, stopped], return_when=asyncio.FIRST_COMPLETED)
                if stopping.is_set():
                    return
                await asked
    except TimeoutError:
        log.warning("a server has not answered within %g s: waiting for it", START_SECONDS)
        for asked in asking:
            if asked.done():
                asked.result()
    finally:
        for task in (stopped, *asking):
            task.cancel()
        await asyncio.gather(stopped, *asking, return_exceptions=True)


async def _ask(queue: AsyncWorkQueue, adds_to: Iterable[str]) -> None:
    try:
        if isinstance(queue.whole, ShardedQueue):
            await queue.whole.check_shards()
        await engine_of(queue).rights.expect_worker(adds_to)
        await read_format(queue)
    except LeasequeueError as error:
        if is_refusal(error) or isinstance(error, InvalidArgument):
            raise
        # Else the server is away, or a call of the worker will say what is wrong.


class Reminder:
    """Logs that a server refuses this worker, each text once a minute."""

    def __init__(self) -> None:
        #: When each text was logged last, by `time.monotonic()`.
        self._logged: dict[str, float] = {}

    def log(self, what: str, error: LeasequeueError) -> None:
        """Log an error, unless the same one was logged within the last minute."""
        now, text = time.monotonic(), str(error)
        if now - self._logged.get(text, -REMIND_SECONDS) < REMIND_SECONDS:
            return
        if len(self._logged) >= MAX_TEXTS:
            self._logged.clear()
        self._logged[text] = now
        log.error("%s: %s", what, error)
