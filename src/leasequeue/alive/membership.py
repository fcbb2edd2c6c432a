"""Keep a worker registered on its queues, fail workers that are dead, and notice that this one was failed.

A worker is registered under the session that holds its leases. Workers that serve one queue object share that
session, and so one registration: it can only be failed as a whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from leasequeue.alive.connections import OwnConnections
from leasequeue.alive.ring import PeerWatch
from leasequeue.errors import LeasequeueError, QueueClosed
from leasequeue.errors.log import Log
from leasequeue.queue.queue import engine_of, engines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.registry import Beat

#: A heartbeat is sent after so long, as a share of the time after which the worker is dead.
BEAT_AFTER = 1 / 3
#: For a permanent worker, after so many seconds.
PERMANENT_BEAT = 5.0
#: Heartbeats that are due within this share of the time between two are sent together, with one write.
TOGETHER = 1 / 20
#: How long to wait before another try after an error (s).
RETRY_SECONDS = 1.0
#: How long to wait, at most, before a dead worker is failed, so that not all of its peers do it (s).
JITTER_SECONDS = 0.5
#: How long to wait after a message that an order was given, but there was none (s).
VAIN_SECONDS = 0.1
#: The least time for a heartbeat (s).
SHORTEST_TRY = 0.05
#: How long leaving may take (s).
LEAVE_SECONDS = 1.0
#: How many runs a registration names.
MAX_NAMED = 100
#: What is added up of the workers that share a registration.
SUMMED = (
    *("concurrency", "active", "runs", "failures", "run_seconds"),
    *("items", "item_seconds", "item_squares"),
)

#: Why a worker has failed whose heartbeat was refused.
FAILED_BY_ANOTHER = "another client has failed it"

log = Log("leasequeue.worker")


@dataclass(eq=False)
class Registrant:
    """The part of one worker in a registration. The times are those of `time.monotonic()`."""

    membership: Membership
    queue: AsyncWorkQueue
    registration: Registration
    #: The number of the last order.
    order: int = 0
    #: How many messages say that there is a later one.
    claims: int = 0
    #: Since when no heartbeat has failed.
    steady_since: float | None = None
    #: Set when the next heartbeat is to be sent at once.
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    beating: asyncio.Task[None] | None = None
    #: Fails others that are dead.
    failing: asyncio.Task[None] | None = None


class Registration:
    """The registration of a session on a queue.

    Each worker that shares it refreshes it, and the last that leaves ends it. Made by `registration_of`; any
    thread may use it.

    Attributes:
        registered: Whether the server has accepted a heartbeat, and nothing has ended the registration.
        refreshed_at: When the last accepted heartbeat was sent, by `time.monotonic()`.
        failed: Why the session has failed; empty: it has not.
        named: Whether the last heartbeat named connections, by which others may see that it is dead.
        has_peers: Whether there are other workers, as was seen last.
        workers: How many workers the queue had at the last accepted heartbeat, with this one.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self.registered = self.named = self.has_peers = False
        self.workers = 1
        self.refreshed_at = 0.0
        self.failed = ""
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        #: Those that share it, the first one first: under its name they are registered.
        self._members: dict[Registrant, None] = {}
        #: Done when the server has ended the registration, after the last worker has left.
        self._ending: Future[None] | None = None

    @property
    def dead_after(self) -> float:
        """After how long without a heartbeat the session is dead, in seconds; infinite: never."""
        return max((one.membership.dead_after for one in [*self._members]), default=math.inf)

    @property
    def gone_after(self) -> float:
        """After how long without a connection the session is dead, in seconds; infinite: never."""
        return max((one.membership.gone_after for one in [*self._members]), default=math.inf)

    def join(self, member: Registrant) -> None:
        """Share it from now on."""
        with self._lock:
            self._members[member] = None
            failed = self.failed
        if failed:
            self._tell([member])

    async def ended(self) -> None:
        """Wait until it is not being ended any more."""
        if self._ending is not None:
            await asyncio.wait([asyncio.wrap_future(self._ending)])

    def leave(self, member: Registrant) -> Future[None] | None:
        """Share it no more.

        Return None if others share it. Otherwise the caller ends the registration, and then sets the result.
        """
        with self._lock:
            self._members.pop(member, None)
            others = [*self._members]
            if not others and not self.failed:
                self.registered = False
                self._ending = Future()
                return self._ending
        for one in others[:1]:
            one.membership.beat_soon()  # it is registered under that name from now on
        return None

    def forget(self, member: Registrant) -> None:
        """Share it no more, and leave it to end by itself."""
        with self._lock:
            self._members.pop(member, None)

    def accepted(self, sent_at: float, *, named: bool, workers: int) -> None:
        """Note that the server has accepted a heartbeat."""
        self.registered = True
        self.named, self.has_peers, self.workers = named, workers > 1, workers
        self.refreshed_at = max(self.refreshed_at, sent_at)

    def fail(self, why: str) -> None:
        """Treat all workers that share it as failed, once, in the same turn of the main event loop."""
        with self._lock:
            if self.failed:
                return
            self.failed = why
            members = [*self._members]
        self._tell(members)

    def _tell(self, members: list[Registrant]) -> None:
        def tell() -> None:
            for one in members:
                one.membership.has_failed(one)

        with contextlib.suppress(RuntimeError):  # the event loop has just been closed
            self._loop.call_soon_threadsafe(tell)

    def about(self, member: Registrant) -> dict[str, Any]:
        """Return what all who share it say of themselves, the first one first."""
        first, *others = [one.membership.about(one.queue) for one in dict.fromkeys((*self._members, member))]
        found = dict(first)
        for one in others:
            for what in SUMMED:
                found[what] += one[what]
            found["quiet"] = found["quiet"] and one["quiet"]
            found["running"] = [*found["running"], *one["running"]][:MAX_NAMED]
        return found


