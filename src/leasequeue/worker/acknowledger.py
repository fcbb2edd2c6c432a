"""Send outcomes to the server: many in one call, and again until the server has answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.durations import Backoff
from leasequeue.errors import FormatTooNew, InvalidArgument, LeasequeueError, NotReplicated, QueueClosed
from leasequeue.errors.log import Log
from leasequeue.wire.subscriptions import keeps_running
from leasequeue.worker.outcomes import INTERRUPTED, Outcome, Release
from leasequeue.worker.refusals import Reminder, is_refusal
from leasequeue.worker.run import Interruption, by_consumer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.worker.handler import Consumer
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.run import ActiveRun

#: How many calls of one queue may be in flight; outcomes gather until one returns.
MAX_IN_FLIGHT = 2
#: The maximum of outcomes that one task sends.
MAX_BATCH = 500
#: While runs end in each turn of the event loop and more wait to start, so many outcomes gather for one call,
#: for so long at most (s).
GATHERED, GATHER_SECONDS = 250, 0.005

#: How the item of a stage ends that leads to a queue which is too new for this worker: it has run for
#: nothing, and would again. A newer worker may take it then.
LEFT = Release(delay=60.0)

log = Log("leasequeue.worker")

#: Writes the last records of some runs.
WriteLogs: TypeAlias = "Callable[[Sequence[ActiveRun]], Awaitable[None]]"
#: A run, one of its leases, and the outcome of that.
Entry: TypeAlias = "tuple[ActiveRun, Lease, Outcome]"


class Backlog:
    """Counts the outcomes that wait to be sent, over all queues of a worker."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Acknowledger:
    """Acknowledges the runs of one queue.

    An outcome is sent again after an outage or a refusal, which is safe: the server accepts it from the
    holder of the lease alone. Until then the lease is renewed. `backlog` counts what waits to be sent, over
    all queues. After each call `on_sent` is called, and `on_failure` with the error of one that failed.
    `write_logs` writes the last records of runs that keep them, before their outcomes are sent.

    Attributes:
        waiting: What waits to be sent, without what is in flight.
        counts: How many items the server accepted an outcome for, by `Outcome.counted_as`.
        rejected: How many outcomes were not sent or not accepted, because the lease was lost.
        unreplicated: How many of the accepted ones were not in time on as many replicas as the queue wants.
    """

    def __init__(
        self,
        consumer: Consumer,
        renewer: LeaseRenewer,
        backlog: Backlog,
        *,
        write_logs: WriteLogs | None = None,
        on_sent: Callable[[], None] = lambda: None,
        on_failure: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._consumer = consumer
        self._renewer = renewer
        self._backlog = backlog
        self._write_logs = write_logs
        self._on_sent = on_sent
        self._on_failure = on_failure
        self.waiting: list[Entry] = []
        self._tasks: set[asyncio.Task[None]] = set()
        #: The task that will send what waits at the end of this turn of the event loop.
        self._gathering: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter()
        self.rejected = self.unreplicated = 0
        self._reminder = Reminder()

    def add(self, run: ActiveRun) -> None:
        """Acknowledge a run that has an outcome for each of its leases.

        Raises:
            TypeError: If one of them is not an `Outcome`. Its lease is no longer renewed, so that the server
                reclaims the item; the other outcomes are sent.
        """
        lost = run.lost
        if lost and run.logs is not None and run.interruption is Interruption.CANCELLED:
            self._start(self._finish_logs([run]))  # the server accepts them although the lease is gone
        unknown: list[object] = []
        for lease, outcome in zip(run.leases, run.outcomes, strict=True):
            known = isinstance(outcome, Outcome)
            if known and not (lost and lease.token in lost):
                self.waiting.append((run, lease, outcome))
                self._backlog.size += 1
                continue
            if not known:
                unknown.append(outcome)
            self.rejected += 1
            self._forget(run)
        self._begin()
        if unknown:
            raise TypeError(f"{run!r} has an outcome that is no subclass of Outcome: {unknown[0]!r:.200}")

    def release(self, runs: Sequence[ActiveRun]) -> None:
        """Release runs that have not started to the front of the queue, in one call to keep their order."""
        entries: list[Entry] = [(run, lease, INTERRUPTED) for run in runs for lease in run.leases]
        if entries:
            self._start(self._send(entries))

    async def drain(self) -> None:
        """Wait until everything is acknowledged."""
        while self._tasks or self.waiting:
            if self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)

    def cancel(self) -> None:
        """Stop sending. Items that are not acknowledged are reclaimed when their leases expire."""
        self._backlog.size -= len(self.waiting)
        self.waiting.clear()
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        """Send what waits at the end of this turn of the event loop, unless enough calls are in flight."""
        if self.waiting and not keeps_running(self._gathering) and len(self._tasks) < MAX_IN_FLIGHT:
            self._gathering = self._start(self._send_waiting())

    async def _send_waiting(self) -> None:
        until, before = time.monotonic() + GATHER_SECONDS, 0
        try:
            while (
                self._renewer.waiting and before < len(self.waiting) < GATHERED and time.monotonic() < until
            ):
                before = len(self.waiting)
                await asyncio.sleep(0)
        finally:
            self._gathering = None
        batch, self.waiting = self.waiting[:MAX_BATCH], self.waiting[MAX_BATCH:]
        self._backlog.size -= len(batch)
        self._begin()  # if there is more than one batch
        await self._send(batch)

    def _start(self, sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(sending, name="leasequeue acknowledge")
        self._tasks.add(task)
        task.add_done_callback(self._sent)
        return task

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("outcomes of %s could not be sent", self._consumer.name, exc_info=error)
            self._on_failure(error)
        self._begin()
        self._on_sent()

    async def _finish_logs(self, runs: Sequence[ActiveRun]) -> None:
        if self._write_logs is not None:
            await self._write_logs(runs)

    async def _send(self, batch: list[Entry]) -> None:
        if runs := [run for run, _, _ in batch if run.logs is not None]:
            await self._finish_logs(runs)
        groups: dict[object, list[Entry]] = {}
        group: list[Entry] = []
        last: Outcome | None = None
        for entry in batch:
            outcome = entry[2]
            if outcome is not last:  # most are the same object
                last = outcome
                group = groups.setdefault(outcome.group, [])
            group.append(entry)
        for group in groups.values():
            try:
                answers = await self._until_answered(group)
            except QueueClosed:
                return  # the runs stay in the renewer, and the runtime releases them
            accepted = sum(answers)
            self.counts[group[0][2].counted_as] += accepted
            self.rejected += len(answers) - accepted
            for run, _, _ in group:
                self._forget(run)

    async def _until_answered(self, entries: list[Entry]) -> list[bool]:
        """Send outcomes that share a call, until the server answers."""
        leases = [lease for _, lease, _ in entries]
        outcomes = [outcome for _, _, outcome in entries]
        backoff = Backoff()
        while True:
            try:
                return await type(outcomes[0]).acknowledge(self._consumer.queue, leases, outcomes)
            except QueueClosed:
                raise
            except NotReplicated as error:
                # The items are done, and sending it again would only wait longer.
                self.unreplicated += sum(error.answers)
                log.warning("outcomes of %s: %s", self._consumer.name, error)
                return list(error.answers)
            except Exception as error:
                if isinstance(error, FormatTooNew) and error.answers:
                    return self._leave(entries, error)
                if isinstance(error, InvalidArgument) and len(entries) > 1:
                    # Nothing was sent, as one of them cannot be used. The others go without it.
                    return [(await self._until_answered([entry]))[0] for entry in entries]
                if not (isinstance(error, LeasequeueError) and (error.transient or is_refusal(error))):
                    # Another try would fail as well: let the leases expire, so that the items are reclaimed.
                    log.exception(
                        "outcomes of %s cannot be acknowledged; the items run again", self._consumer.name
                    )
                    return [False] * len(leases)
                if is_refusal(error):
                    self._reminder.log(f"outcomes of {self._consumer.name} wait for the server", error)
                elif not backoff.failures:
                    log.warning("outcomes of %s wait for the server: %s", self._consumer.name, error)
                await backoff.wait()

    def _leave(self, entries: list[Entry], error: FormatTooNew) -> list[bool]:
        """Release the items of stages that lead to a queue which is too new; return the answers."""
        self._reminder.log(f"stages of {self._consumer.queue.name} are left to newer workers", error)
        pairs = zip(entries, error.answers, strict=True)
        left: list[Entry] = [(run, lease, LEFT) for (run, lease, _), answer in pairs if answer is None]
        for run, _, _ in left:
            run.unacknowledged += 1
        self.rejected -= len(left)
        self._start(self._send(left))
        return [answer is True for answer in error.answers]

    def _forget(self, run: ActiveRun) -> None:
        """Note that one outcome of a run is no longer sent."""
        run.unacknowledged -= 1
        if run.unacknowledged <= 0:
            self._renewer.remove(run)


async def drain(acknowledgers: Iterable[Acknowledger]) -> None:
    """Wait until nothing waits to be sent."""
    await asyncio.gather(*(acknowledger.drain() for acknowledger in acknowledgers))


async def release_held(renewer: LeaseRenewer, write_logs: WriteLogs) -> None:
    """Acknowledge the runs that have finished, and release all others, in the background thread."""
    acknowledgers = []
    for consumer, runs in by_consumer(list(renewer.held)).items():
        acknowledger = Acknowledger(consumer, renewer, Backlog(), write_logs=write_logs)
        for run in runs:
            # The server may have accepted some of the outcomes; to send them again changes nothing.
            run.unacknowledged = len(run.leases)
            if run.outcomes:
                acknowledger.add(run)
        acknowledger.release([run for run in runs if not run.outcomes])
        acknowledgers.append(acknowledger)
    await drain(acknowledgers)
