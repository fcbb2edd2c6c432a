"""Gathers concurrent calls of one script into trips: while trips are in flight, the next calls gather.

A lone call is sent at once. Other calls made in the same turn of the event loop go together, up to a number
of rows and of bytes. Each caller gets its own answers. Cancelling one caller affects no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.errors import ConnectionLost, NotReplicated, copied
from leasequeue.wire.link import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leasequeue.wire.connection import OnReply
    from leasequeue.wire.replicas import ReplicatedSender
    from leasequeue.wire.runner import BoundScript, Runner

    Sender = Runner | ReplicatedSender


#: The maximum of rows of a trip while few calls wait. Several small trips in flight keep the server and this
#: process busy at the same time; with one large trip they take turns.
SMALL_TRIP_ROWS = 250


class TripGate:
    """Decides when the next trip of one script is sent, and counts those in flight.

    `flush` sends the next trips with `send`, as long as the gate is `open`.

    Attributes:
        in_flight: How many trips have no reply yet.
        changed: Set when a trip has been sent, or has ended. See `change`.
    """

    def __init__(
        self, sender: Sender, script: BoundScript, flush: Callable[[], None], *, max_in_flight: int = 1
    ) -> None:
        self._sender = sender
        self._script = script
        self._flush = flush
        self._max_in_flight = max_in_flight
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._flushing = False
        #: Whether the last trip carried one call. Where calls come together, the first waits for the others.
        self._last_was_lone = True
        self.changed = asyncio.Event()
        self.in_flight = 0
        #: Whether the last trip that has ended was lost, and when the server last answered one.
        self._lost = False
        self._answered_at = float("-inf")

    @property
    def open(self) -> bool:
        """Whether one more trip may be sent."""
        return self.in_flight < self._max_in_flight

    @property
    def busy(self) -> bool:
        """Whether a trip is in flight, or will be at the end of this turn of the event loop."""
        return self.in_flight > 0 or self._scheduled

    @property
    def asleep(self) -> bool:
        """Whether one more trip may be sent, and none will be unless the gate is woken."""
        return not self._scheduled and self.in_flight < self._max_in_flight

    @property
    def sends_at_once(self) -> bool:
        """Whether the next call is sent at once, as calls come one at a time."""
        return self._last_was_lone and not (self.in_flight or self._scheduled or self._flushing)

    def wake(self) -> None:
        """Flush: at once if calls come one at a time, otherwise at the end of this turn of the event loop."""
        if not self.asleep:
            return
        if self.sends_at_once:
            self.flush()
        else:
            self._scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def flush(self) -> None:
        """Send the next trips now; in a reply that comes while they are being sent, do nothing."""
        if self._flushing:
            return
        self._flushing = True
        try:
            self._flush()
        finally:
            self._flushing = False
            self.changed.set()

    def send(
        self,
        rest: Iterable[bytes],
        on_reply: OnReply,
        /,
        *,
        calls: int,
        large: bool = False,
        **arguments: bytes | int,
    ) -> None:
        """Send a trip. `on_reply` is called once, also if the sender raises; the trip is then over.

        `calls` is how many calls the trip carries. Small trips do not wait for one that is `large`.
        """
        self.in_flight += 1
        self._last_was_lone = calls == 1
        trip = _Trip(self, on_reply)
        try:
            self._sender.send(self._script, rest, trip, large=large, **arguments)
        except Exception as error:  # noqa: BLE001 - the callers get it
            trip(None, error)

    def refusal(self, made_at: float) -> ConnectionLost | None:
        """Return the error for a call that is not sent yet, if it is to wait for no further trip.

        So the call is if trips are lost, and the server has answered none for `reply_timeout` since it was
        made: a server that stands still fails all waiting calls together, not one trip after the other.
        `made_at` is by the clock of the event loop.
        """
        limit = self._sender.reply_timeout
        if not self._lost or self._loop.time() - max(made_at, self._answered_at) < limit:
            return None
        return ConnectionLost(
            f"the server has answered nothing for {limit:g} s, so the call was not sent", maybe_applied=False
        )

    def ended(self, error: BaseException | None) -> None:
        """Note that a trip has ended."""
        self.in_flight -= 1
        self._lost = isinstance(error, ConnectionLost)
        if not self._lost:
            self._answered_at = self._loop.time()
        self.changed.set()

    async def change(self) -> None:
        """Wait until a trip has been sent, or has ended."""
        self.changed.clear()
        await self.changed.wait()

    def _flush_scheduled(self) -> None:
        self._scheduled = False
        self.flush()


class _Trip:
    """A trip in flight; called with its reply, or with an error in its place."""

    __slots__ = ("_gate", "_on_reply")

    def __init__(self, gate: TripGate, on_reply: OnReply) -> None:
        self._gate = gate
        self._on_reply: OnReply | None = on_reply

    def __call__(self, reply: Any, error: BaseException | None) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            self._gate.ended(error)
            on_reply(reply, error)


@dataclass(slots=True, eq=False)
class _Gathered:
    values: Sequence[bytes]
    row_count: int
    size: int
    future: asyncio.Future[Any]
    made_at: float


class Batcher:
    """Gathers the calls of one script.

    Large calls have trips of their own, over another connection: small ones do not wait for their upload.
    Such a trip has at most `max_bytes`; a larger call goes alone. When `max_waiting_bytes` wait to be sent,
    further callers wait too. At most `max_in_flight` trips are in flight at once.
    """

    def __init__(
        self,
        runner: Sender,
        script: BoundScript,
        *,
        max_rows: int = 500,
        max_bytes: int = 1 << 20,
        max_waiting_bytes: int = 64 << 20,
        max_in_flight: int = 4,
    ) -> None:
        self._max_waiting_bytes = max_waiting_bytes
        self._loop = asyncio.get_running_loop()
        limits = _Limits(max_rows, min(SMALL_TRIP_ROWS, max_rows), max_bytes, max_in_flight)
        self._small = _Lane(
            runner, script, limits._replace(max_bytes=min(max_bytes, LARGE_BYTES)), large=False
        )
        self._large = _Lane(runner, script, limits, large=True)

    async def call(
        self, values: Sequence[bytes], *, row_count: int = 1, size: int = 64, large: bool = False
    ) -> list[Any]:
        """Send rows in the next trip, and return the answers to them.

        The rows (`values`) are flat, and about `size` bytes. With `large` they go with the large calls in any
        case, to keep an order. Raise the error that the trip failed with, or ConnectionLost if it was not
        sent, as the server answers nothing: see `TripGate.refusal`.
        """
        lane = self._large if large or size > LARGE_BYTES else self._small
        made_at = self._loop.time()
        while lane.waiting_bytes >= self._max_waiting_bytes:
            await lane.gate.change()
            if (refusal := lane.gate.refusal(made_at)) is not None:
                raise refusal
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        lane.add(_Gathered(values, row_count, size, future, made_at))
        return await future

    async def drained(self) -> None:
        """Wait until every call has been answered."""
        for lane in (self._small, self._large):
            while lane.gathered or lane.gate.in_flight:
                await lane.gate.change()


class _Limits(NamedTuple):
    max_rows: int
    small_trip_rows: int
    max_bytes: int
    max_in_flight: int


class _Lane:
    """Calls of one script that wait for a trip, in their order."""

    def __init__(self, runner: Sender, script: BoundScript, limits: _Limits, *, large: bool) -> None:
        self._limits = limits
        self._is_large = large
        self.waiting_bytes = 0
        self.gathered: deque[_Gathered] = deque()
        self.gate = TripGate(runner, script, self._flush, max_in_flight=limits.max_in_flight)

    def add(self, call: _Gathered) -> None:
        """Send a call, at once or together with others."""
        if self.gate.sends_at_once and not self.gathered:
            self._send((call,), call.values)
            return
        self.gathered.append(call)
        self.waiting_bytes += call.size
        if self.gate.asleep:
            self.gate.wake()

    def _flush(self) -> None:
        while self.gathered and self.gate.open:
            batch, values = self._next_batch()
            if batch:
                self._send(batch, values)

    def _next_batch(self) -> tuple[list[_Gathered], list[bytes]]:
        gathered, limits = self.gathered, self._limits
        batch: list[_Gathered] = []
        values: list[bytes] = []
        row_count = size = 0
        few = len(gathered) <= limits.small_trip_rows * limits.max_in_flight
        max_rows = limits.small_trip_rows if few else limits.max_rows
        while gathered:
            call = gathered[0]
            if batch and (row_count + call.row_count > max_rows or size + call.size > limits.max_bytes):
                break
            gathered.popleft()
            self.waiting_bytes -= call.size
            if call.future.done():
                continue  # cancelled before it was sent
            batch.append(call)
            values.extend(call.values)
            row_count += call.row_count
            size += call.size
        return batch, values

    def _send(self, batch: Sequence[_Gathered], values: Sequence[bytes]) -> None:
        self.gate.send(values, partial(self._answered, batch), calls=len(batch), large=self._is_large)

    def _answered(
        self, batch: Sequence[_Gathered], reply: list[Any] | None, error: BaseException | None
    ) -> None:
        at = 0
        for call in batch:
            if not call.future.done():
                if reply.__class__ is list:
                    call.future.set_result(reply[at : at + call.row_count])
                else:
                    its = copied(error)
                    if isinstance(its, NotReplicated):
                        its.answers = its.answers[at : at + call.row_count]
                    call.future.set_exception(its)
            at += call.row_count
        while self.gathered and (refusal := self.gate.refusal(self.gathered[0].made_at)) is not None:
            call = self.gathered.popleft()
            self.waiting_bytes -= call.size
            if not call.future.done():
                call.future.set_exception(refusal)
        if self.gathered:
            self.gate.flush()
