"""Write the log records of runs that keep them, while they run and before their outcomes are sent."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leasequeue.durations import Backoff
from leasequeue.errors import LeasequeueError, QueueClosed, ServerOutOfMemory
from leasequeue.errors.log import Log
from leasequeue.queue.run_logs import chunks_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.run import ActiveRun

#: How often to look for records to write (s); written are those that have waited, and those that are many.
TICK_SECONDS, WAIT_SECONDS, MANY_BYTES = 0.2, 0.7, 4096
#: How long the records of a completed item are kept if its result is not (s).
KEEP_SECONDS = 3600.0

log = Log("leasequeue.worker")


class LogWriter:
    """Writes the records of the runs that keep them, in the background thread of a worker.

    `held` are the runs that are not acknowledged. If the server is away, records wait; what a run can hold of
    them is bounded.
    """

    def __init__(self, held: Collection[ActiveRun]) -> None:
        self._held = held
        self._lock = asyncio.Lock()
        self._failing = False

    async def run(self) -> None:
        """Write what waits, again and again."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            late = time.monotonic() - WAIT_SECONDS
            kept = [(run, run.logs) for run in [*self._held] if run.logs is not None]
            due = [run for run, logs in kept if logs.size > MANY_BYTES or (logs.size and logs.since <= late)]
            if due:
                await self._write(due)

    async def finish(self, runs: Collection[ActiveRun]) -> None:
        """Write the last records of runs that have ended, before their outcomes are sent."""
        for run in runs:
            if run.logs is not None:
                run.logs.close()
        backoff = Backoff()
        while left := [run for run in runs if run.logs is not None and run.logs.waits]:
            if not await self._write(left):
                await backoff.wait()

    async def _write(self, runs: Collection[ActiveRun]) -> bool:
        """Write what waits of some runs; return False if the server is away, and it is to be sent again."""
        by_queue: dict[AsyncWorkQueue, list[ActiveRun]] = {}
        for run in runs:
            by_queue.setdefault(run.handler.queue, []).append(run)
        async with self._lock:
            return all([await self._write_to(queue, some) for queue, some in by_queue.items()])

    async def _write_to(self, queue: AsyncWorkQueue, runs: Collection[ActiveRun]) -> bool:
        rows = []
        for run in runs:
            if run.logs is not None and (taken := run.logs.take()) is not None:
                keep = run.handler.keep_result or KEEP_SECONDS
                limit = run.logs.limit
                rows += [(run.lease, chunk, limit, keep) for chunk in chunks_of(run.attempt, *taken, limit)]
        try:
            if rows:
                await queue._write_logs(rows)  # noqa: SLF001 - for the worker alone
        except LeasequeueError as error:
            if not self._failing:
                log.warning("logs of runs of %s cannot be written: %s", queue.whole.name, error)
            self._failing = True
            # A full server still accepts outcomes, which must not wait for these.
            if error.transient and not isinstance(error, (ServerOutOfMemory, QueueClosed)):
                return False
        else:
            self._failing = False
        for run in runs:
            if run.logs is not None:
                run.logs.done()
        return True
