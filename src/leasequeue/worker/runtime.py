"""A running worker: its parts, from start to stop, and the queues that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import socket
import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.alive.membership import MAX_NAMED, Membership, fail_sessions, registration_of
from leasequeue.errors import LeasequeueError, QueueClosed, WorkerNotRunning
from leasequeue.errors.log import Log
from leasequeue.keys import FORMAT
from leasequeue.queue.queue import engine_of, engines_of, lease_level
from leasequeue.wire.subscriptions import joined
from leasequeue.worker.acknowledger import Acknowledger, Backlog, drain, release_held
from leasequeue.worker.background import BackgroundThread, Task
from leasequeue.worker.cancellations import Cancellations, cancel
from leasequeue.worker.dispatch import foreign_queues
from leasequeue.worker.executor import Executor
from leasequeue.worker.fetcher import Fetcher
from leasequeue.worker.health import Monitor
from leasequeue.worker.invocation import Threads, build_call
from leasequeue.worker.lease_renewer import LeaseRenewer
from leasequeue.worker.log_records import watch_records
from leasequeue.worker.maintenance import Maintenance
from leasequeue.worker.outcomes import Outcome
from leasequeue.worker.parking import Parking
from leasequeue.worker.processes import Processes, usable_cores
from leasequeue.worker.run import RUNNING, Interruption, by_consumer
from leasequeue.worker.run_logs import LogWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from leasequeue.alive.membership import Registration
    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.schedules import Declaration
    from leasequeue.worker.handler import Consumer, Handler
    from leasequeue.worker.run import ActiveRun
    from leasequeue.worker.turns import Order

#: How long after the grace time, and at least, outcomes are sent again while the server is unavailable (s).
ACKNOWLEDGE_SECONDS = 5.0
SHORTEST_ACKNOWLEDGE = 1.0
#: How often `drained` asks the server (s).
DRAIN_TICK = 0.005

#: How often `stop_queue` looks for the ends of runs (s).
TICK = 0.02
#: How long the first lease waits, at most, until the worker is registered (s).
REGISTER_SECONDS = 1.0
#: How much of an item's id a worker says in its registration.
MAX_ID = 256

#: Is called with pairs of a queue and the session that holds its leases.
OnSessions: TypeAlias = "Callable[[Sequence[tuple[str, str]]], None]"

log = Log("leasequeue.worker")


class WorkerRuntime:
    """The parts of a running worker. The arguments are those of `Worker`.

    `stop` stops the worker; it is callable from any thread.

    Attributes:
        hurry: Set it to interrupt current runs during `end`.
        retiring: Set when the worker is to stop, and to wait for the runs however long they take.
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
        self.renewer = LeaseRenewer(self._lease_lost, self._runs_released)
        self.cancellations = Cancellations(self.renewer)
        most = min(concurrency, handler_processes or usable_cores())
        self.parking = Parking(Processes(most, self._process_freed), self.renewer)
        self.executor = Executor(
            concurrency,
            self.renewer,
            self.cancellations,
            self.parking,
            on_finished=self._run_finished,
            on_freed=self._wake_fetcher,
            on_failure=self._stop_with,
            is_torn_down=self._is_torn_down,
        )
        self.executor.log_runs = log_runs
        self.log_writer = LogWriter(self.renewer.held)
        self._backlog = Backlog()
        self.acknowledgers = {one: self._acknowledger_of(one) for one in consumers}
        self.fetcher = Fetcher(order, self.renewer, self.executor, self._backlog, self.watch)
        self.monitor = Monitor(self.executor, self.renewer, self.fetcher, self.queues.served)
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
        self.runs = self.unacknowledged = 0
        self._max_runs = max_runs

    def _background_tasks(self, clean_every: float | None, keep_dead: float | None) -> list[Task]:
        queues, consumers = self.queues.served.keys(), self.queues.consumers
        tasks: list[Task] = [
            lambda: self.renewer.run([handler for one in consumers for handler in one.all_handlers]),
            partial(self.monitor.watch, queues),
            partial(self.monitor.release_arrivals, queues),
            *self.queues.membership.tasks(queues),
        ]
        if any(one.keep_logs is not None for consumer in consumers for one in consumer.all_handlers):
            tasks.append(self.log_writer.run)
        if clean_every is not None:
            maintenance = Maintenance(
                clean_every=clean_every,
                keep_dead=keep_dead,
                declarations=self.queues.declarations,
                foreign=self.queues.foreign,
                workers=self.queues.membership.workers,
            )
            tasks.append(partial(maintenance.run, queues))
        return tasks

    async def start(self, resources: Mapping[str, Any], middleware: Sequence[Any]) -> asyncio.Task[None]:
        """Call `prepare`, and start to work; return the task that fetches, which ends only with an error."""
        watch_records(RUNNING.get)
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
        """Prepare for the runs of a queue that is new."""
        self.executor.calls = {**self.executor.calls, **self._calls([consumer])}
        self._warm_up([consumer])
        self.acknowledgers[consumer] = self._acknowledger_of(consumer)

    def _acknowledger_of(self, consumer: Consumer) -> Acknowledger:
        return Acknowledger(
            consumer,
            self.renewer,
            self._backlog,
            write_logs=self._write_logs,
            on_sent=self._wake_fetcher,
            on_failure=self._stop_with,
        )

    def stop(self) -> None:
        """Stop the worker, as it was ordered."""
        self.take_nothing_more()
        self._stop()

    def take_nothing_more(self) -> None:
        """Fetch nothing and start no run from now on, as the worker is about to `end`.

        This takes effect at once: what arrives until `end` releases it must not start.
        """
        self.fetcher.stop()
        self.executor.stop()

    def _calls(self, consumers: Iterable[Consumer]) -> dict[Handler, Any]:
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
        leaving = [
            asyncio.create_task(engines_of(one.queue).stop_listening()) for one in self.queues.consumers
        ]
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

        Raise TimeoutError if that did not succeed within so many seconds.
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
            counts["not replicated"] += acknowledger.unreplicated
        counts["interrupted"] = self.executor.interrupted
        counts["not acknowledged"] = self.unacknowledged
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing was done"

    def __str__(self) -> str:
        names = ", ".join(dict.fromkeys(queue.whole.name for queue in self.queues.served))
        return f"{names}, {self._concurrency} runs at once"

    async def drained(self, *, ticks: bool) -> None:
        """Wait until no item that can be leased is left in any queue, and no run is left.

        With `ticks`, declare the schedules first, and add what is due.
        """
        await self.queues.registered()
        for consumer in [*self.queues.served.values()] if ticks else ():
            for declaration in consumer.declarations:
                await consumer.queue.schedules._declare(declaration)  # noqa: SLF001 - for the worker alone
            while not await consumer.queue.schedules.tick():
                pass
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
            await engines_of(one.queue).release_arrivals()
            lease_ms = round(1000 * one.lease_time)
            leases, _ = await lease_level(one.queue, one.batch or 1, lease_ms, whole=one.gathers)
            if leases:
                self.fetcher.accept(one, leases)
                return True
        return False

    # ------------------------------------- what the parts report, failing, ending

    def _run_finished(self, run: ActiveRun) -> None:
        """Acknowledge a run that has its outcomes.

        Raises:
            TypeError: If one of its outcomes is not an `Outcome`. The item's lease is no longer renewed.
        """
        self.acknowledgers[run.handler.consumer].add(run)
        self.runs += 1
        if self.runs == self._max_runs:
            self.retire()
        self.fetcher.wake()

    def _wake_fetcher(self) -> None:
        self.fetcher.wake()

    def _is_torn_down(self) -> bool:
        """Tell by other tasks than those of runs, which a handler may cancel."""
        return any(task.cancelling() for task in self._tasks[1:])

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Stop the worker if a task ends with an error: without the task, it would only seem to work."""
        task.add_done_callback(self._task_ended)

    def _stop_with(self, error: BaseException) -> None:
        """Stop the worker, as one of its parts has failed; `Worker.run` raises the error. For any thread."""
        log.critical("a part of the worker has failed; the worker stops", exc_info=error)
        self.monitor.failure = error
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(self._fail, error)

    def _lease_lost(self, run: ActiveRun, lease: Lease) -> None:
        """Discard the outcome of a lost lease; called in the background thread."""
        if lease.cancelled:
            self._loop.call_soon_threadsafe(cancel, run, lease)
            return
        if run.outcomes:
            return  # the server may have accepted its outcome just now; if not, it rejects that
        log.warning(
            "the lease of item %s (%s) was lost", lease.id, run.handler.queue.whole.name, extra=run.log_fields
        )
        self._loop.call_soon_threadsafe(run.lose, lease)

    def _runs_released(self) -> None:
        """Fetch less ahead, as runs waited too long; called in the background thread."""
        self._loop.call_soon_threadsafe(self.fetcher.slow_down)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._stop_with(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failure.done():
            self.failure.set_exception(error)

    def _background_failed(self, error: BaseException) -> None:
        """Stop, and interrupt the runs: their leases are no longer renewed."""
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(self.hurry.set)
        failure = RuntimeError("the background thread of the worker has ended")
        failure.__cause__ = error  # which may be SystemExit
        self._stop_with(failure)

    async def _release_rest(self) -> None:
        """Release what is still held, because a queue was closed or a renewal had taken it at that moment."""
        if self.renewer.held and not self.unacknowledged:
            with contextlib.suppress(WorkerNotRunning):  # the background thread has failed
                release = partial(release_held, self.renewer, self.log_writer.finish)
                releasing = asyncio.wrap_future(self.background.call(release))
                await asyncio.wait([releasing], timeout=SHORTEST_ACKNOWLEDGE)

    async def _write_logs(self, runs: Sequence[ActiveRun]) -> None:
        """Write the last records of runs where the others are written, so that they stay in order."""
        with contextlib.suppress(WorkerNotRunning):  # the background thread has failed
            writing = asyncio.wrap_future(self.background.call(partial(self.log_writer.finish, runs)))
            await asyncio.wait([writing])
            if not writing.cancelled():
                writing.result()

    async def _release_all(self) -> None:
        await release_held(self.renewer, self.log_writer.finish)
        # A blocked move of the event loop may have taken one of them, if it was not ended yet.
        await asyncio.gather(*(engines_of(queue).release_arrivals() for queue in [*self.queues.served]))

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


class ServedQueues:
    """Serves the queues of a worker.

    `parts` are complete when the first queue is joined. If it `supervises`, it looks after other workers, and
    fails them.

    Attributes:
        consumers: All that the worker can serve.
        served: The queues that it serves now.
        foreign: Those that it only maintains.
        on_sessions: Called before the first lease, and when a session has changed.
    """

    def __init__(
        self,
        consumers: Iterable[Consumer],
        parts: WorkerRuntime,
        *,
        name: str,
        dead_after: float | None,
        gone_after: float | None,
        supervises: bool,
        concurrency: int,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._parts = parts
        self._name = name
        self._concurrency = concurrency
        self.consumers = [*consumers]
        self.served: dict[AsyncWorkQueue, Consumer] = {one.queue: one for one in self.consumers}
        self.foreign = foreign_queues(self.consumers)
        self._declare_feeds()
        self.membership = Membership(
            dead_after=dead_after,
            gone_after=gone_after,
            supervises=supervises,
            about=self._about,
            on_order=lambda what: loop.call_soon_threadsafe(self._obey, what),
            on_forgotten=self._forgotten,
            on_failed=self._failed,
        )
        self.on_sessions: OnSessions = lambda _: None
        self._facts: dict[str, Any] = {}
        #: The tasks that register on a queue.
        self._registering: dict[Consumer, asyncio.Task[None]] = {}
        #: What ends the subscriptions of a queue.
        self._pushes: dict[Consumer, list[Callable[[], None]]] = {}
        #: The tasks that begin again, or declare limits again.
        self._renewing: set[asyncio.Task[None]] = set()
        #: The tasks that start or stop a queue.
        self._changes: set[asyncio.Task[None]] = set()
        #: Held to start a queue, to stop it, or to begin it again.
        self._changing: defaultdict[Consumer, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ending = False

    def join_all(self) -> None:
        """Register on all queues."""
        self._facts = self._make_facts()
        for consumer in self.consumers:
            self._join(consumer)

    def announce(self) -> None:
        """Pass on the sessions of this worker; from then on it may be ordered to fail others."""
        self.on_sessions(self._sessions())

    async def registered(self, *consumers: Consumer) -> None:
        """Return when the server knows this worker on some queues, or soon, as it may be away.

        Nothing is leased before: no peer would fail a worker that dies unknown.
        """
        chosen = consumers or self._registering
        waiting = [self._registering[one] for one in chosen if one in self._registering]
        if waiting:
            await asyncio.wait(waiting, timeout=REGISTER_SECONDS)

    async def begun(self) -> list[Consumer]:
        """Wait as `registered`; return what is to be fetched for since `join_all`.

        Until then, a queue may have been stopped, or have begun again: then it is added to the fetcher apart.
        """
        first = {**self._registering}
        await self.registered()
        return [
            one
            for one, task in first.items()
            if self._registering.get(one) is task and self.served.get(one.queue) is one
        ]

    async def stop_changing(self) -> None:
        """Begin no queue again any more, as the worker ends."""
        self._ending = True
        for task in self._renewing:
            task.cancel()
        await asyncio.gather(*self._renewing, return_exceptions=True)
        await self._end_registering(*self._registering)

    async def leave_all(self, *, within: float) -> None:
        """End all registrations, in so many seconds at most."""
        with contextlib.suppress(WorkerNotRunning):  # the background thread has failed
            await asyncio.wait([self._in_background(self.membership.leave_all)], timeout=within)

    def end_pushes(self) -> None:
        """Receive nothing more."""
        for consumer in [*self._pushes]:
            self._end_pushes(consumer)

    def consumers_of(self, name: str) -> list[Consumer]:
        """Return what it can serve of this name of a queue: one, or one for each of its shards."""
        return [one for one in self.consumers if one.queue.whole.name == name]

    async def start_queue(self, consumer: Consumer) -> None:
        """Serve a queue, which may be new, from now on; if it is being stopped, after that.

        Raises:
            WorkerNotRunning: If the worker ends.
        """
        await self._changed(self._start_queue(consumer), "leasequeue start a queue")

    async def stop_queue(self, consumer: Consumer, *, grace: float) -> None:
        """Fetch nothing more from a queue, and return when nothing of it is held here.

        Release what has not started. Give its runs this time to finish, in seconds; then interrupt them.
        """
        await self._changed(self._stop_queue(consumer, grace), "leasequeue stop a queue")

    async def _changed(self, change: Coroutine[Any, Any, None], name: str) -> None:
        """Make a change, which continues if its caller is cancelled: a queue is not served by half."""
        task = asyncio.create_task(change, name=name)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await joined(task)

    async def _start_queue(self, consumer: Consumer) -> None:
        async with self._changing[consumer]:
            if consumer.queue in self.served:
                return
            if self._ending:
                raise WorkerNotRunning
            if consumer not in self.consumers:
                self._parts.adopt(consumer)  # which may refuse it
                self.consumers.append(consumer)
                self._declare_feeds()
                self._parts.background.call_soon(
                    partial(self._parts.renewer.add_handlers, consumer.all_handlers)
                )
            new = set(foreign_queues(self.consumers)).difference(self.foreign)
            await self._parts.background.assist(consumer, *new)
            if self._ending:
                raise WorkerNotRunning
            self.served[consumer.queue] = consumer
            assisted = new.union(self.foreign)
            self.foreign[:] = [one for one in foreign_queues(self.consumers) if one in assisted]
            await self._join_and_fetch(consumer)
            log.info("working on %s, too", consumer.queue.name)

    def declarations(self, queue: AsyncWorkQueue) -> Sequence[Declaration]:
        """Return the schedules that the worker declares on a queue; callable from any thread."""
        consumer = self.served.get(queue)
        return () if consumer is None else consumer.declarations

    def _declare_feeds(self) -> None:
        """Let flow runs add items to the queues that the worker declares, and no others."""
        for queue in (*(one.queue for one in self.consumers), *foreign_queues(self.consumers)):
            near = (one for one in self.consumers if one.queue.url == queue.url)
            engines_of(queue).feeds.limit(pair for one in near for pair in one.feeds)

    async def _stop_queue(self, consumer: Consumer, grace: float) -> None:
        async with self._changing[consumer]:
            if self.served.pop(consumer.queue, None) is None:
                return
            await self._parts.fetcher.remove(consumer)
            await engines_of(consumer.queue).stop_listening()
            waiting = self._parts.renewer.pop_of(consumer)
            await self._parts.parking.released()
            waiting += self._parts.renewer.pop_of(consumer)
            self._parts.acknowledgers[consumer].release(waiting)
            interrupt_at = self._loop.time() + grace
            while running := self._running_of(consumer):
                if self._loop.time() >= interrupt_at:
                    for run in running:
                        run.interrupt(Interruption.SHUTDOWN)
                await asyncio.sleep(TICK)
            await self._parts.acknowledgers[consumer].drain()
            self._end_pushes(consumer)
            await self._end_registering(consumer)
            await self._in_background(partial(self.membership.leave, consumer.queue))
            log.info("no longer working on %s", consumer.queue.name)

    def _running_of(self, consumer: Consumer) -> list[ActiveRun]:
        """Return the runs on items of a queue that occupy a slot and are held."""
        occupying = {*self._parts.executor.running.values()}
        return [run for run in self._parts.renewer.held_of(consumer) if run in occupying]

    def fail_sessions(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Fail the sessions of a process that has died, in the background; callable from any thread."""
        with contextlib.suppress(WorkerNotRunning):
            self._parts.background.call(partial(fail_sessions, [*self.served], sessions))

    def _sessions(self) -> list[tuple[str, str]]:
        return [(queue.name, queue.session) for queue in self.served]

    def set_quiet(self, *, quiet: bool) -> None:
        """Fetch nothing more, or fetch again."""
        if quiet != self._parts.fetcher.quiet:
            log.info("quiet: fetching nothing more" if quiet else "no longer quiet: fetching again")
            if quiet:
                self._parts.fetcher.quiet = True
            else:
                self._parts.fetcher.resume()
            self.membership.beat_soon()

    @property
    def quiet(self) -> bool:
        """Whether it fetches nothing more."""
        return self._parts.fetcher.quiet

    async def _join_and_fetch(self, consumer: Consumer) -> None:
        """Register on a queue, and then fetch for it."""
        self._join(consumer)
        self.on_sessions(self._sessions())
        await self.registered(consumer)
        # The server may have lost them meanwhile.
        self._parts.fetcher.declared.discard(consumer)
        self._parts.fetcher.add(consumer)

    def _join(self, consumer: Consumer) -> None:
        """Register on a queue, and receive the orders for this worker there."""
        queue = consumer.queue
        self._pushes[consumer] = [
            engine_of(queue).pushes.follow("told", partial(self.membership.told, queue)),
            self._parts.cancellations.start(queue),
        ]
        registering = self._register(consumer, registration_of(queue))
        self._registering[consumer] = asyncio.create_task(registering, name="leasequeue registering")
        self._parts.watch(self._registering[consumer])

    async def _register(self, consumer: Consumer, registration: Registration) -> None:
        """Send the first heartbeat from this event loop; the background thread sends the others.

        It takes the connection that leases; the background thread may still be opening its own. If it fails,
        the background thread tries again.
        """
        try:
            await self.membership.register(consumer.queue, registration)
        finally:
            self._parts.background.call_soon(partial(self.membership.add, consumer.queue, registration))

    async def _end_registering(self, *consumers: Consumer) -> None:
        """Return when no first heartbeat is in flight, which must not arrive after the registration ended."""
        waiting = [self._registering.pop(one) for one in consumers if one in self._registering]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=REGISTER_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _end_pushes(self, consumer: Consumer) -> None:
        for end in self._pushes.pop(consumer, ()):
            end()

    def _in_background(self, make: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self._parts.background.call(make))

    def _obey(self, what: str) -> None:
        if what == "stop":
            log.info("told to stop by another client")
            self._parts.stop()
        elif what in {"quiet", "resume"}:
            self.set_quiet(quiet=what == "quiet")

    def _about(self, queue: AsyncWorkQueue) -> Mapping[str, Any]:
        """Return what the worker says of itself; called in background threads."""
        now, clock = time.monotonic(), time.time()
        work = [*self._parts.executor.work.items()]
        ours = [one for handler, one in work if handler.consumer.queue is queue]
        active = [*self._parts.executor.running.values()]
        running = [run for run in active if run.handler.consumer.queue is queue]
        running.sort(key=lambda run: run.began or now)
        return {
            **self._facts,
            "queues": [one.name for one in [*self.served]][:MAX_NAMED],
            "quiet": self._parts.fetcher.quiet,
            "runs": self._parts.executor.finished,
            "run_seconds": round(sum(one.seconds for _, one in work), 6),
            "items": sum(one.items for one in ours),
            "item_seconds": round(sum(one.seconds for one in ours), 6),
            "item_squares": round(sum(one.squares for one in ours), 9),
            "active": len(active),
            "failures": sum(one.counts["failed"] for one in [*self._parts.acknowledgers.values()]),
            "running": [
                [
                    run.lease.id[:MAX_ID],
                    run.handler.name,
                    round((clock - (now - (run.began or now))) * 1000),
                ]
                for run in running[:MAX_NAMED]
            ],
            "at": round(clock * 1000),
        }

    def _forgotten(self, queue: AsyncWorkQueue) -> None:
        """Learn which leases are left, as the server has lost data; called in the background thread."""
        self._parts.renewer.renew_soon()
        if consumer := self.served.get(queue):
            self._loop.call_soon_threadsafe(self._declare_again, consumer)

    def _failed(self, queue: AsyncWorkQueue, session: str) -> None:
        """Stop the runs of a queue, and begin again under another session than the one that has failed."""
        consumer = next(one for one in self.consumers if one.queue is queue)
        leases = self._lose_all(consumer)
        # At once: another worker that shares the session may be the first to replace it.
        call = self._parts.fetcher.drop(consumer)
        self._registering.pop(consumer, None)
        self._in_task(self._begin_again(consumer, session, leases, call), "leasequeue begin again")

    def _declare_again(self, consumer: Consumer) -> None:
        """Declare the limits of a queue again. If that fails now, it is done before the next lease."""
        self._parts.fetcher.declared.discard(consumer)

        async def declare() -> None:
            with contextlib.suppress(LeasequeueError):
                await self._parts.fetcher.declare(consumer)

        self._in_task(declare(), "leasequeue declare again")

    def _in_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do some work in a task that ends with the worker."""
        if self._ending:
            work.close()
            return
        task = asyncio.create_task(work, name=name)
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        self._parts.watch(task)

    def _make_facts(self) -> dict[str, Any]:
        """Return what the worker says of itself that does not change."""
        return {
            "name": self._name,
            "worker": engine_of(self.consumers[0].queue).registry.new_worker_id() if self.consumers else "",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "versions": {
                "leasequeue": importlib.metadata.version("leasequeue"),
                "python": platform.python_version(),
                "format": str(FORMAT),
            },
            "started": round(time.time() * 1000),
            "concurrency": self._concurrency,
        }

    def _lose_all(self, consumer: Consumer) -> list[Lease]:
        """Stop all runs of a queue, and return the leases of those that have no outcome yet."""
        renewer = self._parts.renewer
        leases: list[Lease] = []
        for run in renewer.pop_of(consumer):
            leases += run.leases
            renewer.remove(run)
        for run in renewer.held_of(consumer):
            if not (run.outcomes or run.lost):
                leases += run.leases
            for lease in run.leases:
                run.lose(lease)
        return leases

    async def _begin_again(
        self, consumer: Consumer, failed: str, leases: list[Lease], call: asyncio.Task[None] | None
    ) -> None:
        """Serve a queue under another session than the one that has failed, which held these leases."""
        if consumer.queue not in self.served:
            return  # if it is started later, that session has failed again
        async with self._changing[consumer]:
            if consumer.queue not in self.served:
                return
            if call is not None:
                await asyncio.wait([call])
            await self._parts.fetcher.remove(consumer)  # which was just being started
            leases += self._lose_all(consumer)  # what came in between
            self._end_pushes(consumer)
            try:
                # Unless another worker has, with which this one shares the queue object.
                if consumer.queue.session == failed:
                    await engines_of(consumer.queue).replace_session()
                session = consumer.queue.session
                await self._parts.background.assist(consumer)
                self._parts.background.call(
                    partial(self.membership.return_items, consumer.queue, failed, leases)
                )
            except (QueueClosed, WorkerNotRunning):
                return  # the worker ends
            await self._join_and_fetch(consumer)
            log.info("working on %s again, as %s", consumer.queue.name, session)
