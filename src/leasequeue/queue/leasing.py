"""Leases items for all coroutines of one queue object.

Requests are gathered as in the batcher: one call of the script serves many of them. A request that finds the
queue empty may wait. While any waits, one connection listens for new items (`BLMOVE` into the inbox of this
session, so that an item wakes one process), and a timer leases again when the next lease expires or the next
delayed item falls due.

A watcher, such as a worker, waits without a request: it is notified when an item may be waiting, and leases
it if it can. If it cannot, the item returns to the front of the queue, where it wakes another process.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from leasequeue import telemetry
from leasequeue.errors import LeasequeueError, copied
from leasequeue.errors.log import Log
from leasequeue.queue.encoding import MAX_REPLY_BYTES
from leasequeue.queue.observed import observed_lease
from leasequeue.wire.batcher import TripGate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasequeue.queue.pushes.deliveries import Delivery
    from leasequeue.queue.pushes.listener import Listener
    from leasequeue.wire.runner import BoundScript, Runner

#: The maximum number of items of one trip, unless one request asks for more.
MAX_ITEMS = 250
log = Log("leasequeue.queue")

#: How many sessions ask when an item falls due, if more wait. Of 8 one has room, nearly always.
ASK_WHEN_DUE = 8
#: With which chance one that has asked then asks at the next time, too: so a few go on.
ASK_AGAIN = 0.5
#: How long the listener is kept after the last request has left (s): the next one often comes at once.
LINGER_SECONDS = 0.25

#: The level of what is leased next, before a reply has said what it is.
UNKNOWN = math.inf

#: The arguments of a `Lease`: id, data, token, attempt, lease time in ms, `time.monotonic()` before the
#: request was sent, the server's time in ms, and what else it carries: `<trace>`, then `\n<stage>`, then
#: `\0\0\0<group>` (`\n\0\0\0<group>` if it is for no stage). Each may be missing; without any it is None.
LeasedItem = tuple[bytes, bytes, int, int, int, float, int, bytes | None]


@dataclass(slots=True, eq=False)
class LeaseRequest:
    """A caller's request for up to `count` items, each leased for `lease_ms`.

    `by_level`: of one level. `whole`: all of a batch that has gathered, which may be more.
    """

    count: int
    lease_ms: int
    blocks: bool
    by_level: bool
    whole: bool
    future: asyncio.Future[list[LeasedItem]]
    made_at: float
    timer: asyncio.TimerHandle | None = None


class Watcher(Protocol):
    """Waits for items of a queue without a request, and decides whether to lease when there may be some."""

    def arrived(self) -> bool:
        """Handle the news that an item may be waiting; return whether it will be leased soon.

        The watcher is not notified again before it calls `watch` again.
        """
        ...

    def failed(self, error: LeasequeueError) -> None:
        """Handle an error that makes waiting useless, such as QueueClosed."""
        ...

    def wanted_lease_ms(self) -> int | None:
        """Return the lease time of an item that is delivered now, in ms; None: there is no room for it."""
        ...

    def delivered(self, item: LeasedItem) -> bool:
        """Take an item that was leased for this session when it was added; return whether there is room."""
        ...


class LeaseDispatcher:
    """Leases items and distributes them to the callers of one queue object.

    `release` gets the ids and tokens of items whose callers were cancelled, to release them to the front.

    Attributes:
        next_level: The level of what is leased next, as the last reply to a call by level has said; None: it
            has said nothing.
    """

    def __init__(
        self,
        runner: Runner,
        script: BoundScript,
        listener: Listener,
        *,
        queue: str,
        release: Callable[[Sequence[tuple[bytes, int]]], None],
        expect_open: Callable[[], None],
    ) -> None:
        self._gate = TripGate(runner, script, self._send)
        self._listener = listener
        self._queue = queue
        self._release_soon = release
        self._expect_open = expect_open
        self._loop = asyncio.get_running_loop()
        #: Requests that no trip has carried yet.
        self._new: deque[LeaseRequest] = deque()
        #: Delivered items that no caller waited for: requests of the next reply may take them.
        self._held: list[LeasedItem] = []
        #: Requests that found the queue empty and wait, the oldest first.
        self._waiting: deque[LeaseRequest] = deque()
        #: Those that wait without a request, and whether each expects to be notified.
        self._watchers: dict[Watcher, bool] = {}
        self._lease_again = False
        self.next_level: float | None = UNKNOWN
        #: Whether the queue was empty at the last trip, and nothing has been noticed since.
        self._empty = False
        #: Whether an id may be in the inbox that arrived after the last trip was sent.
        self._arrived = False
        self._due_timer: asyncio.TimerHandle | None = None
        #: Whether no other session asks when that timer ends, as a limit permits more items then.
        self._must_ask = False
        #: Whether that timer has ended since the last reply.
        self._was_due = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._sessions = 1
        #: By how much the server's clock was ahead of `time.monotonic()`, at most (s).
        self._offset = 0.0

    async def lease(
        self,
        count: int,
        lease_ms: int,
        *,
        blocks: bool,
        timeout: float | None,
        by_level: bool = False,
        whole: bool = False,
    ) -> list[LeasedItem]:
        """Lease up to `count` items, in steps of at most MAX_ITEMS. With `by_level` a step has one level.

        With `whole`, a batch that has gathered is leased by itself if it has more than the step asks for.

        Only the first step waits. If a later one fails, return what the others have leased; if the caller is
        cancelled, release that. An empty list: there was none (in time).
        """
        self._expect_open()
        leasing = self._lease(count, lease_ms, blocks=blocks, timeout=timeout, by_level=by_level, whole=whole)
        if telemetry.active is not None:
            return await observed_lease(telemetry.active, self._queue, leasing, waits=blocks)
        return await leasing

    async def _lease(
        self, count: int, lease_ms: int, *, blocks: bool, timeout: float | None, by_level: bool, whole: bool
    ) -> list[LeasedItem]:
        size, by = min(count, MAX_ITEMS), {"by_level": by_level, "whole": whole}
        items = await self._request(size, lease_ms, blocks=blocks, timeout=timeout, **by)
        leased = len(items)
        try:
            while leased == size and len(items) < count:
                size = min(count - len(items), MAX_ITEMS)
                more = await self._request(size, lease_ms, blocks=False, timeout=None, **by)
                leased = len(more)
                items += more
        except LeasequeueError as error:
            log.warning("only %d of %d items were leased from %s: %s", len(items), count, self._queue, error)
        except asyncio.CancelledError:
            self._release(items)
            raise
        return items

    async def _request(
        self, count: int, lease_ms: int, *, blocks: bool, timeout: float | None, by_level: bool, whole: bool
    ) -> list[LeasedItem]:
        request = LeaseRequest(
            count, lease_ms, blocks, by_level, whole, self._loop.create_future(), self._loop.time()
        )
        if blocks and timeout is not None:
            request.timer = self._loop.call_later(timeout, self._expire, request)
        if blocks and self._empty and self._listener.listening and not self._new:
            self._waiting.append(request)  # a trip would find nothing
            self._listener.start(self)
        else:
            self._new.append(request)
            self.wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            self._abandon(request)
            raise
        finally:
            if request.timer is not None:
                request.timer.cancel()

    def wake(self) -> None:
        """Call the script, soon or when the trip in flight has ended. See `TripGate.wake`."""
        if self._gate.in_flight:
            self._lease_again = True
        else:
            self._gate.wake()

    def watch(self, watcher: Watcher) -> bool:
        """Notify a watcher once, when an item may be waiting. Listen until `unwatch`, also between two calls.

        An item that arrives while no watcher expects to be notified, or that none will lease, returns to the
        front of the queue at once. Return False if an item may be waiting now: lease without waiting, and
        then try again.
        """
        self._expect_open()
        self._watchers[watcher] = self._empty
        if self._empty:
            self._listener.start(self)
        return self._empty

    def unwatch(self, watcher: Watcher) -> None:
        """Notify a watcher no more."""
        self._watchers.pop(watcher, None)
        self._linger()

    @property
    def is_listening(self) -> bool:
        """Whether an id may be on its way to this session; callable from any thread."""
        return self._listener.attached

    @property
    def in_use(self) -> bool:
        """Whether a request or a watcher waits, or a trip has no reply yet."""
        return bool(self._waiting or self._new or self._watchers) or self._gate.busy

    @property
    def waits(self) -> bool:
        """Whether a request or a watcher waits for an item that is added later."""
        return self._empty and (bool(self._waiting) or any(self._watchers.values()))

    def arrived(self, error: LeasequeueError | None) -> None:
        """Lease what the listener has received, or stop listening if nothing waits for it.

        With an error, listening is of no use: all waiting requests and watchers fail with it.
        """
        self._empty = False
        if error is not None:
            while self._waiting:
                _fail(self._waiting.popleft(), error)
            for watcher in self._expecting():
                watcher.failed(error)
        self._arrived = True
        if self._waiting or self._new or self._gate.in_flight:
            self.wake()
        else:
            self._offer()

    def wanted_lease_ms(self) -> int | None:
        """See `Waiter`."""
        if not self._empty:
            return None
        for request in self._waiting:
            if not request.future.done():
                return request.lease_ms
        for watcher, expects in self._watchers.items():
            if expects and (lease_ms := watcher.wanted_lease_ms()) is not None:
                return lease_ms
        return None

    def delivered(self, delivery: Delivery) -> None:
        """See `Waiter`. Give the item to the oldest request, or to a watcher, or release it.

        While calls are on their way, hold it until the reply: they may find the queue empty.
        """
        # The server's clock was ahead of this one by at most `_offset`: the lease began no earlier.
        began = min(time.monotonic(), delivery.now_ms / 1000 - self._offset)
        token, attempt, lease_ms, now_ms, item_id, data, trace = delivery
        item = (item_id, data, token, attempt, lease_ms, began, now_ms, trace)
        if self._waiting and not self._reassign([item]):
            self._linger()
            return
        # Also one that is leasing now: it was notified since this session has registered for the delivery.
        if any(self._deliver(watcher, item) for watcher in self._watchers):
            return
        self._held.append(item)
        if not (self._new or self._gate.in_flight):
            self._release_held()

    def due_in(self, seconds: float) -> None:
        """Lease in `seconds`, when a lease expires or an item falls due, unless another is due earlier."""
        if not (self._listener.listening or self._waiting or self._watchers or self._gate.in_flight):
            return
        # The first process to lease reclaims all that is due, which wakes as many others as are needed. So
        # the timers of several waiting processes differ a little; that of a single one is exact.
        spread = 0.0 if self._must_ask else min(0.02, 0.0002 * (self._sessions - 1))
        due = self._loop.time() + seconds + 0.001 + random.uniform(0, spread)  # noqa: S311 - no secret
        if self._due_timer is None or due < self._due_timer.when():
            self._cancel_due_timer()
            self._due_timer = self._loop.call_at(due, self._due)

    def _due(self) -> None:
        """Lease what is due now, for the requests or the watchers that wait."""
        self._due_timer = None
        self._empty, self._was_due = False, True
        if self._waiting or self._new or self._gate.in_flight:
            self.wake()
        elif self._watchers or self._must_ask:
            self._offer()

    def _offer(self) -> None:
        """Have a watcher lease what may be waiting. If none can, return the id that has arrived.

        If this session alone was to ask now, another one is notified to ask.
        """
        if any(watcher.arrived() for watcher in self._expecting()):
            return
        if (self._arrived or self._must_ask) and self._watchers:
            self._arrived = self._must_ask = False
            self._listener.return_id()
        elif not self._watchers:
            self._stop_listening()

    def _expecting(self) -> Iterator[Watcher]:
        """Yield the watchers that expect to be notified. Each has to call `watch` again."""
        for watcher, expects in list(self._watchers.items()):
            if expects:
                self._watchers[watcher] = False
                yield watcher

    async def stop_listening(self) -> None:
        """Stop listening if no request waits, and return when no item is on its way to this process.

        If a trip is in flight, wait for it first: items that it leases for cancelled callers are released.
        """
        while self._gate.busy and not self._waiting:
            await self._gate.change()
        if not (self._waiting or self._new or self._watchers):
            await self._listener.stop()

    async def close(self, error: LeasequeueError) -> None:
        """Fail all requests, and return what is on its way to this process to the queue."""
        while True:
            for request in (*self._waiting, *self._new):
                _fail(request, error)
            self._waiting.clear()
            if not self._gate.busy:
                break
            # Requests of the trip in flight get what it leases, or wait after it and fail then.
            await self._gate.change()
        for watcher in list(self._watchers):
            watcher.failed(error)
        self._watchers.clear()
        for timer in (self._due_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        await self._listener.stop()

    def _release(self, items: Sequence[LeasedItem]) -> None:
        self._release_soon([(item_id, token) for item_id, _, token, *_ in items])

    def _deliver(self, watcher: Watcher, item: LeasedItem) -> bool:
        """Give a watcher an item that was delivered; return whether it has taken it."""
        taken = watcher.delivered(item)
        if taken and telemetry.active is not None:
            telemetry.active.leased(self._queue, 1)
        return taken

    def _abandon(self, request: LeaseRequest) -> None:
        """Forget the request of a cancelled caller, and release what was just leased for it."""
        if request.future.done() and not request.future.cancelled() and request.future.exception() is None:
            self._release(request.future.result())
        if request in self._waiting:
            self._waiting.remove(request)
            self._end_wait()

    def _expire(self, request: LeaseRequest) -> None:
        """End a request whose timeout has passed. If a trip carries it, it gets what that leases."""
        request.timer = None
        request.blocks = False
        if request in self._waiting:
            self._waiting.remove(request)
            self._end_wait()
            if not request.future.done():
                request.future.set_result([])

    def _end_wait(self) -> None:
        """Act on a caller that waits no more. What is added now must not be leased for it."""
        self._listener.withdraw(self)
        self._linger()

    def _linger(self) -> None:
        """Stop listening in a moment, if nothing waits."""
        if self._waiting or self._watchers:
            return
        if self._listener.attached and self._linger_timer is None:
            self._linger_timer = self._loop.call_later(LINGER_SECONDS, self._linger_ended)

    def _linger_ended(self) -> None:
        self._linger_timer = None
        if not (self._waiting or self._watchers):
            self._stop_listening()

    def _stop_listening(self) -> None:
        self._cancel_due_timer()
        self._empty = False
        self._listener.stop_soon()

    def _send(self) -> None:
        """Make one trip for all requests, those that have waited longest first."""
        requests, wants = self._next_requests()
        if not requests:
            # All were cancelled. What came for them returns to the queue at once.
            self._release_held()
            self._offer()
            return
        unsent = len(self._new)
        self._lease_again = self._arrived = self._empty = self._must_ask = False
        self._cancel_due_timer()  # the reply says what is due next
        asked_at = time.monotonic()

        def answered(reply: list[Any] | None, error: BaseException | None) -> None:
            if reply is None:
                self._fail_all(requests, copied(error))
                return
            try:
                self._distribute(requests, reply, asked_at, unsent)
            except Exception as problem:  # noqa: BLE001 - else those that it has not answered wait for ever
                self._fail_all(requests, problem)

        self._gate.send(
            wants,
            answered,
            calls=len(requests),
            max_bytes=MAX_REPLY_BYTES,
            by_level=int(all(request.by_level for request in requests)),
            whole=int(requests[0].whole),
        )

    def _next_requests(self) -> tuple[list[LeaseRequest], list[bytes]]:
        """Return the requests of the next trip, and what to ask for: pairs of a count and a lease time."""
        requests: list[LeaseRequest] = []
        wants: list[list[int]] = []
        total = 0
        for source in (self._waiting, self._new):
            while source and total < MAX_ITEMS:
                request = source[0]
                if not request.future.done():
                    # What is leased for whole batches is for one request.
                    if requests and (total + request.count > MAX_ITEMS or request.whole or requests[0].whole):
                        return requests, [b"%d" % number for want in wants for number in want]
                    total += request.count
                    requests.append(request)
                    if wants and wants[-1][1] == request.lease_ms:
                        wants[-1][0] += request.count
                    else:
                        wants.append([request.count, request.lease_ms])
                source.popleft()
        return requests, [b"%d" % number for want in wants for number in want]

    def _fail_all(self, requests: list[LeaseRequest], error: BaseException) -> None:
        for request in requests:
            _fail(request, error)
        while self._new and (refusal := self._gate.refusal(self._new[0].made_at)) is not None:
            _fail(self._new.popleft(), refusal)
        self._release_held()
        self.next_level = None
        self._arrived = True  # perhaps: it is unknown what the server has done
        self._continue(wait_ms=-1, empty=False)

    def _distribute(
        self, requests: list[LeaseRequest], reply: list[Any], asked_at: float, unsent: int
    ) -> None:
        """Give the leased items to the requests of a trip, in their order."""
        now_ms, wait_ms, sessions = reply[0], reply[1], abs(reply[2])
        self._must_ask = reply[2] < 0
        self._offset = now_ms / 1000 - asked_at
        self.next_level = int(reply.pop()) if reply[-1].__class__ is bytes else None
        traces = reply.pop() if reply[-1].__class__ is list else None
        at, end = 3, len(reply)
        unserved: list[LeaseRequest] = []
        for request in requests:
            stop = end if request.whole else min(end, at + 4 * request.count)
            items: list[LeasedItem] = [
                (reply[i], reply[i + 1], reply[i + 2], reply[i + 3], request.lease_ms, asked_at, now_ms, None)
                for i in range(at, stop, 4)
            ]
            if traces is not None:
                its = traces[(at - 3) // 4 :]
                items = [(*item[:7], trace) for item, trace in zip(items, its, strict=False)]
            at = stop
            if request.future.done():
                self._held += items
            elif items or not (request.blocks or wait_ms == 0):
                request.future.set_result(items)
            else:
                unserved.append(request)
        # Those that have waited longest stay first.
        self._waiting.extendleft(reversed(unserved))
        if unserved and wait_ms != 0:
            self._answer_unsent(unsent)
        self._release_held()
        self._sessions = sessions or self._sessions  # 0 if it leased all that was asked for
        asked_for = sum(request.count for request in requests)
        self._continue(wait_ms, empty=wait_ms != 0 and end < 3 + 4 * asked_for)

    def _answer_unsent(self, count: int) -> None:
        """Answer the first `count` new requests, which came before a trip that found the queue empty.

        Without this they would never be answered as long as waiting requests fill each trip.
        """
        for _ in range(min(count, len(self._new))):
            request = self._new.popleft()
            if request.future.done():
                continue
            if request.blocks:
                self._waiting.append(request)
            else:
                request.future.set_result([])

    def _release_held(self) -> None:
        """Release what is held, but for what requests take that wait, or will be sent next."""
        if self._held:
            held, self._held = self._held, []
            self._release(self._reassign(held))

    def _reassign(self, spare: list[LeasedItem]) -> list[LeasedItem]:
        """Give items to requests of the same lease time, those that wait first; return those left."""
        left: list[LeasedItem] = []
        for item in spare:
            taker = next(
                (
                    request
                    for request in (*self._waiting, *self._new)
                    # The server marks who makes no move by the last bit of the time.
                    if request.lease_ms | 1 == item[4] | 1 and not request.future.done()
                ),
                None,
            )
            if taker is None:
                left.append(item)
            else:
                (self._waiting if taker in self._waiting else self._new).remove(taker)
                taker.future.set_result([item])
        return left

    def _continue(self, wait_ms: int, *, empty: bool) -> None:
        """After a trip: make the next one, or listen and set the timer."""
        if self._new or self._lease_again or (self._waiting and wait_ms == 0):
            self._lease_again = False
            self.wake()
            return
        self._empty = empty
        if self._asks_when_due() and wait_ms > 0:
            self.due_in(wait_ms / 1000)
        if self._waiting:
            self._listener.start(self)
        elif not self._watchers:
            self._linger()
        elif not empty:
            self._offer()

    def _asks_when_due(self) -> bool:
        """Return whether to ask when the next item falls due: of many sessions that wait, some do.

        If none of those has room, the next session that registers finds the item overdue: of n, in 5 s / n.
        """
        again, self._was_due = ASK_AGAIN if self._was_due else 0.0, False
        share = max(again, ASK_WHEN_DUE / max(1, self._sessions))
        return self._must_ask or random.random() < share  # noqa: S311 - no secret

    def _cancel_due_timer(self) -> None:
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None


def _fail(request: LeaseRequest, error: BaseException) -> None:
    """Fail a request with a copy of an error: a shared one would gather the tracebacks of all callers."""
    if not request.future.done():
        request.future.set_exception(copied(error))
