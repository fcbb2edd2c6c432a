"""Tells the server how runs ended: many at a time, and again until it has heard."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from leasehold.errors import (
    ConnectionLost,
    LeaseholdError,
    QueueClosed,
    ServerBusy,
    ServerOutOfMemory,
    ServerReadOnly,
)
from leasehold.log import Log
from leasehold.queue.lease import Failure
from leasehold.worker.outcomes import INTERRUPTED, Complete, Fail, Release

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from leasehold.queue.lease import Lease
    from leasehold.queue.queue import AsyncWorkQueue
    from leasehold.worker.handler import Handler
    from leasehold.worker.lease_renewer import LeaseRenewer
    from leasehold.worker.outcomes import Outcome
    from leasehold.worker.run import Run

#: Trouble that may pass.
PASSING = (ConnectionLost, ServerBusy, ServerOutOfMemory, ServerReadOnly)
#: How many trips of one handler's outcomes may be under way; what comes meanwhile gathers.
UNDER_WAY = 2
#: The most outcomes of one trip.
MOST = 500
#: The first and the longest pause between tries (s).
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0

log = Log("leasehold.worker")

#: A run's lease and what became of it.
Entry = "tuple[Run, Lease, Outcome]"


class Acknowledger:
    """Settles the runs of one handler.

    A run is settled once: each of its leases has one outcome. It is sent again over an outage, which is safe,
    since each step counts for the holder of the lease alone; meanwhile the renewer keeps the lease.

    Args:
        handler: Whose runs.
        renewer: Told when a run is settled.
        settled: Called after each trip.
        queue: The handler's queue as an object of this event loop, if it is not the handler's own.
    """

    def __init__(
        self,
        handler: Handler,
        renewer: LeaseRenewer,
        settled: Callable[[], None],
        *,
        queue: AsyncWorkQueue | None = None,
    ) -> None:
        self._handler = handler
        self._queue = handler.queue if queue is None else queue
        self._renewer = renewer
        self._settled = settled
        self._gathered: list[tuple[Run, Lease, Outcome]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        #: What became of how many items.
        self.completed = self.failed = self.released = self.refused = 0

    def add(self, run: Run) -> None:
        """A run has ended, with an outcome for each of its leases."""
        lost = run.lost
        for lease, outcome in zip(run.leases, run.outcomes, strict=True):
            if lost and lease.token in lost:
                self.refused += 1
                self._forget(run)
            else:
                self._gathered.append((run, lease, outcome))
        if not self._scheduled and len(self._tasks) < UNDER_WAY:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def release(self, runs: Sequence[Run]) -> None:
        """Runs that never began go back to the front, in order: all in one call, and not in trips of many."""
        entries: list[tuple[Run, Lease, Outcome]] = [
            (run, lease, INTERRUPTED) for run in runs for lease in run.leases
        ]
        if entries:
            self._begin(self._send(entries))

    @property
    def unsettled(self) -> int:
        """How many outcomes gather; those under way are not counted."""
        return len(self._gathered)

    async def drained(self) -> None:
        """Wait until everything is settled."""
        while self._tasks or self._gathered:
            if self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    def give_up(self) -> None:
        """Try no longer; what is not settled comes back when its lease ends."""
        self._gathered.clear()
        for task in self._tasks:
            task.cancel()

    def _flush(self) -> None:
        self._scheduled = False
        while self._gathered and len(self._tasks) < UNDER_WAY:
            batch, self._gathered = self._gathered[:MOST], self._gathered[MOST:]
            self._begin(self._send(batch))

    def _begin(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(sending, name="leasehold settle")
        self._tasks.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("an outcome could not be settled", exc_info=error)
        self._flush()
        self._settled()

    async def _send(self, batch: list[tuple[Run, Lease, Outcome]]) -> None:
        done = [entry for entry in batch if isinstance(entry[2], Complete)]
        if done:
            answered = await self._until_heard(done, self._complete)
            self.completed += answered  # not in one line: others count meanwhile
        if len(done) == len(batch):
            return
        failures = [entry for entry in batch if isinstance(entry[2], Fail)]
        if failures:
            answered = await self._until_heard(failures, self._fail)
            self.failed += answered
        returns: dict[Outcome, list[tuple[Run, Lease, Outcome]]] = {}
        for entry in batch:
            if isinstance(entry[2], Release):
                returns.setdefault(entry[2], []).append(entry)
        for some in returns.values():
            answered = await self._until_heard(some, self._release)
            self.released += answered

    async def _complete(self, entries: Sequence[tuple[Run, Lease, Outcome]]) -> list[bool]:
        leases = [lease for _, lease, _ in entries]
        keep = self._handler.keep_result
        if keep is None:
            return await self._queue.complete_many(leases)
        results = [outcome.result if isinstance(outcome, Complete) else None for _, _, outcome in entries]
        return await self._queue.complete_many(leases, results=results, keep_result=keep)

    async def _fail(self, entries: Sequence[tuple[Run, Lease, Outcome]]) -> list[bool]:
        return await self._queue.fail_many(
            [
                Failure(lease, outcome.error, outcome.retry_in)
                for _, lease, outcome in entries
                if isinstance(outcome, Fail)
            ]
        )

    async def _release(self, entries: Sequence[tuple[Run, Lease, Outcome]]) -> list[bool]:
        how = entries[0][2]
        if not isinstance(how, Release):
            raise TypeError(f"{how} is not given back")
        return await self._queue.release_many(
            [lease for _, lease, _ in entries], delay=how.delay, front=how.front
        )

    async def _until_heard(
        self,
        entries: list[tuple[Run, Lease, Outcome]],
        send: Callable[[Sequence[tuple[Run, Lease, Outcome]]], Awaitable[list[bool]]],
    ) -> int:
        """Send outcomes until the server has answered; returns how many it took."""
        pause = FIRST_PAUSE
        answers: list[bool] = []
        try:
            while not answers:
                try:
                    answers = await send(entries)
                except PASSING as error:
                    if pause == FIRST_PAUSE:
                        log.warning("outcomes of %s wait for the server: %s", self._handler.name, error)
                    await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
                    pause = min(LONGEST_PAUSE, pause * 2)
        except QueueClosed:
            return 0  # somebody closed it: they are kept for the background thread to give back
        except LeaseholdError:
            log.exception("the server refuses outcomes of %s: the items come back", self._handler.name)
            answers = [False] * len(entries)
        for run, _, _ in entries:
            self._forget(run)
        self.refused += len(answers) - sum(answers)
        return sum(answers)

    def _forget(self, run: Run) -> None:
        run.unsettled -= 1
        if run.unsettled <= 0:
            self._renewer.let_go(run)
