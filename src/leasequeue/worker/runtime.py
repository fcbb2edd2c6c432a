"""The parts of a running worker: created at its start, connected, and stopped in order at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue.errors import WorkerNotRunning
from leasequeue.log import Log
from leasequeue.queue.internals import release_arrivals, stop_listening
from leasequeue.worker.acknowledger import Acknowledger, Backlog, drain, release_held
from leasequeue.worker.background import BackgroundThread, Task
from leasequeue.worker.cancellations import Cancellations, cancel
from leasequeue.worker.coordinator import Coordinator
from leasequeue.worker.dispatch import foreign_queues
from leasequeue.worker.executor import Executor
from leasequeue.worker.fetcher import Fetcher
from leasequeue.worker.health import Monitor
from leasequeue.worker.invocation import build_call
from leasequeue.worker.lease_renewer import LeaseRenewer
from leasequeue.worker.maintenance import Maintenance
from leasequeue.worker.outcomes import Outcome
from leasequeue.worker.parking import Parking
from leasequeue.worker.pools import Threads
from leasequeue.worker.processes import Processes, usable_cores
from leasequeue.worker.run import by_consumer
from leasequeue.worker.served import Parts, ServedQueues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.worker.handler import Consumer, Handler
    from leasequeue.worker.run import ActiveRun
    from leasequeue.worker.turns import Order

#: While more outcomes than this wait for the server, nothing is fetched.
MAX_UNACKNOWLEDGED = 5000
#: How long after the grace time, and at least, outcomes are sent again while the server is unavailable (s).
ACKNOWLEDGE_SECONDS = 5.0
SHORTEST_ACKNOWLEDGE = 1.0
#: How often `drained` asks the server (s).
DRAIN_TICK = 0.02

log = Log("leasequeue.worker")


class WorkerRuntime(Coordinator, Parts):
    """The parts of a running worker. The arguments are those of `Worker`.

    Args:
        stop: Stops the worker; callable from any thread.

    Attributes:
        hurry: Set it to interrupt current runs during `end`.
        retiring: Set when the worker is to stop, and to wait for the runs however long they take.
        runs: How many runs have ended.
        monitor: Watches the worker's health.
        queues: The queues that it serves.
        unacknowledged: How many items the server could not be notified about at the end.
    """

    def __init__(  # noqa: PLR0913 - all but the consumers by name
        self,
        consumers: Sequence[Consumer],
        *,
        name: str,
        concurrency: int,
        handler_processes: int | None,
        order: Order,
        clean_every: float | None,
        keep_dead: float | None,
        dead_after: float | None,
        gone_after: float | None,
        stop: Callable[[], None],
        max_runs: int | None = None,
        log_runs: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = stop
        self.queues = ServedQueues(
            consumers,
            self,
            name=name,
            dead_after=dead_after,
            gone_after=gone_after,
            supervises=clean_every is not None,
            concurrency=concurrency,
        )
        self._concurrency = concurrency
        self.renewer = LeaseRenewer(self)
        self.cancellations = Cancellations(self.renewer)
        most = min(concurrency, handler_processes or usable_cores())
        self.parking = Parking(Processes(most, self._process_freed), self.renewer)
        self.executor = Executor(concurrency, self.renewer, self.cancellations, self, self.parking)
        self.executor.log_runs = log_runs
        self._backlog = Backlog()
        self.acknowledgers = {one: Acknowledger(one, self.renewer, self, self._backlog) for one in consumers}
        self.fetcher = Fetcher(order, self.renewer, self.executor, self)
        self.monitor = Monitor(self.executor, self.renewer, self.fetcher)
        tasks = self._background_tasks(clean_every, keep_dead)
        self.background = BackgroundThread(
            consumers, tasks, failing=self.monitor.failing, on_failure=self._background_failed
        )
        self._threads = Threads(concurrency)
        self._tasks: list[asyncio.Task[None]] = []
        #: Gets the error of a part that has failed.
        self.failure: asyncio.Future[None] = self._loop.create_future()
        self.hurry = asyncio.Event()
        self.retiring = asyncio.Event()
        self.runs = 0
        self._max_runs = max_runs
        self.unacknowledged = 0

    def _background_tasks(self, clean_every: float | None, keep_dead: float | None) -> list[Task]:
        queues, consumers = self.queues.served.keys(), self.queues.consumers
        tasks: list[Task] = [
            partial(self.renewer.run, [handler for one in consumers for handler in one.all_handlers]),
            partial(self.monitor.watch, queues),
            partial(self.monitor.release_arrivals, queues),
            *self.queues.tasks(),
        ]
        if clean_every is not None:
            maintenance = Maintenance(
                clean_every=clean_every,
                keep_dead=keep_dead,
                declarations={one.queue: one.declarations for one in consumers},
                foreign=foreign_queues(consumers),
            )
            tasks.append(partial(maintenance.run, queues))
        return tasks

    async def start(self, resources: Mapping[str, Any], middleware: Sequence[Any]) -> asyncio.Task[None]:
        """Call `prepare`, and start to work; return the task that fetches, which ends only with an error."""
        self.prepare(resources, middleware)
        await self.background.start()
        try:
            self.queues.join_all()
        except BaseException:
            self.queues.end_pushes()
            await self.background.stop()
            raise
        fetching = asyncio.create_task(self._fetch(), name="leasequeue fetcher")
        self._tasks = [fetching, asyncio.create_task(self.monitor.beat(), name="leasequeue heartbeat")]
        self._warm_up(self.queues.consumers)
        self.watch(self._tasks[1])
        return fetching

    async def _fetch(self) -> None:
        await self.fetcher.run(await self.queues.begun())

    def prepare(self, resources: Mapping[str, Any], middleware: Sequence[Any]) -> None:
        """Pass the resources to the handlers; see `build_call`."""
        self._resources, self._middleware = resources, middleware
        self.executor.calls = self._calls(self.queues.consumers)

    def adopt(self, consumer: Consumer) -> None:
        """See `Parts`."""
        self.executor.calls = {**self.executor.calls, **self._calls([consumer])}
        self._warm_up([consumer])
        self.acknowledgers[consumer] = Acknowledger(consumer, self.renewer, self, self._backlog)

    def stop(self) -> None:
        """See `Parts`."""
        self.take_nothing_more()
        self._stop()

    def take_nothing_more(self) -> None:
        """Fetch nothing and start no run from now on, as the worker is about to `end`.

        This takes effect at once: what arrives until `end` releases it must not start.
        """
        self.fetcher.stop()
        self.executor.stop()

    def _calls(self, consumers: Iterable[Consumer]) -> dict[Handler, Any]:
        """Return how the runs of each handler are executed."""
        return {
            handler: build_call(handler, self._resources, self._middleware, threads=self._threads)
            for consumer in consumers
            for handler in consumer.all_handlers
        }

    def _warm_up(self, consumers: Iterable[Consumer]) -> None:
        handlers = [one for consumer in consumers for one in consumer.all_handlers]
        self.parking.processes.warm_up([one.function for one in handlers if one.run_in == "process"])

    def _process_freed(self) -> None:
        if self.renewer.parked:
            self.executor.wake()

    def retire(self) -> None:
        """Take nothing more, and let the worker wait for its runs."""
        self.take_nothing_more()
        self.retiring.set()

    async def end(self, *, grace: float) -> None:
        """Stop fetching, release what has not started, finish or interrupt the runs, acknowledge, disconnect.

        Leases are renewed until the last outcome is acknowledged. This takes at most a few seconds longer
        than the grace time.
        """
        interrupt_at = self._loop.time() + grace
        fetching, *others = self._tasks
        fetching.cancel()
        await self.queues.stop_changing()
        await asyncio.gather(fetching, return_exceptions=True)
        self.parking.stop()
        waiting = self.renewer.pop_all()
        await self.parking.released()
        waiting += self.renewer.pop_all()
        leaving = [asyncio.create_task(stop_listening(one.queue)) for one in self.queues.consumers]
        # This releases items that were being moved to this session. They are later in the queue than those
        # that wait here, and all of them go to its front: so they go first.
        await asyncio.wait(leaving, timeout=SHORTEST_ACKNOWLEDGE)
        for consumer, runs in by_consumer(waiting).items():
            self.acknowledgers[consumer].release(runs)
        await self.executor.finish(within=grace, hurry=self.hurry)
        await self._acknowledge_rest(
            until=max(interrupt_at + ACKNOWLEDGE_SECONDS, self._loop.time() + SHORTEST_ACKNOWLEDGE)
        )
        await self._release_rest()
        await asyncio.wait(leaving, timeout=SHORTEST_ACKNOWLEDGE)
        self.queues.end_pushes()
        if not self.unacknowledged:
            await self.queues.leave_all(within=SHORTEST_ACKNOWLEDGE)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.background.stop()
        self.queues.membership.forget_all()
        self._threads.close()
        await self.parking.processes.close()

    def release_from_any_thread(self, *, timeout: float) -> None:
        """Release all items from the background thread, as the process is about to end.

        Raises:
            TimeoutError, LeasequeueError: If that did not succeed within so many seconds.
        """
        self.background.call(self._release_all).result(timeout)

    @property
    def held(self) -> int:
        """How many runs have not been acknowledged or released yet."""
        return len(self.renewer.held)

    @property
    def unfinished(self) -> int:
        """How many items run again because a run was interrupted or could not be acknowledged."""
        return self.executor.interrupted + self.unacknowledged

    def summary(self) -> str:
        """Describe what the worker has done, for the log."""
        counts: Counter[str] = Counter(dict.fromkeys(Outcome.declared, 0))
        for acknowledger in self.acknowledgers.values():
            counts.update(acknowledger.counts)
        counts["interrupted"] = self.executor.interrupted
        counts["not acknowledged"] = self.unacknowledged
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing was done"

    def __str__(self) -> str:
        names = ", ".join(consumer.queue.name for consumer in self.queues.served.values())
        return f"{names}, {self._concurrency} runs at once"

    async def drained(self) -> None:
        """Wait until no item that can be leased is left in any queue, and no run is left."""
        await self.queues.registered()
        while True:
            fetched_at, was_empty = self.fetcher.fetched_at, self.parking.is_empty
            if not self.renewer.held and not await self._lease_more():
                # Let the event loop turn, so that items which arrived for the fetcher become runs.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                is_empty = was_empty and self.parking.is_empty and not self.renewer.held
                if is_empty and self.fetcher.fetched_at == fetched_at:
                    return
            await asyncio.sleep(DRAIN_TICK)

    async def _lease_more(self) -> bool:
        """Lease items from one of the queues, and return whether there were any.

        Counting would not do: it does not reclaim items that are due, and items that are being moved to the
        fetcher's session are in no queue. Neither would leasing alone: an item that was delivered to that
        session is leased, and its message comes over another connection. So it is recalled first.
        """
        for one in () if self.fetcher.quiet else [*self.queues.served.values()]:
            await self.fetcher.declare(one)
            await release_arrivals(one.queue)
            leases = await one.queue.lease_many(one.batch or 1, one.lease_time, block=False)
            if leases:
                self.fetcher.accept(one, leases)
                return True
        return False

    # ------------------------------------------- Coordinator, failing, ending

    def run_finished(self, run: ActiveRun) -> None:
        """See `Coordinator`."""
        self.acknowledgers[run.handler.consumer].add(run)
        self.runs += 1
        if self.runs == self._max_runs:
            self.retire()
        self.fetcher.wake()

    def wake_fetcher(self) -> None:
        """See `Coordinator`."""
        self.fetcher.wake()

    def may_fetch(self) -> bool:
        """See `Coordinator`."""
        return self._backlog.size < MAX_UNACKNOWLEDGED

    def is_torn_down(self) -> bool:
        """See `Coordinator`. The tasks of runs say nothing: a handler may cancel its task."""
        return any(task.cancelling() for task in self._tasks[1:])

    def watch(self, task: asyncio.Task[Any]) -> None:
        """See `Coordinator`."""
        task.add_done_callback(self._task_ended)

    def stop_with(self, error: BaseException) -> None:
        """See `Coordinator`."""
        log.critical("a part of the worker has failed; the worker stops", exc_info=error)
        self.monitor.failure = error
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(self._fail, error)

    def lease_lost(self, run: ActiveRun, lease: Lease) -> None:
        """See `Coordinator`."""
        if lease.cancelled:
            self._loop.call_soon_threadsafe(cancel, run, lease)
            return
        if run.outcomes:
            return  # the server may have accepted its outcome just now; if not, it rejects that
        log.warning(
            "the lease of item %s (%s) was lost", lease.id, run.handler.queue.name, extra=run.log_fields
        )
        self._loop.call_soon_threadsafe(run.lose, lease)

    def runs_released(self) -> None:
        """See `Coordinator`."""
        self._loop.call_soon_threadsafe(self.fetcher.slow_down)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop_with(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    def _background_failed(self, error: BaseException) -> None:
        """Stop, and interrupt the runs: their leases are no longer renewed."""
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(self.hurry.set)
        failure = RuntimeError("the background thread of the worker has ended")
        failure.__cause__ = error  # which may be SystemExit
        self.stop_with(failure)

    async def _release_rest(self) -> None:
        """Release what is still held, because a queue was closed or a renewal had taken it at that moment."""
        if self.renewer.held and not self.unacknowledged:
            with contextlib.suppress(WorkerNotRunning):  # the background thread has failed
                releasing = asyncio.wrap_future(self.background.call(partial(release_held, self.renewer)))
                await asyncio.wait([releasing], timeout=SHORTEST_ACKNOWLEDGE)

    async def _release_all(self) -> None:
        await release_held(self.renewer)
        # A blocked move of the event loop may have taken one of them, if it was not ended yet.
        await asyncio.gather(*(release_arrivals(queue) for queue in [*self.queues.served]))

    async def _acknowledge_rest(self, *, until: float) -> None:
        """Acknowledge what is left. Over an outage, try again until then, or until `hurry` is set."""
        until = min(until, self._loop.time() + max(SHORTEST_ACKNOWLEDGE, self.renewer.last_remaining()))
        draining = asyncio.create_task(drain(self.acknowledgers.values()))
        hurried = asyncio.create_task(self.hurry.wait())
        left = until - self._loop.time()
        await asyncio.wait([draining, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done() and hurried.done():
            await asyncio.wait([draining], timeout=min(SHORTEST_ACKNOWLEDGE, until - self._loop.time()))
        hurried.cancel()
        if draining.done():
            draining.result()
            return
        draining.cancel()
        self.unacknowledged = sum(run.unacknowledged for run in list(self.renewer.held))
        log.error(
            "the server is unavailable: %d items were neither acknowledged nor released. They run again "
            "when their leases expire, in at most %.0f s",
            self.unacknowledged,
            max(0.0, self.renewer.last_remaining()),
        )
        for acknowledger in self.acknowledgers.values():
            acknowledger.cancel()
