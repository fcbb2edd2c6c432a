"""The running parts of a queue object: a runner, a batcher per batched script, the lease dispatcher."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from leasequeue import telemetry
from leasequeue.errors import AccessDenied, LeasequeueError, QueueClosed
from leasequeue.errors.log import Log
from leasequeue.keys import QueueKeys
from leasequeue.queue.bulk import Bulk
from leasequeue.queue.encoding import TRIP_ROWS
from leasequeue.queue.leasing import LeaseDispatcher
from leasequeue.queue.observed import observed
from leasequeue.queue.pushes.listener import Listener
from leasequeue.queue.pushes.live_events import LiveEvents
from leasequeue.queue.pushes.progress import ProgressReports
from leasequeue.queue.pushes.result_waits import ResultWaits
from leasequeue.queue.pushes.router import PushRouter
from leasequeue.queue.registry import Registry
from leasequeue.wire.batcher import Batcher
from leasequeue.wire.replicas import ReplicatedSender
from leasequeue.wire.runner import BoundScript, CommonArguments
from leasequeue.wire.session import SessionUser
from leasequeue.wire.subscriptions import joined

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from leasequeue.codecs import Payloads
    from leasequeue.queue.feeds import Feeds
    from leasequeue.queue.pushes.seals import Unverified
    from leasequeue.wire.batcher import Sender
    from leasequeue.wire.session import Session
    from leasequeue.wire.subscriptions import Subscription

#: After so long without a call it is closed, when the event loop has another session (s). Between two calls
#: of one operation there is less.
UNUSED_SECONDS = 2.0

log = Log("leasequeue.queue")

#: The scripts whose concurrent calls share trips.
BATCHED = (
    "add_items", "complete_many", "renew_many", "release_many", "fail_many", "cancel_many", "progress",
    *(STREAMING := ("emit_chunks", "read_chunks")),
)  # fmt: skip
#: Those that wait for replicas, if the queue does.
REPLICATED = ("add_items", "complete_many")
#: The scripts without which a worker can neither lease items nor acknowledge them.
NEEDED = frozenset({"lease_many", "leave", "register", *BATCHED}).difference(STREAMING)


class Engine:
    """The running parts of one queue object in one event loop.

    It becomes a member of the session. `on_abandon` is called when it must be forgotten without being closed.
    """

    def __init__(  # noqa: PLR0913 - all but three by name
        self,
        keys: QueueKeys,
        session: Session,
        unverified: Unverified,
        *,
        return_front: bool,
        clock: Callable[[], float] | None,
        called: str,
        feeds: Feeds,
        blocks: bool,
        on_abandon: Callable[[], None],
        payloads: Payloads,
        replicas: int = 0,
    ) -> None:
        self.keys, self.payloads = keys, payloads
        self.feeds = feeds
        self.session = session
        self.unverified = unverified
        self.loop = session.loop
        self.name = keys.prefix.decode()
        self._called = called
        self._on_abandon = on_abandon
        #: Where the next light clean continues to check, by script and key.
        self.clean_cursors: dict[str, bytes] = {}
        self._common = CommonArguments(
            keys, return_front=return_front, rights=session.servers.rights, clock=clock
        )
        #: Sends scripts to the server that holds the queue, and leads there.
        self.runner = session.runner_for(keys)
        self.route = self.runner.route
        if called != self.name and not session.servers.rights.checked:
            session.servers.rights.whole = called
        self._scripts: dict[str, BoundScript] = {}
        self._batchers = self._make_batchers(replicas)
        self._subscriptions: set[Subscription] = set()
        self.live_events = LiveEvents(self.route, keys["live"], self.run, unverified, payloads)
        self.pushes = PushRouter(self.route, keys["push"], keys.secret, unverified)
        self.result_waits = ResultWaits(self.pushes, self.run, lambda: self._refusal)
        self.reports = ProgressReports(self.many, self.name)
        self._releasing: set[asyncio.Task[None]] = set()
        self._refusal: LeasequeueError | None = None
        #: Of calls that are no batched ones, those in flight and all; blocks that hold a limit or wait.
        self._in_flight = self._calls = self.holds = 0
        self._unused_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        listener = self._make_listener(blocks=blocks)
        self.deliveries = listener.deliveries
        self.leasing = LeaseDispatcher(
            self.runner,
            self._script("lease_many"),
            listener,
            queue=called,
            release=self.release_soon,
            expect_open=self._expect_open,
        )
        self.bulk = Bulk(self.run, self.read)
        self.registry = Registry(session, self.run, self.read)
        self.rights = QueueRights(self)
        session.members[self.name] = SessionUser(self._close, self._abandon)

    def _make_listener(self, *, blocks: bool) -> Listener:
        return Listener(
            *(self.runner, self.keys, self.pushes, self.unverified, blocks),
            register=self._script("register"),
            leave=self._script("leave"),
        )

    def _make_batchers(self, replicas: int) -> dict[str, Batcher]:
        senders: dict[str, Sender] = dict.fromkeys(BATCHED, self.runner)
        if replicas:
            senders |= dict.fromkeys(REPLICATED, ReplicatedSender(self.runner, replicas))
        return {name: Batcher(one, self._script(name), max_rows=TRIP_ROWS) for name, one in senders.items()}

    async def one(self, name: str, row: Sequence[bytes], *, size: int = 64) -> Any:
        """Send one row of a batched script, together with rows of other callers, and return its answer."""
        self._expect_open()
        batcher = self._batchers[name]
        if telemetry.active is not None:
            send = partial(self._send_one, batcher, size)
            return (await observed(telemetry.active, self._called, name, (row,), send))[0]
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
        return await self._noted(self.runner.run(self._script(name), rest, **arguments))

    async def run_at(
        self, queue: str, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int
    ) -> Any:
        """Send a script of this queue, or of another one in its slot, and return the reply."""
        if queue == self.name:
            return await self.run(name, rest, **arguments)
        self._expect_open()
        keys = QueueKeys(queue, self.session.id)
        script = BoundScript(name, keys, self._common.of(keys))
        return await self._noted(self.runner.run(script, rest, **arguments))

    async def read(self, name: str, command: str, key: str, *arguments: bytes | int) -> Any:
        """Send a command with which a script would read a large reply. See `Runner.read`."""
        self._expect_open()
        values = [one if isinstance(one, bytes) else b"%d" % one for one in arguments]
        return await self._noted(
            self.runner.read(self._script(name), command.encode(), self.keys[key], *values)
        )

    async def read_many_at(self, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Send commands that read keys in the slot of the queue at once, and return the replies."""
        self._expect_open()
        replies: list[Any] = await self._noted(self.runner.read_many(self._script("run_finish"), commands))
        return replies

    async def read_at(self, command: bytes, key: bytes, *arguments: bytes) -> Any:
        """Send a command that reads a key in the slot of the queue, and return the reply."""
        self._expect_open()
        return await self._noted(self.runner.read(self._script("run_finish"), command, key, *arguments))

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
        """Subscribe to a channel of numbers, and return when the server has confirmed.

        `notify` is called for each message, when messages may have been missed, and when the engine closes.
        """
        self._expect_open()

        def received(message: bytes) -> None:
            (notify if message.isdigit() else self.unverified.add)()

        one = self.route.subscribe(self.keys[channel], received, notify)
        self._subscriptions.add(one)
        try:
            await one.confirmed()
        except BaseException:
            self.unsubscribe(one)
            raise
        return one

    def unsubscribe(self, one: Subscription) -> None:
        """End a subscription."""
        self._subscriptions.discard(one)
        one.close()

    async def stop_listening(self) -> None:
        """Stop listening if no caller waits for items, and return when none is on its way here."""
        await self.leasing.stop_listening()
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

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closing is not None and self._closing.done()

    def close_when_unused(self, calls: int = -1) -> None:
        """Close as soon as no call has been made for a while, and nothing that lasts uses it.

        `calls` is how many calls there had been a while ago, if none was in flight then; otherwise -1.
        """
        if self._closing is not None:
            return
        lasts = self.holds or self.result_waits.count or self.live_events.in_use or self.leasing.in_use
        in_use = self._in_flight > 0 or bool(lasts)
        if not in_use and self._calls == calls:
            self.start_closing()
        else:
            seen = -1 if in_use else self._calls
            self._unused_timer = self.loop.call_later(UNUSED_SECONDS, self.close_when_unused, seen)

    def _abandon(self) -> None:
        self._refusal = QueueClosed(self.name)
        self._on_abandon()

    async def _close(self) -> None:
        refusal = QueueClosed(self.name)
        await self.leasing.close(refusal)
        for batcher in self._batchers.values():
            await batcher.drained()
        await asyncio.gather(*self._releasing)
        self._refusal = refusal
        for one in [*self._subscriptions]:
            one.close(refusal)  # for those who wait for its begin
            one.on_missed()
        self._subscriptions.clear()
        self.pushes.close()
        self.reports.close()
        await self.live_events.close(refusal)
        await self.session.leave(self.name, self.runner, refusal)

    def _expect_open(self) -> None:
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    def _script(self, name: str) -> BoundScript:
        if name not in self._scripts:
            self._scripts[name] = BoundScript(name, self.keys, self._common)
        return self._scripts[name]

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
                log.warning("some work on %s is left for later: %s", self.name, error)

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


class QueueRights:
    """Checks the rights of a session before it begins what it could not end."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def expect_worker(self, adds_to: Iterable[str] = ()) -> None:
        """Check that the server permits the session what a worker needs.

        What only other calls need is logged. The commands are those of the whole queue: a rule for single
        keys of it is found when they are used. `adds_to` names other queues in its slot to which the worker
        adds items of flow runs, or which hold their state. The text of AccessDenied has the rules that permit
        what is missing.
        """
        await self._engine.runner.expect_rights(NEEDED, self._engine.keys)
        await self.expect_queues(adds_to, "which the stages of a flow need")

    async def expect_queues(self, names: Iterable[str], why: str) -> None:
        """Check that the server permits the session to write to other queues in the slot, each once.

        `why` says in the text of AccessDenied what needs them.
        """
        rights = self._engine.runner.rights
        for name in dict.fromkeys(names):
            if name == self._engine.name or name in rights.reached:
                continue
            try:
                # Which settles nothing: no item has this id. The server checks the rules for all its keys.
                await self._engine.run_at(name, "run_settle", [b"\0"], cursor=b"0", feeds=b"")
            except AccessDenied as error:
                raise error if error.commands else rights.denied_queue(name, why) from error
            rights.reached.add(name)
