"""The registration of a session on a queue, which all workers share that serve one queue object."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from leasequeue.errors import QueueClosed
from leasequeue.queue.internals import running_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.handler import Consumer

#: How many runs a registration names.
MAX_NAMED = 100
#: What is added up of the workers that share a registration.
SUMMED = (
    *("concurrency", "active", "runs", "failures", "run_seconds"),
    *("items", "item_seconds", "item_squares"),
)


class Owner(Protocol):
    """A worker that is registered."""

    def about(self, consumer: Consumer) -> Mapping[str, Any]:
        """Return what the worker says of itself on a queue, without its name and what is permanent of it.

        It is called in the background threads of all workers that share the registration.
        """
        ...

    def told(self, what: str) -> None:
        """Do what the worker was told: `quiet`, `resume` or `stop`; called in the background thread."""
        ...

    def cut_since(self, consumer: Consumer) -> float | None:
        """Return since when the server has had none of the registered connections; None: it has some.

        It is called in the background thread.
        """
        ...

    def forgotten(self, consumer: Consumer) -> None:
        """Learn which leases are left, as the server has lost data; called in the background thread."""
        ...

    def failed(self, consumer: Consumer, session: str, why: str) -> None:
        """Treat the worker as failed on a queue: stop its runs, and begin anew under another session.

        It is called in the main event loop, for all workers of the session in the same turn.
        """
        ...


@dataclass(eq=False)
class Member:
    """The part of one worker in a registration. The times are those of `time.monotonic()`."""

    owner: Owner
    consumer: Consumer
    registration: Registration
    #: After how long without a heartbeat the worker is dead, in seconds; infinite: never.
    dead_after: float
    #: After how long without a connection it is, in seconds; infinite: never.
    gone_after: float
    #: Has the next heartbeat sent at once; callable from any thread.
    beat_soon: Callable[[], None]
    #: What it was told last.
    told: str = ""
    #: Since when no heartbeat has failed.
    steady_since: float | None = None
    due: float = 0.0
    #: Held while a heartbeat is in flight, which must not arrive after the end of the registration.
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)


class Registration:
    """The registration of a session on a queue.

    The session holds the leases of all workers that serve the queue object, so that it can only be failed as
    a whole: each of them refreshes the one registration, and the last that leaves ends it. Made by
    `registration_of`; any thread may use it.

    Attributes:
        session: The session.
        registered: Whether the server has accepted a heartbeat, and nothing has ended the registration.
        refreshed_at: When the last accepted heartbeat was sent, by `time.monotonic()`.
        failed: Why the session has failed; empty: it has not.
        named: Whether the last heartbeat named connections, by which others may see that it is dead.
        has_peers: Whether there are other workers, as was seen last.
    """

    def __init__(self, session: str) -> None:
        self.session = session
        self.registered = False
        self.refreshed_at = 0.0
        self.failed = ""
        self.named = False
        self.has_peers = False
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        #: Those that share it, the first one first: under its name they are registered.
        self._members: dict[Member, None] = {}
        #: Done when the server has ended the registration, after the last worker has left.
        self._ending: Future[None] | None = None

    @property
    def dead_after(self) -> float:
        """After how long without a heartbeat the session is dead, in seconds; infinite: never."""
        return max((one.dead_after for one in [*self._members]), default=math.inf)

    @property
    def gone_after(self) -> float:
        """After how long without a connection the session is dead, in seconds; infinite: never."""
        return max((one.gone_after for one in [*self._members]), default=math.inf)

    def join(self, member: Member) -> None:
        """Share it from now on."""
        with self._lock:
            self._members[member] = None
            failed = self.failed
        if failed:
            self._tell([member], failed)

    async def ended(self) -> None:
        """Wait until it is not being ended any more."""
        ending = self._ending
        if ending is not None:
            await asyncio.wait([asyncio.wrap_future(ending)])

    def leave(self, member: Member) -> Future[None] | None:
        """Share it no more.

        Returns:
            None if others share it. Otherwise the caller ends the registration, and then sets the result.
        """
        with self._lock:
            self._members.pop(member, None)
            others = [*self._members]
            if not others and not self.failed:
                self.registered = False
                self._ending = Future()
                return self._ending
        for one in others[:1]:
            one.beat_soon()  # it is registered under that name from now on
        return None

    def forget(self, member: Member) -> None:
        """Share it no more, and leave it to end by itself."""
        with self._lock:
            self._members.pop(member, None)

    @property
    def seen(self) -> bool:
        """Whether another worker may see by its connections that it is dead."""
        return self.named and self.has_peers

    def accepted(self, sent_at: float, *, named: bool, has_peers: bool) -> None:
        """Note that the server has accepted a heartbeat."""
        self.registered = True
        self.named, self.has_peers = named, has_peers
        self.refreshed_at = max(self.refreshed_at, sent_at)

    def fail(self, why: str) -> None:
        """Treat all workers that share it as failed, once."""
        with self._lock:
            if self.failed:
                return
            self.failed = why
            members = [*self._members]
        self._tell(members, why)

    def about(self, member: Member) -> dict[str, Any]:
        """Return what to register, by this member: it can only check its own connections."""
        said = {one: one.owner.about(one.consumer) for one in [*self._members, member]}
        first, *others = said.values()
        found = dict(first)
        for one in others:
            for what in SUMMED:
                found[what] += one[what]
            found["quiet"] = found["quiet"] and one["quiet"]
            found["running"] = [*found["running"], *one["running"]][:MAX_NAMED]
        return {**found, **{what: said[member][what] for what in ("connections", "server")}}

    def _tell(self, members: list[Member], why: str) -> None:
        def tell() -> None:
            for one in members:
                one.owner.failed(one.consumer, self.session, why)

        with contextlib.suppress(RuntimeError):  # the event loop has just been closed
            self._loop.call_soon_threadsafe(tell)


_registrations: WeakKeyDictionary[Engine, Registration] = WeakKeyDictionary()


def registration_of(queue: AsyncWorkQueue) -> Registration:
    """Return the registration of the session of the running event loop, which holds the leases.

    Raises:
        QueueClosed: If the queue object is closed.
    """
    session = queue.session  # which makes the engine
    engine = running_engine(queue)
    if engine is None:
        raise QueueClosed(queue.name)
    if engine not in _registrations:
        _registrations[engine] = Registration(session)
    return _registrations[engine]
