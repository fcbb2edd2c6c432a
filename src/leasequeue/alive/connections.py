"""The connections that show that a process lives: they are there exactly as long as the process.

When a process dies, its system closes its connections, and the server notices within milliseconds. The ids of
connections begin again when a server starts, so that an id means something only together with the server's
run id. A process checks its own connections before it names them to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.queue.queue import engines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.wire.server import OpenedConnection, Route, Server, Servers

#: The connections are checked again after so many seconds, or so many for each worker, as Valkey reads all
#: connections to list some; and when one of them has changed.
CHECK_AGAIN_SECONDS, CHECK_AGAIN_PER_WORKER = 4.0, 0.02
#: A worker that lost all its connections so often in so many seconds, while the server ran, is behind
#: something that cuts connections: peers must not go by them.
CUTS, CUTS_SECONDS = 3, 60.0
#: How often to ask again when connections have changed since, or one seems to be missing.
TRIES, TRY_SECONDS = 5, 0.1
#: While the server is away, it is asked again after so long, or down to half of it (s): peers wait for
#: `GONE_SECONDS`, and not all processes ask at once.
AWAY_SECONDS = 0.4

_CONNECTION = re.compile(rb"\bid=(\d+) (?:.* )?name=(\S*)")
_RUN_ID = re.compile(rb"^run_id:(\w+)\r?$", re.MULTILINE)

log = Log("leasequeue.worker")


class CannotAsk(Exception):
    """The server, or a proxy before it, does not say which connections it has. It never leaves the room."""


class Presence(NamedTuple):
    """What a server has answered."""

    #: The connections that it has, of those asked for: id → name.
    names: Mapping[int, str]
    #: The run id of the server; empty if it was not asked for.
    server: str
    #: The number of subscribers of each channel that was asked for.
    subscribers: Mapping[bytes, int]


async def present(
    server: Server, ids: Iterable[int], *, identify: bool = False, channels: Sequence[bytes] = ()
) -> Presence:
    """Ask a server which of some connections it has; not if there are none.

    All answers are those of one server at one moment: they arrive over one connection. `identify` asks for
    the server's run id as well, and `channels` for the numbers of their subscribers. Raise CannotAsk if the
    access rules forbid it, or the answers are not those of a Redis server.
    """
    listing = [(b"CLIENT", b"LIST", b"ID", *(b"%d" % one for one in ids))]
    commands = [one for one in listing if len(one) > 3]
    if identify:
        commands.append((b"INFO", b"server"))
    if channels:
        commands.append((b"PUBSUB", b"NUMSUB", *channels))
    replies = await server.ask(*commands)
    for (command, *_), reply in zip(commands, replies, strict=True):
        if isinstance(reply, BaseException):
            [pong] = await server.ask((b"PING",))
            if isinstance(pong, BaseException):
                raise pong  # nothing can be asked now
            raise CannotAsk(f"{command.decode()} is refused: {reply}") from reply
    counts = _subscribers(replies.pop(), len(channels)) if channels else {}
    run_id = _run_id(replies.pop()) if identify else ""
    return Presence(_names(replies[0]) if replies else {}, run_id, counts)


def _names(listed: object) -> dict[int, str]:
    if not isinstance(listed, bytes):
        raise CannotAsk(f"CLIENT LIST is answered with {type(listed).__name__}")
    found = [_CONNECTION.search(line) for line in listed.splitlines() if line]
    names = {int(one[1]): one[2].decode(errors="replace") for one in found if one}
    if None in found:
        raise CannotAsk("CLIENT LIST is answered in an unknown form")
    return names


def _run_id(info: object) -> str:
    found = _RUN_ID.search(info) if isinstance(info, bytes) else None
    if found is None:
        raise CannotAsk("INFO does not name the server")
    return found[1].decode()


def _subscribers(counted: object, channels: int) -> dict[bytes, int]:
    if isinstance(counted, list) and len(counted) == 2 * channels:
        found = dict(zip(counted[::2], counted[1::2], strict=True))
        if all(isinstance(count, int) for count in found.values()):
            return found
    raise CannotAsk("PUBSUB NUMSUB is answered in an unknown form")


class Mark(NamedTuple):
    """How others can see whether a session lives: by its connections to one server.

    If all of them are gone while that server runs, and the session has named no others, its process is dead.
    """

    #: Their ids; none if they cannot be checked.
    connections: tuple[int, ...] = ()
    server: str = ""
    session: str = ""


#: What a process names that others must not go by.
NOT_CHECKABLE = Mark()


class OwnConnections:
    """Checks the connections of this process; runs in the background thread of a worker.

    The ids can be trusted if the server lists them, under the names that they were given, when it is asked
    over a connection of ours. This fails behind a proxy that shares connections between clients, renames or
    replaces them, if the access rules forbid CLIENT, and where two connections lead to two servers. Then, and
    behind a proxy that often cuts connections, the process names none: its leases decide. `on_change` is
    called in the event loop that checks when other connections are to be named.

    Attributes:
        off: Why others must not go by the connections; None: they may.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.off: str | None = None
        #: How many workers there are, as was seen last.
        self.workers = 1
        self._on_change = on_change
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._watched: dict[Servers, None] = {}
        #: By the connections of the event loop that checks.
        self._checks: dict[Server, _Check] = {}
        #: What was to be named last for each queue.
        self._marks: WeakKeyDictionary[AsyncWorkQueue, Mark] = WeakKeyDictionary()

    def mark(self, queue: AsyncWorkQueue) -> Mark:
        """Return what to name to others for a queue; callable in the event loop that checks."""
        engine = engines_of(queue).running
        check = self._checks.get(engine.route.server) if engine is not None else None
        return NOT_CHECKABLE if check is None or self.off is not None else check.mark

    def cut_since(self, queue: AsyncWorkQueue) -> float | None:
        """Return since when the server has had no connection of those that are named for a queue.

        By `time.monotonic()`; None: there is one, or this process has given one up, which the server may
        still have. Callable in the event loop that checks.
        """
        engine = engines_of(queue).running
        return None if engine is None else _cut_since([one.server for one in _same(queue, engine)])

    def switch_off(self, reason: str) -> None:
        """Name no connections any more, until the worker starts again."""
        if self.off is None:
            self.off = reason
            log.warning(
                "other workers cannot see whether this process lives: %s. If it dies, its items return when "
                "their leases expire",
                reason,
            )
            self._on_change()

    async def run(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Check the connections whenever they have changed, and now and then, until cancelled.

        The queues may change meanwhile.
        """
        try:
            while self.off is None:
                self._woken.clear()
                if not await self.check([*queues]):
                    await asyncio.sleep(AWAY_SECONDS * random.uniform(0.5, 1))  # noqa: S311 - no secret
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._again_after):
                        await self._woken.wait()
            await asyncio.Event().wait()
        finally:
            self.close()

    async def check(self, queues: Sequence[AsyncWorkQueue]) -> bool:
        """Check the connections of some queues that have not been checked since they changed.

        Return whether all servers could be asked.
        """
        self._loop = asyncio.get_running_loop()
        # The ways to each server, by the connections of this event loop, which ask for all of them.
        ours: dict[Server, dict[Route, None]] = {}
        for queue in queues:
            engine = engines_of(queue).running
            if engine is not None:
                same = _same(queue, engine)
                _gather(same)
                ours.setdefault(engine.route.server, {}).update(dict.fromkeys(same))
        self._checks = {one: self._checks.get(one) or _Check(one) for one in ours}
        self._watch({route.servers: None for same in ours.values() for route in same})
        checks = (self._check(self._checks[one], [*ours[one]]) for one in ours)
        could_ask = all(await asyncio.gather(*checks))
        marks = {queue: self.mark(queue) for queue in queues}
        if any(mark != self._marks.get(queue, NOT_CHECKABLE) for queue, mark in marks.items()):
            self._on_change()
        self._marks.update(marks)
        return could_ask

    @property
    def _again_after(self) -> float:
        return max(CHECK_AGAIN_SECONDS, self.workers * CHECK_AGAIN_PER_WORKER)

    async def _check(self, check: _Check, routes: Sequence[Route]) -> bool:
        check.routes = routes
        async with check.checking:  # what another call is about to find out is waited for
            if self.off is not None or not check.is_older(self._again_after):
                return True
            try:
                check.mark = await check.ask()
            except CannotAsk as error:
                self.switch_off(str(error))
                return True
            except LeasequeueError as error:
                log.debug("the connections cannot be checked now: %s", error)
                return False
            return True

    def close(self) -> None:
        """Watch no connections any more."""
        self._watch({})

    def _watch(self, ours: dict[Servers, None]) -> None:
        """Be notified when the connections of these sessions change, and of no others."""
        before, self._watched = self._watched, ours
        for one in before.keys() - ours.keys():
            one.unwatch(self._changed)
        for one in ours.keys() - before.keys():
            one.watch(self._changed)

    def _changed(self) -> None:
        """Check again; called in the event loops of the sessions."""
        for check in [*self._checks.values()]:
            check.checked_at = None
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the thread has just ended
                self._loop.call_soon_threadsafe(self._check_soon)

    def _check_soon(self) -> None:
        self._woken.set()
        if any(_cut_since(check.servers) is not None for check in self._checks.values()):
            self._on_change()  # a heartbeat finds out whether it is back in time


class _Check:
    """What is known of the connections to one server of the sessions that share an id.

    `server` has those of the event loop that checks, which ask.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.mark = NOT_CHECKABLE
        #: The ways of the queues to that server, in all event loops.
        self.routes: Sequence[Route] = ()
        self.checking = asyncio.Lock()
        self.checked_at: float | None = None
        self._cuts: deque[float] = deque(maxlen=CUTS)

    @property
    def servers(self) -> list[Server]:
        """The connections, by their event loops."""
        return [*dict.fromkeys(route.server for route in self.routes)]

    def is_older(self, seconds: float) -> bool:
        """Return whether the last check was so long ago, or is of no use."""
        return self.checked_at is None or time.monotonic() - self.checked_at > seconds

    async def ask(self) -> Mark:
        """Ask the server for the connections, and compare them with ours.

        Raise CannotAsk if they cannot be trusted.
        """
        wrong = ""
        for _ in range(TRIES):
            self.checked_at = time.monotonic()
            before = self._held()
            ids = [one.id for one in before if one.id]
            seen = await present(self._server, ids or [1], identify=True)  # some servers refuse 0
            held = self._held()
            if held == before and held:
                moving = len({one.address for one in self.servers}) > 1
                wrong = "" if moving else _why_untrusted(held, seen.names)
                if not (wrong or moving):
                    return self._vouch(tuple(sorted(one.id or 0 for one in held)), seen.server)
            await asyncio.sleep(TRY_SECONDS)  # a connection may be opening, or about to be noticed as closed
        if wrong:
            raise CannotAsk(wrong)
        self.checked_at = None
        return NOT_CHECKABLE  # they change all the time; the next heartbeat tries again

    def _vouch(self, connections: tuple[int, ...], server: str) -> Mark:
        """Return the connections; count how often all were lost; raise CannotAsk if that was too often."""
        if self.mark.server == server and not set(self.mark.connections) & set(connections):
            self._cuts.append(now := time.monotonic())
            if len(self._cuts) == CUTS and now - self._cuts[0] < CUTS_SECONDS:
                raise CannotAsk(
                    f"its connections were cut {CUTS} times in {now - self._cuts[0]:.0f} s, and the server "
                    "was not restarted"
                )
        return Mark(connections, server, self._server.servers.session_id)

    def _held(self) -> list[OpenedConnection]:
        opened = [one for server in self.servers for one in server.connections]
        return [one for one in opened if one.lasting and one.answered]


def _same(queue: AsyncWorkQueue, engine: Engine) -> list[Route]:
    """Return the ways of the sessions that share the id of an engine of the event loop that checks.

    Of those that act for it, only our own: another worker that shares it comes and goes.
    """
    return [
        one.route
        for one in engines_of(queue).all
        if one.session.id == engine.session.id and (one is engine or not one.session.adopted)
    ]


def _gather(routes: Sequence[Route]) -> None:
    """Have all ways of a queue lead to the node of the cluster that one of them has found last.

    Others notice that its slot has moved when they are used.
    """
    address = max(routes, key=lambda one: one.found_at).server.address
    for route in routes:
        if address is not None and route.server.address != address:
            with contextlib.suppress(RuntimeError):  # its event loop has just ended
                route.servers.loop.call_soon_threadsafe(route.lead_to, address)


def _cut_since(servers: Sequence[Server]) -> float | None:
    """Return since when the other side has closed all lasting connections; None: it has not."""
    ends = [one.connection.cut_at for server in servers for one in server.last_connections]
    cuts = [at for at in ends if at is not None]
    return max(cuts) if cuts and len(cuts) == len(ends) else None


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
