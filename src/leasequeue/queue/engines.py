"""The engines of a queue object, one for each event loop that uses it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from leasequeue.codecs import Payloads
from leasequeue.durations import Duration, check_int, seconds
from leasequeue.errors import InvalidArgument, QueueClosed
from leasequeue.keys import QueueKeys, check_hash_tag, check_prefix
from leasequeue.queue.engine import Engine
from leasequeue.queue.feeds import Feeds
from leasequeue.queue.pushes.seals import Unverified
from leasequeue.wire.endpoints import Client, check_client, is_cluster, slot_of, url_of
from leasequeue.wire.session import SESSIONS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasequeue.codecs import Codecs
    from leasequeue.queue.leasing import Watcher

#: The maximum of `replicas`.
MAX_REPLICAS = 100
#: How long `close` waits for another event loop, which may be blocked (s).
ELSEWHERE_SECONDS = 5.0


class Engines:
    """Makes the engines of a queue object when they are first needed, and closes them.

    Any thread may use it. The arguments are those of `AsyncWorkQueue`.

    Attributes:
        before_use: Called with each queue object that is used for the first time in an event loop;
            `leasequeue.testing` puts a check here.
    """

    before_use: ClassVar[Callable[[Engines], None]] = staticmethod(lambda _: None)

    def __init__(
        self,
        name: str,
        redis: Client,
        *,
        return_to: str,
        reply_timeout: Duration,
        clock: Callable[[], float] | None,
        replicas: int = 0,
        codec: Codecs = None,
    ) -> None:
        if return_to not in ("end", "front"):
            raise InvalidArgument("return_to", return_to, "'end' or 'front'")
        check_client(redis)
        self.name = check_prefix(name)
        if is_cluster(redis):
            check_hash_tag(self.name)
        if clock is not None and not callable(clock):
            raise InvalidArgument("clock", clock, "a function that returns the time in seconds, or None")
        self.clock = clock
        #: The messages that were dropped, of all event loops.
        self.unverified = Unverified(self.name)
        self.url = url_of(redis)
        self._client = redis
        self._reply_timeout = seconds("reply_timeout", reply_timeout, zero=False)
        self._return_front = return_to == "front"
        self._replicas = check_int("replicas", replicas, minimum=0, maximum=MAX_REPLICAS)
        self.payloads = Payloads(self.name, codec)
        self._engines: dict[asyncio.AbstractEventLoop, Engine] = {}
        self._closing: list[Engine] = []
        self._closed = False
        #: Whether a connection is blocked to wait for items, which those of other libraries only push to a
        #: list. A shard has none of them.
        self.blocks = True
        #: What traces and metrics call the queue: a shard is called as the queue that it is a part of.
        self.called = self.name
        #: What the workers of this process that use the queue object declare.
        self.feeds = Feeds()

    @property
    def all(self) -> list[Engine]:
        """The engines of all event loops."""
        return [*self._engines.values()]

    @property
    def running(self) -> Engine | None:
        """The engine of the running event loop, if it has been made."""
        return self._engines.get(asyncio.get_running_loop())

    def here(self) -> Engine:
        """Return the engine of the running event loop; the first call in an event loop makes it."""
        return self._engines.get(asyncio.get_running_loop()) or self._make()

    def neighbour(self, name: str) -> str:
        """Check the name of another queue in the same slot, and return it."""
        other = check_prefix(name)
        if other == self.name:
            raise InvalidArgument("other", name, "the name of another queue")
        if slot_of(self._client, f"{other}:queue".encode()) != slot_of(
            self._client, f"{self.name}:queue".encode()
        ):
            raise InvalidArgument("other", name, f"a queue with the same hash tag as {self.name!r}")
        return other

    def assist(self, session_id: str, *, reply_timeout: float) -> Engine:
        """Make an engine in the running event loop that acts for a session of another one.

        What was leased there can be renewed, completed and released here. Only the other event loop should
        wait for items: an id that arrives for a session goes to the first that takes it. `close` leaves this
        engine open: it ends with its event loop.
        """
        return self._make(session_id, reply_timeout)

    async def assist_another(self, session_id: str, *, reply_timeout: float) -> None:
        """Act for another session than before. See `assist`."""
        before = self.running
        self.assist(session_id, reply_timeout=reply_timeout)
        if before is not None:
            await before.close()

    async def replace_session(self) -> str:
        """Give the running event loop another session, since its session was failed; return it.

        What was leased before cannot be completed or released any more. Ids on their way to the old session
        return to the queue. What uses the old session continues, such as calls that wait for an item or for a
        result, readers of published events, and blocks that hold a limit.
        """
        before = self.here()
        with SESSIONS.lock:
            before.session.failed.add(self.name)
            self._closing = [one for one in self._closing if not one.closed]
            self._closing.append(self._engines.pop(before.loop))
        await before.stop_listening()
        before.close_when_unused()
        return self.here().session.id

    async def stop_listening(self) -> None:
        """Stop listening for items if no caller waits, and return when none is on its way to this event loop.

        Otherwise the queue object does so a moment after the last call of `lease`; if its process ends
        before, items sent to it are held up for some seconds. `close` stops listening, too.
        """
        if (engine := self.running) is not None:
            await engine.stop_listening()

    def unwatch(self, watcher: Watcher) -> None:
        """Notify a watcher no more. See `LeaseDispatcher.watch`.

        It may have begun with a session that was replaced since.
        """
        here = asyncio.get_running_loop()
        for engine in (*self.all, *self._closing):
            if engine.loop is here:
                engine.leasing.unwatch(watcher)

    @property
    def is_listening(self) -> bool:
        """Whether an id may be on its way to one of the event loops; callable from any thread."""
        return any(engine.leasing.is_listening for engine in self.all)

    async def release_arrivals(self) -> int:
        """Return what is on its way to this session to the front of the queue; say how many ids there were.

        What was delivered is returned as well, and not counted. For the event loop that waits for items, or
        one that assists it, while that is blocked and cannot take them.
        """
        here = self.here()

        ours = [one for one in self.all if one.session.id == here.session.id]
        waiting = next((one for one in ours if not one.session.adopted), here)
        deliveries = waiting.deliveries

        def leave(accepted: list[bytes]) -> Awaitable[Any]:
            return here.run("leave", accepted, stays=1, word=deliveries.last_word)

        return await deliveries.recall(leave)

    def report(self, lease: Sequence[bytes], text: bytes) -> None:
        """Report progress, from any thread. See `ProgressReports`.

        Raise QueueClosed if no event loop of this process uses the queue object.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running in self._engines:
            self._engines[running].reports.add(lease, text)
            return
        for engine in sorted(self.all, key=lambda one: one.session.adopted):
            if engine.loop.is_running():
                engine.loop.call_soon_threadsafe(engine.reports.add, lease, text)
                return
        raise QueueClosed(self.name)

    async def close(self) -> None:
        """Close the engines of all event loops, except those that assist. Closing twice is fine.

        An event loop that stands still keeps its connections until it runs again, or ends. A cancelled caller
        does not wait for the end, but closing continues.
        """
        with SESSIONS.lock:
            self._closed = True
            SESSIONS.forget_closed_loops()
            for engine in self.all:
                if not engine.session.adopted:
                    self._closing.append(self._engines.pop(engine.loop))
        here = asyncio.get_running_loop()
        ours = [engine.start_closing() for engine in self._closing if engine.loop is here]
        others = [other for engine in self._closing if (other := _close_elsewhere(engine)) is not None]
        if others:
            await asyncio.wait(others, timeout=ELSEWHERE_SECONDS)
        if ours:
            await asyncio.wait(ours)
        for closed in ours:
            closed.result()

    def _make(self, session_id: str | None = None, reply_timeout: float | None = None) -> Engine:
        type(self).before_use(self)
        with SESSIONS.lock:
            if self._closed:
                raise QueueClosed(self.name)
            for loop in [loop for loop in self._engines if loop.is_closed()]:
                del self._engines[loop]
            session = SESSIONS.join(
                self._client,
                self.name,
                reply_timeout=reply_timeout or self._reply_timeout,
                session_id=session_id,
            )
            engine = self._engines[session.loop] = Engine(
                QueueKeys(self.name, session.id),
                session,
                self.unverified,
                return_front=self._return_front,
                clock=self.clock,
                called=self.called,
                feeds=self.feeds,
                blocks=self.blocks,
                on_abandon=partial(self._forget, session.loop),
                payloads=self.payloads,
                replicas=self._replicas,
            )
            return engine

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._engines.pop(loop, None)
        self._closing = [engine for engine in self._closing if engine.loop is not loop]


def _close_elsewhere(engine: Engine) -> asyncio.Future[None] | None:
    """Close an engine in the event loop of another thread; None if that does not run."""
    if engine.loop is asyncio.get_running_loop() or not engine.loop.is_running():
        return None
    closing = engine.close()
    try:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, engine.loop))
    except RuntimeError:  # it has been closed at this moment
        closing.close()
        return None
