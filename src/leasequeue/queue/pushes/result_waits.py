"""Waiting for the ends of items: one request for all callers, and a notification from the server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from leasequeue.durations import Backoff
from leasequeue.errors import JobCancelled, JobExpired, JobFailed, JobUnknown, LeasequeueError, ServerError
from leasequeue.queue.encoding import TRIP_ROWS
from leasequeue.wire.server_errors import translate
from leasequeue.wire.subscriptions import keeps_running

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from leasequeue.queue.pushes.router import PushRouter

#: How often a process asks again for all items that it waits for (s): another client that completes an item
#: notifies no process, and a message may be lost. The server keeps in mind who waits for three times as long.
ASK_SECONDS = 5.0
KEEP_MS = 15_000
#: The codes in the reply of `await_results`.
NOT_READ, UNKNOWN, UNFINISHED, RESULT, CANCELLED, EXPIRED = -2, -1, 0, 1, 3, 4


class Follower:
    """A caller that follows the progress of an item."""

    __slots__ = ("changed", "pushed_at", "text")

    def __init__(self) -> None:
        #: The last progress; empty: there is none yet.
        self.text = b""
        #: When the last message arrived, by the clock of the event loop.
        self.pushed_at = 0.0
        self.changed = asyncio.Event()


class ResultWaits:
    """Waits for the ends of items, for all callers in one event loop.

    It asks for many items in one trip: when callers have begun to wait, when the server notifies it of the
    end of an item, when the connection for notifications was lost, and every 5 s.
    """

    def __init__(
        self,
        pushes: PushRouter,
        run: Callable[..., Awaitable[Any]],
        refusal: Callable[[], LeasequeueError | None],
    ) -> None:
        self._pushes = pushes
        self._run = run
        self._refusal = refusal
        self._loop = asyncio.get_running_loop()
        self._waits: dict[bytes, set[asyncio.Future[bytes | None]]] = {}
        #: The items that have been unfinished since a caller began to wait.
        self._unfinished: set[bytes] = set()
        #: The items to ask for: first those that have ended, then the others, in this order.
        self._ended: dict[bytes, None] = {}
        self._asked: dict[bytes, None] = {}
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_subscribed = False
        self._backoff = Backoff()
        # If notifications may have been missed, or the queue object is closed, it asks for all items.
        pushes.add("ended", self._notified, lambda: self._ask(self._waits))
        pushes.add("cancelled", partial(self._ended_by, JobCancelled))
        pushes.add("expired", partial(self._ended_by, JobExpired))
        pushes.add("progress", self._progressed)
        pushes.add("emitted", self._emitted)
        #: How messages say that items have ended about which the server may know nothing more.
        self._end_of: dict[bytes, type[JobCancelled | JobExpired]] = {}
        #: Those who follow the progress of an item.
        self._followers: dict[bytes, set[Follower]] = {}
        #: What is set when there may be more in the stream of an item, for each of its readers.
        self._readers: dict[bytes, set[asyncio.Event]] = {}

    @property
    def count(self) -> int:
        """For how many items callers wait."""
        return len(self._waits)

    def awaits(self, item_id: bytes) -> bool:
        """Return whether a caller waits for an item, or reads its stream."""
        return item_id in self._waits

    def begin(self, item_id: bytes) -> asyncio.Future[bytes | None]:
        """Return a future that gets the result of an item. If it is cancelled, it is forgotten."""
        wait: asyncio.Future[bytes | None] = self._loop.create_future()
        self._waits.setdefault(item_id, set()).add(wait)
        wait.add_done_callback(lambda _: self._forget(item_id, wait))
        if self._timer is None:
            self._ask_later()
        self._ask([item_id])
        return wait

    def _forget(self, item_id: bytes, wait: asyncio.Future[bytes | None]) -> None:
        waits = self._waits.get(item_id, set())
        waits.discard(wait)
        if not waits:
            self._waits.pop(item_id, None)
            self._unfinished.discard(item_id)
            self._end_of.pop(item_id, None)
            self._ended.pop(item_id, None)
            self._asked.pop(item_id, None)
        if not self._waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask_later(self) -> None:
        # Not all processes at the same time.
        delay = ASK_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
        self._timer = self._loop.call_later(delay, self._ask_again)

    def _ask_again(self) -> None:
        self._ask_later()
        self._ask(self._waits)

    def _notified(self, item_id: bytes) -> None:
        if item_id in self._waits:
            self._asked.pop(item_id, None)
            self._ended[item_id] = None
            self._ask(())

    async def progress(self, item_id: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the last progress of an item, and each that is reported later, until the item ends.

        Values that follow each other faster than they are taken are left out, but the last one.
        """
        follower = Follower()
        self._followers.setdefault(item_id, set()).add(follower)
        end = self.begin(item_id)
        end.add_done_callback(lambda _: follower.changed.set())
        try:
            last = b""
            while True:
                await follower.changed.wait()
                follower.changed.clear()
                if follower.text != last:
                    yield (last := follower.text)
                elif end.done():
                    break
            with contextlib.suppress(JobFailed, JobCancelled, JobExpired):
                end.result()
        finally:
            if not end.cancel() and not end.cancelled():
                end.exception()  # so that it counts as retrieved
            self._followers[item_id].discard(follower)
            if not self._followers[item_id]:
                del self._followers[item_id]

    async def stream(
        self, item_id: bytes, after: bytes, read: Callable[[bytes], Awaitable[list[Any]]]
    ) -> AsyncGenerator[list[Any], None]:
        """Yield pages of the stream of an item, those after a place, until it has ended and all is read.

        `read` returns the answer of `read_chunks` for a place. It is called when the server says that there
        is more, when that may have been missed, and every 5 s; nothing is kept for a reader that is slow.
        Raise what `begin` says of the end of the item, unless it is unknown and there is a stream.
        """
        changed, found = asyncio.Event(), False

        def begin() -> asyncio.Future[bytes | None]:
            end = self.begin(item_id)
            end.add_done_callback(lambda _: changed.set())
            return end

        self._readers.setdefault(item_id, set()).add(changed)
        end = begin()
        changed.set()
        try:
            while True:
                await changed.wait()
                changed.clear()
                is_last = end.done()
                while (page := await self._read(read, after, repeat=found)) is not None:
                    found = True
                    if not page:
                        break
                    yield page
                    after = page[-4]
                if is_last and found and _may_pass(end.exception()):
                    end = begin()  # the first reply about the item was lost, but its stream is known
                elif is_last:
                    break
            if not (found and isinstance(end.exception(), JobUnknown)):
                end.result()
        finally:
            if not end.cancel() and not end.cancelled():
                end.exception()  # so that it counts as retrieved
            self._readers[item_id].discard(changed)
            if not self._readers[item_id]:
                del self._readers[item_id]

    async def _read(
        self, read: Callable[[bytes], Awaitable[list[Any]]], after: bytes, *, repeat: bool
    ) -> list[Any] | None:
        """Return a page, None if there is no stream; `repeat`: also after errors that pass."""
        backoff = Backoff()
        while True:
            try:
                state, *page = await read(after)
            except ServerError as error:
                if not (repeat and error.transient):
                    raise
                await backoff.wait()
            else:
                if state != NOT_READ:
                    return page if state == 1 else None

    def _emitted(self, item_id: bytes) -> None:
        for changed in self._readers.get(item_id, ()):
            changed.set()

    def _progressed(self, message: bytes) -> None:
        size, _, rest = message.partition(b" ")
        if size.isdigit() and len(size) < 8:  # any client may publish to a channel
            for follower in self._followers.get(rest[: int(size)], ()):
                follower.text, follower.pushed_at = rest[int(size) :], self._loop.time()
                follower.changed.set()

    def _answered(self, item_id: bytes, text: bytes, asked_at: float) -> None:
        """Take the progress in a reply, unless a message has come since the request, which may be newer."""
        for follower in self._followers.get(item_id, ()):
            if follower.pushed_at < asked_at:
                follower.text = text
                follower.changed.set()

    def _ended_by(self, kind: type[JobCancelled | JobExpired], item_id: bytes) -> None:
        """Ask what has become of an item that was cancelled or has expired: it may have been added again."""
        if item_id in self._waits:
            self._end_of[item_id] = kind
            self._notified(item_id)

    def _ask(self, item_ids: Iterable[bytes]) -> None:
        self._asked.update(dict.fromkeys(item_ids))
        if (self._ended or self._asked) and not keeps_running(self._asking):
            self._asking = self._loop.create_task(self._ask_all(), name="leasequeue await results")

    async def _ask_all(self) -> None:
        """Ask for the items, as many in each trip as the script takes, until none is left."""
        try:
            while self._ended or self._asked:
                if not self._is_subscribed:
                    # First, so that the end of no item is missed.
                    await self._pushes.hold()
                    self._is_subscribed = True
                batch = [*islice(chain(self._ended, self._asked), TRIP_ROWS)]
                for item_id in batch:
                    self._ended.pop(item_id, None)
                    self._asked.pop(item_id, None)
                await self._ask_for([item_id for item_id in batch if item_id in self._waits])
        except Exception as error:  # noqa: BLE001 - those who wait get it
            await self._handle(self._refusal() or translate(error, maybe_applied=False))
        finally:
            self._asking = None
            self._ask(())

    async def _ask_for(self, item_ids: list[bytes]) -> None:
        asked_at, ended_before = self._loop.time(), {*self._end_of}
        reply = await self._run("await_results", item_ids, keep_ms=KEEP_MS)
        self._backoff.reset()
        for item_id, code, value in zip(item_ids, reply[::2], reply[1::2], strict=True):
            if code == UNFINISHED:
                self._unfinished.add(item_id)
                if item_id in ended_before:  # so it was added again; else the reply is older than the message
                    self._end_of.pop(item_id, None)
                self._emitted(item_id)  # a message may have been lost
                if value:
                    self._answered(item_id, value, asked_at)
            elif code == NOT_READ:
                self._asked[item_id] = None
            elif code == UNKNOWN and item_id in self._end_of:
                self._end(item_id, self._end_of[item_id](_text(item_id)))
            elif code == RESULT or (code == UNKNOWN and item_id in self._unfinished):
                self._end(item_id, value if code == RESULT else None)
            else:
                self._end(item_id, _error(item_id, code, value))

    def _end(self, item_id: bytes, end: bytes | LeasequeueError | None) -> None:
        for wait in self._waits.pop(item_id, ()):
            if wait.done():
                continue
            if isinstance(end, LeasequeueError):
                wait.set_exception(copy.copy(end))
            else:
                wait.set_result(end)

    async def _handle(self, error: LeasequeueError) -> None:
        """Fail the waits that have just begun, and all of them if it is of no use to ask again."""
        self._ended.clear()
        self._asked.clear()
        for item_id in [*self._waits]:
            if not error.transient or item_id not in self._unfinished:
                self._end(item_id, error)
        if error.transient:
            await self._backoff.wait()
            self._asked.update(dict.fromkeys(self._unfinished))


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, ServerError) and error.transient


def _text(item_id: bytes) -> str:
    return item_id.decode(errors="surrogateescape")


def _error(item_id: bytes, code: int, value: bytes) -> LeasequeueError:
    if code == CANCELLED:
        return JobCancelled(_text(item_id))
    if code == EXPIRED:
        return JobExpired(_text(item_id))
    if code == UNKNOWN:
        return JobUnknown(_text(item_id))
    return JobFailed(_text(item_id), value.decode(errors="replace"))
