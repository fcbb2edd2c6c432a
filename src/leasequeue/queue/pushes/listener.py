"""Listens for new items on its own connection while callers wait for some."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from leasequeue.durations import Backoff
from leasequeue.errors import LeasequeueError
from leasequeue.queue.pushes.deliveries import Deliveries, read_delivery
from leasequeue.wire.server_errors import is_unknown_script, translate
from leasequeue.wire.subscriptions import joined

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from leasequeue.keys import QueueKeys
    from leasequeue.queue.pushes.deliveries import Delivery
    from leasequeue.queue.pushes.router import PushRouter
    from leasequeue.queue.pushes.seals import Unverified
    from leasequeue.wire.connection import Connection
    from leasequeue.wire.runner import BoundScript, Runner
    from leasequeue.wire.server import Route
    from leasequeue.wire.subscriptions import Subscription

#: How long one blocking move may last on the server, and how much later the connection counts as lost (s).
#: Shorter than the idle limits of the usual load balancers, so that they do not cut it silently.
BLOCK_SECONDS = 5
MARGIN_SECONDS = 5.0
#: How long the server may take to close its end of the connection (s).
CLOSE_SECONDS = 2.0
#: How long the session stays registered: longer than the blocking move that follows (ms).
KEEP_MS = 10_000
#: The longest lease time of an item that is delivered (ms): a process that stands still holds it for so long.
MAX_DELIVERY_MS = 30_000
#: How long to wait for the end of a recall (s).
RECALL_SECONDS = 0.002
#: The reply to a registration that others make a blocking move.
OTHERS_MOVE = -2
#: How many ids `leave` returns to the queue in one step.
LEAVE_STEP = 1000
#: How many connections one event loop opens at once.
MAX_OPENING = 64
#: How soon to ask what falls due after messages may have been missed, and to acknowledge again (s).
AGAIN_SECONDS = 0.1

_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


class Waiter(Protocol):
    """What the listener notifies."""

    @property
    def waits(self) -> bool:
        """Whether to listen on after a move that has ended without an id."""
        ...

    def arrived(self, error: LeasequeueError | None) -> None:
        """Handle the end of listening: an id may be in the inbox, or listening is of no use."""
        ...

    def due_in(self, seconds: float) -> None:
        """Handle the news that a lease expires or an item falls due in `seconds`."""
        ...

    def wanted_lease_ms(self) -> int | None:
        """Return the lease time of an item that is delivered now, in ms; None: it could not be used."""
        ...

    def delivered(self, delivery: Delivery) -> None:
        """Handle an item that was leased for this session when it was added."""
        ...


class Listener:
    """Moves the next waiting id into the inbox of this session, or receives an item that is delivered to it.

    One blocking move follows another on one connection until an id arrives. After an error the connection is
    replaced. Of many sessions that wait, few make such a move, as the server visits each client that is
    blocked on a list when it ceases to be empty; the others are delivered items, and look when notified.
    """

    def __init__(
        self,
        runner: Runner,
        keys: QueueKeys,
        pushes: PushRouter,
        unverified: Unverified,
        blocks: bool,  # noqa: FBT001 - a fact about the queue, beside those before it
        *,
        register: BoundScript,
        leave: BoundScript,
    ) -> None:
        self._runner = runner
        self._route: Route = runner.route
        self._register = register
        self._leave = leave
        self._channel = keys["due"]
        self._pushes = pushes
        self._unverified = unverified
        #: Recalls what was sent to this session, as a message was dropped.
        self._recall_timer: asyncio.TimerHandle | None = None
        #: Shared with the background thread of a worker.
        self.deliveries = Deliveries()
        #: On a cluster, a message also reaches subscribers of other nodes, which the sender does not count.
        self._can_receive = runner.route.slot is None
        self._move = (b"BLMOVE", keys["queue"], keys["inbox"], b"RIGHT", b"LEFT")
        self._loop = asyncio.get_running_loop()
        #: Whether moves may be blocked; else messages, and a timer, have it look.
        self._blocks = blocks
        #: Whether so many sessions wait that others make the moves, as the server has last said.
        self._others_move = False
        #: Whether it was notified to look before the reply to its registration had said so.
        self._looked = False
        self._look_timer: asyncio.TimerHandle | None = None
        #: What is notified when listening ends; None: not listening.
        self._waiter: Waiter | None = None
        #: Opens the connection, or handles its loss.
        self._task: asyncio.Task[None] | None = None
        self._attached = False
        self._broken = False
        #: Until when the server may still execute a blocking move whose connection was lost.
        self._unsure_until = 0.0
        self._connection: Connection | None = None
        #: The last connection on which the session was registered, so that the server knows the script.
        self._registered_on: Connection | None = None
        #: The channel on which it is announced what falls due.
        self._due: Subscription | None = None
        #: Whether this has asked for the pushes. Some may arrive even if not: the queue of a worker receives
        #: them for as long as the worker runs.
        self._receives = False
        #: What was notified last, and takes these.
        self._taker: Waiter | None = None
        pushes.add("item", self._pushed, self._missed)
        pushes.add("look", self._notified, self._look)
        pushes.add("due", self._notified_of_due)
        self._leaving: asyncio.Task[None] | None = None
        self._returning: asyncio.Task[bool] | None = None
        self._backoff = Backoff()

    @property
    def attached(self) -> bool:
        """Whether the server may hold something for this session: its name, its inbox, a connection."""
        return self._attached

    @property
    def listening(self) -> bool:
        """Whether an id that waits or is added is noticed: a move is blocked, or will be when connected."""
        return self._waiter is not None and not self._broken

    def start(self, waiter: Waiter) -> None:
        """Listen for one id, unless already listening."""
        if self._waiter is not None:
            self._want_delivery(waiter)
            return
        self._waiter = self._taker = waiter
        self._attached = True
        leaving = self._leaving is not None and not self._leaving.done()
        if self._connection is None or self._connection.ended or leaving:
            self._task = asyncio.create_task(self._open(waiter), name="leasequeue listen")
        else:
            self._send_move(self._connection, waiter)

    def withdraw(self, waiter: Waiter) -> None:
        """Register for no delivery any more, if none can be used: an item that is added waits for others."""
        if self._attached and self.deliveries.registered and waiter.wanted_lease_ms() is None:
            self._send_registration(waiter, (), self._registration(waiter))

    def return_id(self) -> None:
        """Return the id that has arrived to the front of the queue, and remain registered."""
        self._returning = asyncio.create_task(self._return_arrivals(stays=1), name="leasequeue return")

    def stop_soon(self) -> None:
        """Begin to stop listening, and return at once."""
        task, self._task = self._task, None
        self._waiter = None
        self._stop_timer()
        if self._attached:
            self._attached = False
            self._leaving = asyncio.create_task(self._stop(task, self._leaving), name="leasequeue leave")

    async def stop(self) -> None:
        """Stop listening, and return when ids on their way here are back at the front of the queue.

        A cancelled caller does not wait for that, but it continues.
        """
        self.stop_soon()
        if self._leaving is not None:
            await joined(self._leaving)

    async def _stop(self, task: asyncio.Task[None] | None, before: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
        before_this = (task, before, self._returning)
        await asyncio.gather(*(one for one in before_this if one), return_exceptions=True)
        certain = await self._close_connection()
        if self._waiter is not None:
            return  # listening has begun again
        self._unsubscribe()
        if not certain:
            return  # an id may still be moved here; it returns to the queue when the session expires
        while await self._return_arrivals(stays=0):
            pass

    async def _return_arrivals(self, *, stays: int) -> bool:
        """Return what is on its way to this session to the queue, and whether there may be more."""

        def leave(accepted: list[bytes]) -> Awaitable[Any]:
            return self._runner.run(self._leave, accepted, stays=stays, word=self.deliveries.last_word)

        try:
            return await self.deliveries.recall(leave) == LEAVE_STEP
        except LeasequeueError:
            return False  # the server is unavailable; it returns to the queue when the session expires

    async def _open(self, waiter: Waiter) -> None:
        try:
            if self._leaving is not None and not self._leaving.done():
                # It closes the connection, and may leave an id in the inbox.
                await asyncio.wait([self._leaving])
                self._end(waiter, None)
                return
            await self._close_connection()  # one that has ended between two moves
            if not self._blocks:
                await self._subscribe(waiter)
                self._wait_to_look(waiter)
                return
            async with _opening(self._loop):
                self._connection = await self._connect(waiter)
            self._send_move(self._connection, waiter)
        except Exception as error:  # noqa: BLE001 - who waits gets it
            await self._handle_loss(waiter, translate(error, maybe_applied=False))

    def _send_move(self, connection: Connection, waiter: Waiter) -> None:
        """Register the session, and wait for an id for up to `BLOCK_SECONDS`.

        If others move, the reply says whether they still do; else the move is sent with the registration.
        """
        self._stop_timer()
        self._looked = False
        known = self._registered_on is connection
        register = self._register.by_hash if known else self._register.command
        is_sent = not self._others_move
        try:
            arguments = self._registration(waiter)
            connection.post(register(arguments), partial(self._registered, connection, waiter, is_sent))
            if is_sent:
                seconds = b"%.3f" % _wait_seconds()
                connection.post((*self._move, seconds), partial(self._moved, connection, waiter))
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(connection, waiter, error)

    def _wait_to_look(self, waiter: Waiter) -> None:
        """Register the session, and wait for the message to look. Register again after `BLOCK_SECONDS`.

        The reply says whether to look, as there are items: the message may have been lost.
        """

        def registered(wait_ms: Any, error: BaseException | None) -> None:
            if self._waiter is not waiter or timer.cancelled():
                return
            if error is not None:
                self._stop_timer()
                self._broken = True
                work = self._handle_loss(waiter, translate(error, maybe_applied=True))
                self._task = asyncio.create_task(work, name="leasequeue listen")
            elif wait_ms >= 0:
                waiter.due_in(wait_ms / 1000)

        again = partial(self._register_again, waiter)
        timer = self._look_timer = self._loop.call_later(_wait_seconds(), again)
        self._backoff.reset()
        self._runner.send(self._register, (), registered, large=False, **self._registration(waiter))

    def _register_again(self, waiter: Waiter) -> None:
        if waiter.waits:
            self._wait_to_look(waiter)
        else:
            self._look()

    def _notified(self, message: bytes) -> None:
        if not self.deliveries.use_word(message):
            self._unverified.add()
        elif self._look_timer is None:
            self._looked = True
        else:
            self._look()

    def _notified_of_due(self, message: bytes) -> None:
        if self._waiter is not None:
            self._announced(self._waiter, message)

    def _look(self) -> None:
        """End the wait: an item may have been added, or the message that says so was lost."""
        if self._look_timer is not None and self._waiter is not None:
            self._stop_timer()
            self._end(self._waiter, None)

    def _stop_timer(self) -> None:
        timer, self._look_timer = self._look_timer, None
        if timer is not None:
            timer.cancel()

    def _registered(
        self,
        connection: Connection,
        waiter: Waiter,
        is_move_sent: bool,  # noqa: FBT001 - bound where the command is sent
        wait_ms: Any,
        error: BaseException | None,
    ) -> None:
        if error is not None and is_unknown_script(error) and self._registered_on is connection:
            # The server has forgotten the script, and the move is blocked on this connection.
            self._registered_on = None
            registered = partial(self._registered, connection, waiter, is_move_sent)
            registration = self._registration(waiter)
            self._runner.send(self._register, (), registered, large=False, **registration)
        elif error is not None:
            self._failed(connection, waiter, error)
        else:
            self._registered_on = connection
            self._others_move = wait_ms == OTHERS_MOVE
            if not self._hears(connection):
                return
            if wait_ms >= 0:
                waiter.due_in(wait_ms / 1000)
            if not is_move_sent:
                self._wait_without_move(connection, waiter)

    def _wait_without_move(self, connection: Connection, waiter: Waiter) -> None:
        """Wait to look, or send the move now if others do not make it."""
        self._backoff.reset()
        if self._looked:
            self._end(waiter, None)
        elif self._others_move:
            again = partial(self._wait_again, connection, waiter)
            self._look_timer = self._loop.call_later(_wait_seconds(), again)
        else:  # with another registration, as this one may have waited long for the event loop
            self._send_move(connection, waiter)

    def _wait_again(self, connection: Connection, waiter: Waiter) -> None:
        """Register again, or end the wait."""
        self._look_timer = None
        if self._hears(connection):
            if waiter.waits:
                self._send_move(connection, waiter)
            else:
                self._end(waiter, None)

    def _moved(self, connection: Connection, waiter: Waiter, moved: Any, error: BaseException | None) -> None:
        if error is not None:
            self._failed(connection, waiter, error)
        elif self._hears(connection):
            self._backoff.reset()
            # Also the move of a connection that was lost may have moved an id since.
            certain = self._loop.time() >= self._unsure_until + BLOCK_SECONDS
            if moved is None and certain and waiter.waits:
                self._send_move(connection, waiter)
            else:
                self._end(waiter, None)

    def _failed(self, connection: Connection, waiter: Waiter, error: BaseException) -> None:
        if self._hears(connection):
            self._stop_timer()
            self._broken = True
            ours = translate(error, maybe_applied=True)
            self._task = asyncio.create_task(self._handle_loss(waiter, ours), name="leasequeue listen")

    def _hears(self, connection: Connection) -> bool:
        """Return whether the replies on this connection still matter."""
        return self._connection is connection and self.listening

    async def _handle_loss(self, waiter: Waiter, error: LeasequeueError) -> None:
        """Close the connection, and end listening: after a pause if another try may succeed."""
        self._broken = True
        try:
            await self._close_connection()
            if error.transient:
                await self._backoff.wait()
        finally:
            self._broken = False
        self._end(waiter, None if error.transient else error)

    def _end(self, waiter: Waiter, error: LeasequeueError | None) -> None:
        self._stop_timer()
        self._waiter = self._task = None
        waiter.arrived(error)

    def _registration(self, waiter: Waiter) -> dict[str, bytes | int]:
        """Return the arguments of `register`, which asks for a delivery if one can be used."""
        wanted = waiter.wanted_lease_ms() if self._can_receive and self._attached else None
        if not self._blocks:
            wanted = 0 if self._attached and waiter.wanted_lease_ms() is not None else None
        if wanted is not None and wanted > MAX_DELIVERY_MS:
            wanted = None
        elif wanted:  # an odd time says that no move is made; of even ones the server chooses
            wanted = max(2, wanted - wanted % 2) + (self._look_timer is not None)
        self.deliveries.registered = wanted is not None
        before = self.deliveries.last_word
        if wanted is None:
            return {"keep_ms": KEEP_MS, "lease_ms": b"", "word": b"", "before": before}
        word = self.deliveries.new_word()
        return {
            "keep_ms": KEEP_MS,
            "lease_ms": wanted,
            "word": word,
            "before": before,
        }

    def _want_delivery(self, waiter: Waiter, accepted: tuple[bytes, ...] = ()) -> None:
        """Register for a delivery, unless the session has, and acknowledge what was accepted."""
        if not self._attached:
            if accepted:
                self.return_id()  # which acknowledges, too
            return
        if not accepted and (self.deliveries.registered or not self._receives):
            return
        registration = self._registration(waiter)
        if accepted or self.deliveries.registered:
            self._send_registration(waiter, accepted, registration)

    def _send_registration(
        self, waiter: Waiter, accepted: tuple[bytes, ...], registration: dict[str, bytes | int]
    ) -> None:
        answered = partial(self._acknowledged, waiter, accepted)
        self._runner.send(self._register, accepted, answered, large=False, **registration)

    def _acknowledged(
        self, waiter: Waiter, accepted: tuple[bytes, ...], wait_ms: Any, error: BaseException | None
    ) -> None:
        if error is None:
            self.deliveries.acknowledged(accepted)
            if wait_ms == 0 and self.deliveries.registered:
                self._look()  # if it makes no move: items came while it was not registered
            return
        self.deliveries.registered = False  # perhaps; it registers again before the next move
        if accepted and self._attached:
            self._loop.call_later(AGAIN_SECONDS, self._want_delivery, waiter, accepted)

    def _pushed(self, message: bytes) -> None:
        word, _, rest = message.partition(b" ")
        delivery = read_delivery(rest) if self.deliveries.use_word(word) else None
        if delivery is None:
            self._unverified.add()
            # The words of registrations that are on their way may have been forgotten: see `_missed`.
            if self._recall_timer is None:
                self._recall_timer = self._loop.call_later(AGAIN_SECONDS, self._recall)
        elif self._taker is not None:
            self._received(self._taker, delivery)

    def _received(self, waiter: Waiter, delivery: Delivery) -> None:
        """Accept an item that was delivered, unless the background thread has recalled it."""
        accepted = self.deliveries.accept(delivery)
        if accepted is None:
            self._loop.call_later(RECALL_SECONDS, self._received, waiter, delivery)
        elif accepted:
            self.deliveries.registered = False
            waiter.delivered(delivery)
            # After the item's run has started, which it would delay.
            self._loop.call_soon(self._want_delivery, waiter, (delivery.entry,))
        elif self.deliveries.doubtful:
            self._missed()

    def _missed(self) -> None:
        """Recall an item that may have been sent while the session did not receive."""
        self.deliveries.forget_words()
        self._recall()

    def _recall(self) -> None:
        self._recall_timer = None
        if self._attached:
            self.return_id()

    async def _connect(self, waiter: Waiter) -> Connection:
        await self._subscribe(waiter)
        return await self._route.open("waits", reply_timeout=BLOCK_SECONDS + MARGIN_SECONDS)

    async def _subscribe(self, waiter: Waiter) -> None:
        # Before the session registers: what falls due is in the reply to that, or is published later.
        if self._due is None:
            announced, missed = partial(self._announced, waiter), partial(waiter.due_in, AGAIN_SECONDS)
            self._due = self._route.subscribe(self._channel, announced, missed)
        if not self._receives:
            await self._pushes.hold()
            self._receives = True
        await self._due.confirmed()

    def _announced(self, waiter: Waiter, message: bytes) -> None:
        if message.isdigit() and len(message) < 8:
            waiter.due_in(int(message) / 1000)  # it only leases then
        else:
            self._unverified.add()

    def _unsubscribe(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            due.close()
        if self._receives:
            self._receives = False
            self._pushes.release()

    async def _close_connection(self) -> bool:
        """Close the connection; return whether the server is certain to move no more ids for it.

        If the session left before the server has noticed the close, an id could still be moved into the
        inbox, which no process would then read.
        """
        connection, self._connection = self._connection, None
        if connection is not None and not await connection.close_gracefully(within=CLOSE_SECONDS):
            self._unsure_until = self._loop.time() + BLOCK_SECONDS + 1
        return self._loop.time() >= self._unsure_until


def _wait_seconds() -> float:
    """Return how long one wait lasts: not equally long for all, if many queues began to wait together."""
    return BLOCK_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311 - no secret


def _opening(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    """Return the limit of how many connections an event loop opens at once: the server's backlog is short."""
    limit = _limits.get(loop)
    if limit is None:
        limit = _limits[loop] = asyncio.Semaphore(MAX_OPENING)
    return limit
