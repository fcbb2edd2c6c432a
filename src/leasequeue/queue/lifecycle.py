"""Opening and closing a queue object: its engines, one for each event loop that uses it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from leasequeue.durations import Duration, seconds
from leasequeue.errors import InvalidArgument, QueueClosed
from leasequeue.keys import QueueKeys, check_hash_tag, check_prefix
from leasequeue.queue.engine import Engine
from leasequeue.scripting.endpoints import Client, check_client, is_cluster, slot_of, url_of
from leasequeue.scripting.session import SESSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: How long `close` waits for another event loop, which may be blocked (s).
ELSEWHERE_SECONDS = 5.0


class Lifecycle:
    """Makes the engines of a queue object when they are first needed, and closes them.

    Any thread may use it. The arguments are those of `AsyncWorkQueue`.

    Attributes:
        make_engine: Makes an engine; `leasequeue.testing` puts one here that records the calls.
        before_use: Called with each queue object that is used for the first time in an event loop;
            `leasequeue.testing` puts a check here.
    """

    before_use: ClassVar[Callable[[Lifecycle], None]] = staticmethod(lambda _: None)

    def __init__(
        self,
        name: str,
        redis: Client,
        *,
        return_to: str,
        reply_timeout: Duration,
        clock: Callable[[], float] | None,
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
        self.url = url_of(redis)
        self.make_engine: Callable[..., Engine] = Engine
        self._client = redis
        self._reply_timeout = seconds("reply_timeout", reply_timeout, zero=False)
        self._return_front = return_to == "front"
        self._engines: dict[asyncio.AbstractEventLoop, Engine] = {}
        self._closing: list[Engine] = []
        self._closed = False

    @property
    def engines(self) -> list[Engine]:
        """The engines of all event loops."""
        return [*self._engines.values()]

    @property
    def running(self) -> Engine | None:
        """The engine of the running event loop, if it has been made."""
        return self._engines.get(asyncio.get_running_loop())

    def engine(self) -> Engine:
        """Return the engine of the running event loop; the first call in an event loop makes it.

        Raises:
            QueueClosed: If the queue object is closed.
        """
        return self._engines.get(asyncio.get_running_loop()) or self._make()

    def neighbour(self, name: str) -> str:
        """Check the name of another queue in the same slot, and return it.

        Raises:
            InvalidArgument: If it cannot be the name of a queue, is this one's, or of another slot.
        """
        other = check_prefix(name)
        if other == self.name:
            raise InvalidArgument("other", name, "the name of another queue")
        if slot_of(self._client, f"{other}:queue".encode()) != slot_of(
            self._client, f"{self.name}:queue".encode()
        ):
            raise InvalidArgument("other", name, f"a queue with the same hash tag as {self.name!r}")
        return other

    def assist(self, session_id: str, *, reply_timeout: float) -> None:
        """Make an engine in the running event loop that acts for a session of another one.

        What was leased there can be renewed, completed and released here. `close` leaves this engine open: it
        ends with its event loop.

        Args:
            session_id: The session of the other event loop.
            reply_timeout: Seconds to wait for a reply.

        Raises:
            QueueClosed: If the queue object is closed.
        """
        self._make(session_id, reply_timeout)

    def replace(self) -> Engine:
        """Give the running event loop another session, since its session was failed; return the old engine.

        The next call makes an engine with the new session. Callers that wait with the old one, for the result
        of an item, still get that; it is closed with the queue object.

        Raises:
            QueueClosed: If the queue object is closed.
        """
        engine = self.engine()
        with SESSIONS.lock:
            engine.session.failed.add(self.name)
            self._closing.append(self._engines.pop(engine.loop))
        return engine

    def report(self, lease: Sequence[bytes], text: bytes) -> None:
        """Report progress, from any thread. See `ProgressReports`.

        Args:
            lease: The id and the token of a lease.
            text: What is kept.

        Raises:
            QueueClosed: If no event loop of this process uses the queue object.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running in self._engines:
            self._engines[running].reports.add(lease, text)
            return
        for engine in sorted(self.engines, key=lambda one: one.session.adopted):
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
            for engine in self.engines:
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
                f"{self.name}:queue".encode(),
                self.name,
                reply_timeout=reply_timeout or self._reply_timeout,
                session_id=session_id,
            )
            engine = self._engines[session.loop] = self.make_engine(
                QueueKeys(self.name, session.id),
                session,
                return_front=self._return_front,
                clock=self.clock,
                on_abandon=partial(self._forget, session.loop),
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
