"""The running parts of a queue object: a runner, a batcher per batched script, the lease dispatcher."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from leasequeue import telemetry
from leasequeue.errors import LeasequeueError, QueueClosed
from leasequeue.keys import QueueKeys
from leasequeue.log import Log
from leasequeue.queue.encoding import TRIP_ROWS
from leasequeue.queue.leasing import MAX_ITEMS, LeaseDispatcher, LeasedItem
from leasequeue.queue.observed import observed, observed_lease
from leasequeue.queue.pushes.listener import Listener
from leasequeue.queue.pushes.live_events import LiveEvents
from leasequeue.queue.pushes.progress import ProgressReports
from leasequeue.queue.pushes.result_waits import ResultWaits
from leasequeue.queue.pushes.router import PushRouter
from leasequeue.scripting.batcher import Batcher
from leasequeue.scripting.pushes import joined
from leasequeue.scripting.runner import BoundScript, CommonArguments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from leasequeue.queue.leasing import Watcher
    from leasequeue.scripting.pushes import Subscription
    from leasequeue.scripting.session import Session

#: After so long without a call it is closed, when the event loop has another session (s). Between two calls
#: of one operation there is less.
UNUSED_SECONDS = 2.0

log = Log("leasequeue.queue")

#: What a batched script does to the item of a row.
Effect = Literal["add", "complete", "renew", "release", "retry", "cancel", "progress"]

#: The scripts whose concurrent calls share trips. This is the one list of them: the history that
#: `leasequeue.testing` records reads it, too.
BATCHED: dict[str, Effect] = {
    "add_items": "add",
    "complete_many": "complete",
    "renew_many": "renew",
    "release_many": "release",
    "fail_many": "retry",
    "cancel_many": "cancel",
    "progress": "progress",
}
#: The other scripts without which no item can be leased.
LEASING = frozenset({"lease_many", "leave", "register"})


class Engine:
    """The running parts of one queue object in one event loop.

    Args:
        keys: The queue's keys.
        session: The identity and the connections of the event loop; the engine becomes a member.
        return_front: Whether expired items go to the front.
        clock: Returns the time in seconds since 1970, in place of the server's clock; for tests.
        on_abandon: Called when the engine must be forgotten without being closed.
    """

    def __init__(
        self,
        keys: QueueKeys,
        session: Session,
        *,
        return_front: bool,
        clock: Callable[[], float] | None,
        on_abandon: Callable[[], None],
    ) -> None:
        self.keys = keys
        self.session = session
        self.loop = session.loop
        self._name = keys.prefix.decode()
        self._on_abandon = on_abandon
        #: Where the next light clean continues to check, by script and key.
        self.clean_cursors: dict[str, bytes] = {}
        self._common = CommonArguments(
            keys, return_front=return_front, rights=session.runner.rights, clock=clock
        )
        session.runner.probe_with(keys)
        self._scripts: dict[str, BoundScript] = {}
        self._runner = session.runner
        self._batchers = {
            name: Batcher(self._runner, self._script(name), max_rows=TRIP_ROWS) for name in BATCHED
        }
        self._subscriptions: set[Subscription] = set()
        #: What is published about the queue, for those who read it.
        self.live_events = LiveEvents(session, keys["live"], self.run)
        #: What is published to the session for this queue.
        self.pushes = PushRouter(session, keys["push"])
        self.result_waits = ResultWaits(self)
        self.reports = ProgressReports(self, self._name)
        self._releasing: set[asyncio.Task[None]] = set()
        self._refusal: LeasequeueError | None = None
        #: The calls that are no batched ones: how many are in flight, and how many there have been.
        self._in_flight = self._calls = 0
        self._unused_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        listener = Listener(
            session, keys, self.pushes, register=self._script("register"), leave=self._script("leave")
        )
        #: What is delivered to this session.
        self.deliveries = listener.deliveries
        self._dispatcher = LeaseDispatcher(
            self._runner,
            self._script("lease_many"),
            listener,
            release=self._release_spare,
            deliver=self._deliver,
        )
        session.members[self._name] = self

    async def lease(
        self, count: int, lease_ms: int, *, blocks: bool, timeout: float | None
    ) -> list[LeasedItem]:
        """Lease up to `count` items, in steps of at most MAX_ITEMS. See `LeaseDispatcher.lease`.

        Only the first step waits. If a later one fails, return what the others have leased; if the caller is
        cancelled, release that.
        """
        self._expect_open()
        leasing = self._lease(count, lease_ms, blocks=blocks, timeout=timeout)
        if telemetry.active is not None:
            return await observed_lease(telemetry.active, self._name, leasing, waits=blocks)
        return await leasing

    async def _lease(
        self, count: int, lease_ms: int, *, blocks: bool, timeout: float | None
    ) -> list[LeasedItem]:
        size = min(count, MAX_ITEMS)
        items = await self._dispatcher.lease(size, lease_ms, blocks=blocks, timeout=timeout)
        leased = len(items)
        try:
            while leased == size and len(items) < count:
                size = min(count - len(items), MAX_ITEMS)
                more = await self._dispatcher.lease(size, lease_ms, blocks=False, timeout=None)
                leased = len(more)
                items += more
        except LeasequeueError as error:
            log.warning("only %d of %d items were leased from %s: %s", len(items), count, self._name, error)
        except asyncio.CancelledError:
            self._release_spare(items)
            raise
        return items

    def watch(self, watcher: Watcher) -> bool:
        """Notify a watcher once, when an item may be waiting. See `LeaseDispatcher.watch`."""
        self._expect_open()
        return self._dispatcher.watch(watcher)

    @property
    def is_listening(self) -> bool:
        """Whether an id may be on its way to this session; callable from any thread."""
        return self._dispatcher.is_listening

    def unwatch(self, watcher: Watcher) -> None:
        """Notify a watcher no more."""
        self._dispatcher.unwatch(watcher)

    async def one(self, name: str, row: Sequence[bytes], *, size: int = 64) -> Any:
        """Send one row of a batched script, together with rows of other callers, and return its answer."""
        self._expect_open()
        batcher = self._batchers[name]
        if telemetry.active is not None:
            send = partial(self._send_one, batcher, size)
            return (await observed(telemetry.active, self._name, name, (row,), send))[0]
        return (await batcher.call(row, size=size))[0]

    async def _send_one(self, batcher: Batcher, size: int, rows: Sequence[Sequence[bytes]]) -> list[Any]:
        return await batcher.call(rows[0], size=size)

    async def many(
        self, name: str, rows: Sequence[Sequence[bytes]], *, size: int = 64, large: bool = False
    ) -> list[Any]:
        """Send rows of a batched script, together with those of other callers; return all answers."""
        self._expect_open()
        flat = [value for row in rows for value in row]
        return await self._batchers[name].call(flat, row_count=len(rows), size=size, large=large)

    async def run(self, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        """Send a script in its own trip, and return the reply."""
        self._expect_open()
        return await self._noted(self._runner.run(self._script(name), rest, **arguments))

    async def run_at(
        self, queue: str, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int
    ) -> Any:
        """Send a script of another queue in the same slot, and return the reply."""
        self._expect_open()
        keys = QueueKeys(queue, self.session.id)
        script = BoundScript(name, keys, self._common.of(keys))
        return await self._noted(self._runner.run(script, rest, **arguments))

    async def read(self, name: str, command: str, key: str, *arguments: bytes | int) -> Any:
        """Send a command with which a script would read a large reply. See `Runner.read`.

        Args:
            name: The script.
            command: The command's name.
            key: The name of its key among the keys.
            arguments: What follows the key.
        """
        self._expect_open()
        values = [one if isinstance(one, bytes) else b"%d" % one for one in arguments]
        return await self._noted(
            self._runner.read(self._script(name), command.encode(), self.keys[key], *values)
        )

    async def read_many_at(self, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Send commands that read keys in the slot of the queue at once, and return the replies."""
        self._expect_open()
        replies: list[Any] = await self._noted(self._runner.read_many(self._script("run_finish"), commands))
        return replies

    async def read_at(self, command: bytes, key: bytes, *arguments: bytes) -> Any:
        """Send a command that reads a key in the slot of the queue, and return the reply."""
        self._expect_open()
        return await self._noted(self._runner.read(self._script("run_finish"), command, key, *arguments))

    async def _noted(self, call: Awaitable[Any]) -> Any:
        """Return the reply to a call, and note that it is in flight."""
        self._in_flight += 1
        self._calls += 1
        try:
            return await call
        finally:
            self._in_flight -= 1

    def command(self, name: str, rest: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return a script as a plain command, for a pipeline of the user."""
        return self._script(name).command({}, rest)

    async def subscribe(self, channel: str, notify: Callable[[], None]) -> Subscription:
        """Subscribe to a channel of the queue. See `Session.subscribe`.

        Args:
            channel: Its name among the keys.
            notify: Called for each message, when messages may have been missed, and when the engine closes.
        """
        self._expect_open()
        one = await self.session.subscribe(self.keys[channel], lambda _: notify(), notify)
        self._subscriptions.add(one)
        return one

    def unsubscribe(self, one: Subscription) -> None:
        """End a subscription."""
        self._subscriptions.discard(one)
        one.close()

    def due_in(self, seconds: float) -> None:
        """Lease in `seconds`, if any caller waits. See `LeaseDispatcher.due_in`."""
        self._dispatcher.due_in(seconds)

    async def stop_listening(self) -> None:
        """Stop listening if no caller waits for items, and return when none is on its way here."""
        await self._dispatcher.stop_listening()
        await joined(asyncio.gather(*self._releasing))

    async def close(self) -> None:
        """Send what was called, fail those who wait for items, release spare items, leave the session.

        Closing twice is fine. Later calls get QueueClosed.
        """
        await joined(self.start_closing())

    def start_closing(self) -> asyncio.Task[None]:
        """Begin to close in the event loop of the engine, and return the task that does it."""
        if self._closing is None:
            if self._unused_timer is not None:
                self._unused_timer.cancel()
            self._closing = asyncio.create_task(self._close(), name="leasequeue close")
        return self._closing

    def close_when_unused(self, calls: int = -1) -> None:
        """Close as soon as no call has been made for a while, and no caller waits for a result.

        Args:
            calls: How many calls there had been a while ago, when none was in flight; otherwise -1.
        """
        if self._closing is not None:
            return
        in_use = self._in_flight > 0 or self.result_waits.count > 0
        if not in_use and self._calls == calls:
            self.start_closing()
        else:
            seen = -1 if in_use else self._calls
            self._unused_timer = self.loop.call_later(UNUSED_SECONDS, self.close_when_unused, seen)

    async def end(self) -> None:
        """See `Member`."""
        await self._close()

    def abandon(self) -> None:
        """See `Member`."""
        self._refusal = QueueClosed(self._name)
        self._on_abandon()

    async def _close(self) -> None:
        refusal = QueueClosed(self._name)
        await self._dispatcher.close(refusal)
        for batcher in self._batchers.values():
            await batcher.drained()
        await asyncio.gather(*self._releasing)
        self._refusal = refusal
        for one in [*self._subscriptions]:
            self.unsubscribe(one)
            one.on_end()
        self.pushes.close()
        self.reports.close()
        await self.live_events.close(refusal)
        await self.session.leave(self._name, refusal)

    @property
    def refusal(self) -> LeasequeueError | None:
        """What calls get since the engine was closed; None: it is open."""
        return self._refusal

    def _expect_open(self) -> None:
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    def _script(self, name: str) -> BoundScript:
        if name not in self._scripts:
            self._scripts[name] = BoundScript(name, self.keys, self._common)
        return self._scripts[name]

    def _deliver(self, watcher: Watcher, item: LeasedItem) -> bool:
        """Give a watcher an item that was delivered; return whether it has taken it."""
        taken = watcher.delivered(item)
        if taken and telemetry.active is not None:
            telemetry.active.leased(self._name, 1)
        return taken

    def _release_spare(self, spare: list[LeasedItem]) -> None:
        """Release items that were leased for callers that have been cancelled."""
        self.release_soon([(item_id, token) for item_id, _, token, *_ in spare])

    def release_soon(self, held: Sequence[tuple[bytes, int]]) -> None:
        """Release items to the front in their order, by id and token, in a task that `close` waits for."""
        if held:
            task = asyncio.create_task(self._release(held), name="leasequeue release")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    def soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Do some work in a task that `close` waits for. An error of the server is logged."""

        async def run() -> None:
            try:
                await work
            except LeasequeueError as error:
                log.warning("some work on %s is left for later: %s", self._name, error)

        task = asyncio.create_task(run(), name="leasequeue work")
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, held: Sequence[tuple[bytes, int]]) -> None:
        rows = [(item_id, b"%d" % token, b"0", b"1") for item_id, token in held]
        parts = [rows[at : at + TRIP_ROWS] for at in range(0, len(rows), TRIP_ROWS)]
        try:
            # The last part first, because what returns to the front later precedes the rest.
            await asyncio.gather(*(self.many("release_many", part) for part in reversed(parts)))
        except LeasequeueError:
            return  # the server is unavailable; the items return to the queue when their leases expire
