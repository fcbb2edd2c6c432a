"""The connections by which other workers may know that this process lives. They are checked, or not named."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.errors import LeasequeueError
from leasequeue.log import Log
from leasequeue.queue.internals import engines, running_engine
from leasequeue.retry import Backoff
from leasequeue.scripting.presence import CannotAsk, present

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.scripting.session import OpenedConnection, Session

#: The connections are checked again after so many seconds, and when one of them has changed.
CHECK_AGAIN_SECONDS = 4.0
#: A worker that lost all its connections so often in so many seconds, while the server went on, is behind
#: something that cuts connections: peers must not go by them.
CUTS, CUTS_SECONDS = 3, 60.0
#: How often to ask again when connections have changed meanwhile, or one seems to be missing.
TRIES, TRY_SECONDS = 5, 0.1
#: While the server is away, it is asked again after these pauses (s): peers wait for `GONE_SECONDS`.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5

log = Log("leasequeue.worker")


class Vouched(NamedTuple):
    """The connections of a worker on one server.

    If all of them are gone while that server runs, and the worker has registered no others, it is dead.
    """

    #: Their ids; none if they cannot be checked.
    connections: tuple[int, ...]
    #: The run id of the server.
    server: str


NOT_CHECKABLE = Vouched((), "")


class OwnConnections:
    """Checks the connections of this worker; runs in its background thread.

    The ids can be trusted if the server lists them, under the names that they were given, when it is asked
    over a connection of ours. This fails behind a proxy that shares connections between clients, renames or
    replaces them, if the access rules forbid CLIENT, and where two connections lead to two servers. Then, and
    behind a proxy that often cuts connections, the worker names none: its leases decide.

    Args:
        on_change: Called in the event loop of the background thread when the worker is to register again,
            because it has other connections.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._watched: dict[Session, None] = {}
        self._states: dict[Session, _State] = {}
        self._off: str | None = None

    @property
    def off(self) -> str | None:
        """Why other workers must not go by the connections of this one; None: they may."""
        return self._off

    def vouched(self, queue: AsyncWorkQueue) -> Vouched:
        """Return what to register for a queue; callable in the background thread."""
        engine = running_engine(queue)
        state = self._states.get(engine.session) if engine is not None else None
        return NOT_CHECKABLE if state is None or self._off is not None else state.vouched

    def cut_since(self, queue: AsyncWorkQueue) -> float | None:
        """Return since when the server has had no connection of those that are registered for a queue.

        By `time.monotonic()`; None: there is one, or this process has given one up, which the server may
        still have. Callable in the background thread.
        """
        engine = running_engine(queue)
        return None if engine is None else _cut_since(_same(queue, engine))

    def switch_off(self, reason: str) -> None:
        """Name no connections any more, until the worker starts anew."""
        if self._off is None:
            self._off = reason
            log.warning(
                "other workers cannot see whether this process lives: %s. If it dies, its items return when "
                "their leases expire",
                reason,
            )
            self._on_change()

    async def run(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Check the connections whenever they have changed, and now and then, until cancelled.

        Args:
            queues: The queues of the worker; they may change meanwhile.
        """
        backoff = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        try:
            while self._off is None:
                self._woken.clear()
                if not await self.check([*queues]):
                    await backoff.wait()
                    continue
                backoff = Backoff(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_AGAIN_SECONDS):
                        await self._woken.wait()
            await asyncio.Event().wait()
        finally:
            self.close()

    async def check(self, queues: Sequence[AsyncWorkQueue]) -> bool:
        """Check the connections of some queues that have not been checked since they changed.

        Returns:
            Whether all servers could be asked.
        """
        self._loop = asyncio.get_running_loop()
        # The sessions by the one of this event loop that acts for them, and asks for all of them.
        ours: dict[Session, dict[Session, None]] = {}
        for queue in queues:
            engine = running_engine(queue)
            if engine is not None:
                ours.setdefault(engine.session, {}).update(dict.fromkeys(_same(queue, engine)))
        for session in [session for session in self._states if session not in ours]:
            del self._states[session]
        self._watch({one: None for same in ours.values() for one in same})
        checks = [self._check(session, [*same]) for session, same in ours.items()]
        return all(await asyncio.gather(*checks))

    async def _check(self, session: Session, same: Sequence[Session]) -> bool:
        state = self._states.setdefault(session, _State())
        state.sessions = same
        async with state.checking:  # what another call is about to find out is waited for
            return await self._check_state(state, session, same)

    async def _check_state(self, state: _State, session: Session, same: Sequence[Session]) -> bool:
        if self._off is not None or not state.stale:
            return True
        before = state.vouched
        try:
            state.vouched = await state.check(session, same)
        except CannotAsk as error:
            self.switch_off(str(error))
            return True
        except LeasequeueError as error:
            log.debug("the connections cannot be checked now: %s", error)
            return False
        if state.vouched != before:
            self._on_change()
        return True

    def close(self) -> None:
        """Watch no connections any more."""
        self._watch({})

    def _watch(self, sessions: dict[Session, None]) -> None:
        """Be notified when the connections of these sessions change, and of no others."""
        before, self._watched = self._watched, sessions
        for session in before.keys() - sessions.keys():
            session.unwatch_connections(self._changed)
        for session in sessions.keys() - before.keys():
            session.watch_connections(self._changed)

    def _changed(self) -> None:
        """Check again; called in the event loops of the sessions."""
        for state in [*self._states.values()]:
            state.checked_at = None
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the thread has just ended
                self._loop.call_soon_threadsafe(self._check_soon)

    def _check_soon(self) -> None:
        self._woken.set()
        if any(_cut_since(state.sessions) is not None for state in self._states.values()):
            self._on_change()  # a heartbeat finds out whether it is back in time


class _State:
    """What is known of the connections that share a session of the background thread."""

    def __init__(self) -> None:
        self.vouched = NOT_CHECKABLE
        #: The sessions that have them, in all event loops.
        self.sessions: Sequence[Session] = ()
        self.checking = asyncio.Lock()
        self.checked_at: float | None = None
        self._cuts: deque[float] = deque(maxlen=CUTS)

    @property
    def stale(self) -> bool:
        """Whether to check again."""
        return self.checked_at is None or time.monotonic() - self.checked_at > CHECK_AGAIN_SECONDS

    async def check(self, session: Session, same: Sequence[Session]) -> Vouched:
        """Ask the server for the connections, and compare them with ours.

        Args:
            session: Asks the server.
            same: All sessions of this id, in all event loops.

        Raises:
            CannotAsk: If they cannot be trusted.
            ServerError: If the server cannot be asked now.
        """
        wrong = ""
        for _ in range(TRIES):
            self.checked_at = time.monotonic()
            before = _held(same)
            if session.slot is not None:
                _gather(same, before)
            ids = [one.id for one in before if one.id]
            seen = await present(session, ids or [1], identify=True)  # some servers refuse 0
            held = _held(same)
            if held == before and held:
                moving = len({one.address for one in held}) > 1 and session.slot is not None
                wrong = "" if moving else _why_untrusted(held, seen.names)
                if not (wrong or moving):
                    return self._vouch(tuple(sorted(one.id or 0 for one in held)), seen.server or "")
            await asyncio.sleep(TRY_SECONDS)  # a connection may be opening, or about to be noticed as closed
        if wrong:
            raise CannotAsk(wrong)
        self.checked_at = None
        return NOT_CHECKABLE  # they change all the time; the next registration tries again

    def _vouch(self, connections: tuple[int, ...], server: str) -> Vouched:
        """Return the connections; count how often all of them were lost.

        Raises:
            CannotAsk: If that was too often.
        """
        before, now = self.vouched, time.monotonic()
        if before.server == server and not set(before.connections) & set(connections):
            self._cuts.append(now)
            if len(self._cuts) == CUTS and now - self._cuts[0] < CUTS_SECONDS:
                raise CannotAsk(
                    f"its connections were cut {CUTS} times in {now - self._cuts[0]:.0f} s, and the server "
                    "was not restarted"
                )
        return Vouched(connections, server)


def _same(queue: AsyncWorkQueue, engine: Engine) -> list[Session]:
    """Return the sessions that share the id of an engine of the background thread.

    Of those that act for it, only our own: another worker that shares it comes and goes.
    """
    return [
        one.session
        for one in engines(queue)
        if one.session.id == engine.session.id and (one is engine or not one.session.adopted)
    ]


def _cut_since(sessions: Sequence[Session]) -> float | None:
    """Return since when the other side has closed all lasting connections; None: it has not."""
    ends = [one.connection.cut_at for session in sessions for one in session.last_connections]
    cuts = [at for at in ends if at is not None]
    return max(cuts) if cuts and len(cuts) == len(ends) else None


def _held(sessions: Sequence[Session]) -> list[OpenedConnection]:
    """Return the lasting connections that the server has named."""
    opened = [one for session in sessions for one in session.connections]
    return [one for one in opened if one.lasting and one.answered]


def _gather(sessions: Sequence[Session], held: Sequence[OpenedConnection]) -> None:
    """Have connections replaced that lead to a node of the cluster which the queue has left.

    The last one leads to the right node, as it was looked up; others notice when they are used.
    """
    last = max(held, key=lambda one: one.since, default=None)
    for session in sessions:
        if last and any(one.lasting and one.address != last.address for one in session.connections):
            with contextlib.suppress(RuntimeError):  # its event loop has just ended
                session.loop.call_soon_threadsafe(session.lead_to, last.address)


def _why_untrusted(held: Sequence[OpenedConnection], names: Mapping[int, str]) -> str:
    """Say what is wrong with the server's answer; empty if nothing is."""
    if any(one.id is None for one in held):
        return "the server does not say which connections are ours"
    if len({one.id for one in held}) < len(held):
        return "several of its connections have the same id: a proxy shares them"
    for one in held:
        name = names.get(one.id or 0)
        if name is None:
            return "the server that was asked does not have its connections"
        if name != one.name:
            return f"its connections have other names than they were given: {name!r}"
    return ""
