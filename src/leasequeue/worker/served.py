"""The queues that a running worker serves, from start to stop. One concept, so it may be long."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import platform
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from leasequeue.errors import LeasequeueError, QueueClosed, WorkerNotRunning
from leasequeue.log import Log
from leasequeue.queue.internals import (
    new_worker_id,
    on_push,
    replace_session,
    stop_listening,
)
from leasequeue.worker.connections import OwnConnections
from leasequeue.worker.membership import FAILED_BY_ANOTHER, Membership
from leasequeue.worker.peers import PeerWatch, fail_sessions
from leasequeue.worker.registrations import MAX_NAMED, Owner, registration_of
from leasequeue.worker.run import Interruption

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.acknowledger import Acknowledger
    from leasequeue.worker.background import BackgroundThread, Task
    from leasequeue.worker.cancellations import Cancellations
    from leasequeue.worker.executor import Executor
    from leasequeue.worker.fetcher import Fetcher
    from leasequeue.worker.handler import Consumer
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.parking import Parking
    from leasequeue.worker.registrations import Registration

#: How often `stop_queue` looks for the ends of runs (s).
TICK = 0.02
#: How long the first lease waits, at most, until the worker is registered (s).
REGISTER_SECONDS = 1.0
#: How much of an item's id a worker says in its registration.
MAX_ID = 256

#: Is called with pairs of a queue and the session that holds its leases.
OnSessions: TypeAlias = "Callable[[Sequence[tuple[str, str]]], None]"

log = Log("leasequeue.worker")


class Parts(Protocol):
    """The parts of the worker that its queues need."""

    acknowledgers: dict[Consumer, Acknowledger]
    background: BackgroundThread
    cancellations: Cancellations
    executor: Executor
    fetcher: Fetcher
    parking: Parking
    renewer: LeaseRenewer

    def adopt(self, consumer: Consumer) -> None:
        """Prepare for the runs of a queue that is new."""
        ...

    def stop(self) -> None:
        """Stop the worker."""
        ...

    def watch(self, task: asyncio.Task[Any]) -> None:
        """See `Coordinator`."""
        ...


class ServedQueues(Owner):
    """Serves the queues of a worker.

    Attributes:
        consumers: All that the worker can serve.
        served: The queues that it serves now.
        membership: Its registrations.
        connections: Its connections, which it registers.
        on_sessions: Called before the first lease, and when a session has changed.

    Args:
        consumers: What it serves from the beginning.
        parts: The parts of the worker. They are complete when the first queue is joined.
        name: The worker's name.
        dead_after, gone_after: As for `Worker`, in seconds.
        supervises: Whether to look after other workers, and to fail them.
        concurrency: As for `Worker`.
    """

    def __init__(
        self,
        consumers: Iterable[Consumer],
        parts: Parts,
        *,
        name: str,
        dead_after: float | None,
        gone_after: float | None,
        supervises: bool,
        concurrency: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts = parts
        self._name = name
        self._concurrency = concurrency
        self.consumers = [*consumers]
        self.served: dict[AsyncWorkQueue, Consumer] = {one.queue: one for one in self.consumers}
        self.membership = Membership(
            self, dead_after=dead_after, gone_after=gone_after, supervises=supervises
        )
        self.connections = OwnConnections(self.membership.beat_soon)
        self._peers = PeerWatch(self.connections, self._peers_read) if supervises else None
        self.on_sessions: OnSessions = lambda _: None
        self._facts: dict[str, Any] = {}
        #: The tasks that register on a queue.
        self._registering: dict[Consumer, asyncio.Task[None]] = {}
        #: What ends the subscriptions of a queue.
        self._pushes: dict[Consumer, list[Callable[[], None]]] = {}
        #: The tasks that begin anew, or declare limits again.
        self._renewing: set[asyncio.Task[None]] = set()
        self._ending = False

    def tasks(self) -> list[Task]:
        """Return what runs in the background thread."""
        queues = self.served.keys()
        tasks: list[Task] = [self.membership.run, partial(self.connections.run, queues)]
        return tasks if self._peers is None else [*tasks, partial(self._peers.run, queues)]

    def join_all(self) -> None:
        """Register on all queues.

        Raises:
            QueueClosed: If one is closed.
        """
        self._facts = self._make_facts()
        for consumer in self.consumers:
            self._join(consumer)

    def announce(self) -> None:
        """Pass on the sessions of this worker; from then on it may be told to fail others.

        Raises:
            QueueClosed: If a queue is closed.
        """
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

        Until then, a queue may have been stopped, or have begun anew: then it is added to the fetcher apart.
        """
        first = {**self._registering}
        await self.registered()
        return [
            one
            for one, task in first.items()
            if self._registering.get(one) is task and self.served.get(one.queue) is one
        ]

    async def stop_changing(self) -> None:
        """Begin no queue anew any more, as the worker ends."""
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

    def consumer_of(self, name: str) -> Consumer | None:
        """Return what it can serve of this name of a queue."""
        return next((one for one in self.consumers if one.queue.name == name), None)

    async def start_queue(self, consumer: Consumer) -> None:
        """Serve a queue, which may be new, from now on."""
        if consumer.queue in self.served:
            return
        if consumer not in self.consumers:
            self.consumers.append(consumer)
            self._parts.adopt(consumer)
            self._parts.background.call_soon(partial(self._parts.renewer.add_handlers, consumer.all_handlers))
        self.served[consumer.queue] = consumer
        await self._parts.background.assist(consumer)
        self._join(consumer)
        self.on_sessions(self._sessions())
        await self.registered(consumer)
        if consumer.queue not in self.served:
            return  # it was stopped meanwhile
        self._parts.fetcher.add(consumer)
        log.info("working on %s, too", consumer.queue.name)

    async def stop_queue(self, consumer: Consumer, *, grace: float) -> None:
        """Fetch nothing more from a queue, and return when nothing of it is held here.

        Release what has not started. Give its runs this time to finish, in seconds; then interrupt them.
        """
        if self.served.pop(consumer.queue, None) is None:
            return
        await self._parts.fetcher.remove(consumer)
        await stop_listening(consumer.queue)
        waiting = self._parts.renewer.pop_of(consumer)
        await self._parts.parking.released()
        waiting += self._parts.renewer.pop_of(consumer)
        self._parts.acknowledgers[consumer].release(waiting)
        interrupt_at = self._loop.time() + grace
        while running := [run for run in self._parts.renewer.held_of(consumer) if run.task is not None]:
            if self._loop.time() >= interrupt_at:
                for run in running:
                    run.interrupt(Interruption.SHUTDOWN)
            await asyncio.sleep(TICK)
        await self._parts.acknowledgers[consumer].drain()
        self._end_pushes(consumer)
        await self._end_registering(consumer)
        await self._in_background(partial(self.membership.leave, consumer))
        log.info("no longer working on %s", consumer.queue.name)

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
            self._parts.background.call_soon(self.membership.beat_soon)

    @property
    def quiet(self) -> bool:
        """Whether it fetches nothing more."""
        return self._parts.fetcher.quiet

    def _join(self, consumer: Consumer) -> None:
        """Register on a queue, and receive what this worker is told there."""
        queue = consumer.queue
        self._pushes[consumer] = [
            *(on_push(queue, what, partial(self._pushed, what)) for what in ("quiet", "resume", "stop")),
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
            await self.membership.register(consumer, registration)
        finally:
            self._parts.background.call_soon(partial(self.membership.add, consumer, registration))

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

    def _peers_read(self, queue: AsyncWorkQueue, is_registered: bool, has_peers: bool) -> None:  # noqa: FBT001 - see `PeerWatch`
        if not is_registered:
            self.membership.beat_soon()
        if consumer := self.served.get(queue):
            self.membership.note_peers(consumer, has_peers=has_peers)

    def _in_background(self, make: Callable[[], Any]) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self._parts.background.call(make))

    def _pushed(self, what: str, _: bytes) -> None:
        self._obey(what)

    def _obey(self, what: str) -> None:
        """Do what the worker was told."""
        if what == "stop":
            log.info("told to stop by another client")
            self._parts.stop()
        elif what in {"quiet", "resume"}:
            self.set_quiet(quiet=what == "quiet")

    # ------------------------------------------------------------------ Owner

    def about(self, consumer: Consumer) -> Mapping[str, Any]:
        """See `Owner`."""
        now, clock = time.monotonic(), time.time()
        work = [*self._parts.executor.work.items()]
        ours = [one for handler, one in work if handler.consumer is consumer]
        active = [*self._parts.executor.running.values()]
        running = [run for run in active if run.handler.consumer is consumer]
        running.sort(key=lambda run: run.began or now)
        vouched = self.connections.vouched(consumer.queue)
        return {
            **self._facts,
            "queues": [queue.name for queue in [*self.served]][:MAX_NAMED],
            "connections": vouched.connections,
            "server": vouched.server,
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

    def told(self, what: str) -> None:
        """See `Owner`."""
        self._loop.call_soon_threadsafe(self._obey, what)

    def cut_since(self, consumer: Consumer) -> float | None:
        """See `Owner`."""
        return self.connections.cut_since(consumer.queue)

    def forgotten(self, consumer: Consumer) -> None:
        """See `Owner`."""
        self._parts.renewer.renew_soon()
        self._loop.call_soon_threadsafe(self._declare_again, consumer)

    def failed(self, consumer: Consumer, session: str, why: str) -> None:
        """See `Owner`."""
        log.error("this worker has failed on %s: %s. It stops its runs", consumer.queue.name, why)
        if why == FAILED_BY_ANOTHER:
            reason = "another client has failed this worker, although it lives"
            self._parts.background.call_soon(partial(self.connections.switch_off, reason))
        leases = self._lose_all(consumer)
        # At once: another worker that shares the session may be the first to replace it.
        call = self._parts.fetcher.drop(consumer)
        self._registering.pop(consumer, None)
        self._in_task(self._begin_anew(consumer, session, leases, call), "leasequeue begin anew")

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
            "worker": new_worker_id(self.consumers[0].queue) if self.consumers else "",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "versions": {
                "leasequeue": importlib.metadata.version("leasequeue"),
                "python": platform.python_version(),
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

    async def _begin_anew(
        self, consumer: Consumer, failed: str, leases: list[Lease], call: asyncio.Task[None] | None
    ) -> None:
        """Serve a queue under another session than the one that has failed, which held these leases."""
        if consumer.queue not in self.served:
            return
        if call is not None:
            await asyncio.wait([call])
        leases += self._lose_all(consumer)  # what came meanwhile
        self._end_pushes(consumer)
        try:
            # Unless another worker has, with which this one shares the queue object.
            if consumer.queue.session == failed:
                await replace_session(consumer.queue)
            session = consumer.queue.session
            await self._parts.background.assist(consumer)
            self._parts.background.call(partial(self.membership.return_items, consumer, failed, leases))
        except (QueueClosed, WorkerNotRunning):
            return  # the worker ends
        self._join(consumer)
        self.on_sessions(self._sessions())
        await self.registered(consumer)
        if consumer.queue not in self.served:
            return  # it was stopped meanwhile
        self._parts.fetcher.add(consumer)
        log.info("working on %s again, as %s", consumer.queue.name, session)