_registrations: WeakKeyDictionary[Engine, Registration] = WeakKeyDictionary()


def registration_of(queue: AsyncWorkQueue) -> Registration:
    """Return the registration of the session of the running event loop, which holds the leases."""
    session = queue.session  # which makes the engine
    engine = engines_of(queue).running
    if engine is None:
        raise QueueClosed(queue.name)
    if engine not in _registrations:
        _registrations[engine] = Registration(session)
    return _registrations[engine]


class Membership:
    """Registers a worker on its queues; runs in the background thread.

    Args:
        dead_after: After how many seconds without a heartbeat other workers may fail this one, in seconds;
            None: never.
        gone_after: After how many seconds without a connection they may, and this one stops its runs; None:
            never.
        supervises: Whether to look after other workers, and to fail them.
        about: Returns what the worker says of itself on a queue, without its connections. It is called in the
            background threads of all workers that share the registration.
        on_order: Called with an order, `quiet`, `resume` or `stop`, in the background thread.
        on_forgotten: Called in the background thread when a server has lost the registration on a queue: the
            worker has to learn which leases are left.
        on_failed: Called in the main event loop when the worker was failed on a queue, with the session: it
            stops its runs there, and begins again under another one.
    """

    def __init__(
        self,
        *,
        dead_after: float | None,
        gone_after: float | None,
        supervises: bool,
        about: Callable[[AsyncWorkQueue], Mapping[str, Any]],
        on_order: Callable[[str], object],
        on_forgotten: Callable[[AsyncWorkQueue], None],
        on_failed: Callable[[AsyncWorkQueue, str], None],
    ) -> None:
        self.about = about
        self.dead_after = math.inf if dead_after is None else dead_after
        self.gone_after = math.inf if gone_after is None else gone_after
        self._on_order, self._on_forgotten, self._on_failed = on_order, on_forgotten, on_failed
        self._every = PERMANENT_BEAT if dead_after is None else dead_after * BEAT_AFTER
        #: How long heartbeats must have succeeded before this worker fails others (s).
        self._steady_after = PERMANENT_BEAT / BEAT_AFTER if dead_after is None else dead_after
        self._members: dict[AsyncWorkQueue, Registrant] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The tasks of the members, until `run` ends.
        self._tasks: asyncio.TaskGroup | None = None
        self._own = OwnConnections(self._beat_all)
        self._peers = PeerWatch(self._own, self._peers_read) if supervises else None

    def tasks(self, queues: Collection[AsyncWorkQueue]) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what runs in the background thread, for queues that may change."""
        watches = [one for one in (self._own, self._peers) if one is not None]
        return [self.run, *(partial(one.run, queues) for one in watches)]

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for member in self._members.values():
                    member.beating = self._tasks.create_task(self._keep(member))
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    async def _keep(self, member: Registrant) -> None:
        """Send the heartbeats of a member, for as long as it is one; a silent server delays no other."""
        while self._members.get(member.queue) is member:
            member.woken.clear()
            await member.registration.ended()
            pause = await self._beat(member)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await member.woken.wait()

    def beat_soon(self) -> None:
        """Send the next heartbeats now, since what they say has changed; callable from any thread."""
        self._call_soon(self._beat_all)

    def _beat_all(self) -> None:
        for member in self._members.values():
            member.woken.set()

    def told(self, queue: AsyncWorkQueue, message: bytes) -> None:
        """Handle the message that the worker was given the order of this number on a queue.

        Whoever publishes it, only what the reply to a heartbeat says is obeyed. Callable from any thread.
        """
        self._call_soon(partial(self._told, queue, message))

    def _told(self, queue: AsyncWorkQueue, message: bytes) -> None:
        member = self._members.get(queue)
        if not (message.isdigit() and len(message) < 16):
            engines_of(queue).unverified.add()
        elif member is not None and int(message) > member.order:
            member.claims += 1
            member.woken.set()

    def _call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the background thread, unless that has ended."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def _peers_read(self, queue: AsyncWorkQueue, is_registered: bool, has_peers: bool) -> None:  # noqa: FBT001 - see `PeerWatch`
        if not is_registered:
            self._beat_all()
        if member := self._members.get(queue):
            member.registration.has_peers = has_peers

    def workers(self, queue: AsyncWorkQueue) -> int:
        """Return how many workers a queue had at the last heartbeat, with this one; 1: unknown."""
        member = self._members.get(queue)
        return 1 if member is None else member.registration.workers

    # -------------------------------------------------------------------------- joining and leaving

    async def register(self, queue: AsyncWorkQueue, registration: Registration) -> None:
        """Send the first heartbeat, from the main event loop, before `add`; it names no connections yet."""
        await registration.ended()
        if registration.registered:  # by another worker that shares it
            return
        sent_at = time.monotonic()
        facts = {**self.about(queue), "connections": [], "server": "", **_times(self.dead_after)}
        try:
            reply = await engine_of(queue).registry.beat(facts, alive_ms=facts["alive_ms"], first=True)
        except LeasequeueError as error:
            log.debug("%s does not know this worker yet: %s", queue.name, error)
        else:
            if reply.accepted:
                registration.accepted(sent_at, named=False, workers=reply.workers)

    def add(self, queue: AsyncWorkQueue, registration: Registration) -> None:
        """Send heartbeats for a queue from now on; called in the background thread."""
        member = self._members[queue] = Registrant(self, queue, registration)
        registration.join(member)
        if self._tasks is not None:
            member.beating = self._tasks.create_task(self._keep(member))

    async def leave(self, queue: AsyncWorkQueue) -> None:
        """End the registration on a queue, unless others share it.

        If the server is away, it ends by itself.
        """
        member = self._members.pop(queue, None)
        if member is None:
            return
        member.woken.set()
        ending = None
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                if member.beating is not None:
                    await asyncio.wait([member.beating])  # a heartbeat must not arrive after the end
                ending = member.registration.leave(member)
                if ending is not None:
                    await engine_of(queue).registry.leave()
        except (LeasequeueError, TimeoutError) as error:
            log.debug("the registration on %s was not ended: %s", queue.name, error)
        finally:
            member.registration.forget(member)
            if ending is not None:
                ending.set_result(None)

    async def leave_all(self) -> None:
        """End all registrations that no other worker shares."""
        await asyncio.gather(*map(self.leave, [*self._members]))

    def forget_all(self) -> None:
        """Leave the registrations to end by themselves, after the background thread has ended."""
        while self._members:
            _, member = self._members.popitem()
            member.registration.forget(member)

    # -------------------------------------------------------------------------- heartbeats

    async def _beat(self, member: Registrant) -> float:
        """Send a heartbeat, if the registration still holds; return when to send the next one (in s)."""
        queue, registration = member.queue, member.registration
        if registration.failed:  # another worker has noticed it
            self._drop(member)
            return 0.0
        sent_at = time.monotonic()
        claims, member.claims = member.claims, 0
        mark, times = self._own.mark(queue), _times(registration.dead_after)
        alive_ms, gone_after = times["alive_ms"], registration.gone_after
        facts = {
            **registration.about(member),
            "connections": mark.connections,
            "server": mark.server,
            **times,
        }
        if alive_ms is None or gone_after == math.inf:
            facts["connections"] = []  # nor is it failed because these are gone
        else:
            facts["gone_after"] = gone_after
        left = None
        if alive_ms is not None and registration.registered:
            left = max(SHORTEST_TRY, self._dead_at(member) - sent_at)
        try:
            async with asyncio.timeout(left):
                first = not registration.registered
                reply = await engine_of(queue).registry.beat(facts, alive_ms=alive_ms, first=first)
        except (LeasequeueError, TimeoutError) as error:
            return self._missed(member, error)
        before = member.order
        if self._members.get(queue) is not member or not self._answered(
            member, reply, sent_at, named=bool(facts["connections"])
        ):
            return 0.0
        if claims and member.order == before:
            engines_of(queue).unverified.add(claims)
            await asyncio.sleep(VAIN_SECONDS)
        # Not exactly, so that workers that were started together do not beat together.
        due = sent_at + self._every * random.uniform(0.9, 1.0)  # noqa: S311 - no secret
        return due - due % (self._every * TOGETHER) - time.monotonic()

    def _answered(self, member: Registrant, reply: Beat, sent_at: float, *, named: bool) -> bool:
        """Do what the reply to a heartbeat says; return whether the registration holds."""
        if reply.failed:
            self._fail(member, FAILED_BY_ANOTHER)
            return False
        if not reply.accepted:
            # The server was emptied, or restarted without what it had. The runs continue: each renews its
            # lease at once, and those end whose items are gone or leased again.
            log.warning(
                "the registration on %s was lost with the server's data: registering again", member.queue.name
            )
            member.registration.registered = False
            self._on_forgotten(member.queue)
            return False
        member.registration.accepted(sent_at, named=named, workers=reply.workers)
        self._own.workers = reply.workers
        if member.steady_since is None:
            member.steady_since = sent_at
        if reply.order_number != member.order:
            member.order = reply.order_number
            self._on_order(reply.order)
        self._supervise(member, reply.expired)
        return True

    def _missed(self, member: Registrant, error: Exception) -> float:
        """Note that a heartbeat has failed; return when to try again (in s)."""
        now, registration = time.monotonic(), member.registration
        member.steady_since = None
        pause = min(RETRY_SECONDS, self._every)
        if self._members.get(member.queue) is not member or not registration.registered:
            return pause
        silent, dead_at = now - registration.refreshed_at, self._dead_at(member)
        log.debug("no heartbeat on %s for %.1f s: %r", member.queue.name, silent, error)
        if silent >= registration.dead_after:
            self._fail(member, f"it could not refresh its registration for {silent:.1f} s")
        elif now >= dead_at:
            self._fail(
                member,
                f"it has had no connection for {registration.gone_after:.1f} s, so that other workers may "
                "take it for dead",
            )
        return min(pause, dead_at - now)

    def _dead_at(self, member: Registrant) -> float:
        """Return when other workers may fail this one, if nothing changes, by `time.monotonic()`."""
        registration = member.registration
        dead_at = registration.refreshed_at + registration.dead_after
        is_seen = registration.named and registration.has_peers
        cut_since = self._own.cut_since(member.queue) if is_seen else None
        if cut_since is None:
            return dead_at
        return min(dead_at, cut_since + registration.gone_after - SHORTEST_TRY)  # the last try lasts so long

    # -------------------------------------------------------------------------- failing

    def _fail(self, member: Registrant, why: str) -> None:
        self._drop(member)
        member.registration.fail(why)

    def _drop(self, member: Registrant) -> None:
        """Refresh a registration no more that has failed."""
        if self._members.get(member.queue) is member:
            del self._members[member.queue]

    def has_failed(self, member: Registrant) -> None:
        """Stop to work under a session that has failed; called in the main event loop."""
        why = member.registration.failed
        log.error("this worker has failed on %s: %s. It stops its runs", member.queue.name, why)
        if why == FAILED_BY_ANOTHER:
            reason = "another client has failed this worker, although it lives"
            self._call_soon(partial(self._own.switch_off, reason))
        self._on_failed(member.queue, member.registration.session)

    def _supervise(self, member: Registrant, expired: Sequence[str]) -> None:
        """Fail workers that are dead: without a leader and without a lock, since that can be done twice.

        After an outage of the server, all workers seem dead. So none is failed by a worker that has not
        reached the server for as long as it takes to be dead.
        """
        steady = time.monotonic() - (member.steady_since or 0.0)
        if self._peers is None or self._tasks is None or not expired or steady < self._steady_after:
            return
        if member.failing is None or member.failing.done():
            member.failing = self._tasks.create_task(self._fail_others(member, expired))

    async def _fail_others(self, member: Registrant, workers: Sequence[str]) -> None:
        queue = member.queue
        try:
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS))  # noqa: S311 - no secret
            returned = await engine_of(queue).registry.fail_many(dict.fromkeys(workers), expired=True)
        except LeasequeueError as error:
            log.debug("%d workers of %s could not be failed: %s", len(workers), queue.name, error)
            return
        for worker, count in returned.items():
            log.warning(
                "the worker %s of %s is dead: %d items return to the front", worker, queue.name, count
            )
        if returned:
            self._beat_all()  # the replies may name others

    async def return_items(self, queue: AsyncWorkQueue, session: str, leases: Sequence[Lease]) -> None:
        """Return what is left of an earlier session of this worker, however long the server is away.

        Some of the leases may have been taken after the session was failed, before this was noticed.
        """
        while True:
            try:
                await queue.release_many(leases)
                leases = ()
                await asyncio.sleep(RETRY_SECONDS)  # outcomes that wait to be sent go first
                await engine_of(queue).registry.fail(session)
            except QueueClosed:
                return
            except LeasequeueError as error:
                log.debug("the items of %s are not returned yet: %s", session, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


async def fail_sessions(queues: Iterable[AsyncWorkQueue], sessions: Sequence[tuple[str, str]]) -> None:
    """Fail the sessions of a process that is known to be dead.

    An error is logged, and the rest is not tried again here: peers fail the session when its registration
    has expired or its connections are gone, and at the latest its leases expire.
    """
    for queue, session in [(queue, one) for queue in queues for name, one in sessions if name == queue.name]:
        try:
            count = await engine_of(queue).registry.fail(session)
        except LeasequeueError as error:
            log.warning("the leases of a dead process on %s could not be ended: %s", queue.name, error)
            continue
        if count is not None:
            log.info("%d items of a dead process returned to %s", count, queue.name)


def _times(dead_after: float) -> dict[str, Any]:
    """Return how long a heartbeat holds: in ms, or until the worker leaves."""
    permanent = dead_after == math.inf
    return {"permanent": permanent, "alive_ms": None if permanent else round(dead_after * 1000)}
