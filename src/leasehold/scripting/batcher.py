"""Gathers concurrent calls of one script into trips: while trips are in flight, the next calls gather.

A lone call is sent at once. Calls made in the same turn of the event loop go together, up to a number of rows
and of bytes. Each caller gets its own answers. Cancelling one caller affects no other.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasehold.scripting.connection import OnReply
    from leasehold.scripting.runner import BoundScript


class Sender(Protocol):
    """What a batcher sends its trips with: a `Runner`."""

    def send(self, script: BoundScript, rest: Iterable[bytes], on_reply: OnReply) -> None:
        """Send a script with the rows of a trip, and pass the reply to `on_reply`."""
        ...


class _Gathered:
    __slots__ = ("future", "row_count", "size", "values")

    def __init__(
        self, values: Sequence[bytes], row_count: int, size: int, future: asyncio.Future[Any]
    ) -> None:
        self.values = values
        self.row_count = row_count
        self.size = size
        self.future = future


class Batcher:
    """Gathers the calls of one script.

    Args:
        runner: Sends the trips.
        script: The script.
        max_rows: The maximum number of rows in one trip.
        small_trip_rows: The same while few calls wait. Several small trips in flight keep the server and this
            process busy at the same time; with one large trip they take turns.
        max_bytes: The maximum number of bytes in one trip; a larger call goes alone.
        max_waiting_bytes: When this many bytes wait to be sent, further callers wait too.
        max_in_flight: How many trips may be in flight at once.
    """

    def __init__(
        self,
        runner: Sender,
        script: BoundScript,
        *,
        max_rows: int = 500,
        small_trip_rows: int = 250,
        max_bytes: int = 1 << 20,
        max_waiting_bytes: int = 64 << 20,
        max_in_flight: int = 4,
    ) -> None:
        self._runner = runner
        self._script = script
        self._max_rows = max_rows
        self._small_trip_rows = min(small_trip_rows, max_rows)
        self._max_bytes = max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._max_in_flight = max_in_flight
        self._gathered: deque[_Gathered] = deque()
        self._waiting_bytes = 0
        self._in_flight = 0
        self._scheduled = False
        self._change = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def call(self, values: Sequence[bytes], *, row_count: int = 1, size: int = 64) -> list[Any]:
        """Send rows in the next trip, and return the answers to them.

        Args:
            values: The rows, flat.
            row_count: How many rows they are, at most `max_rows`.
            size: About how many bytes they are.

        Raises:
            LeaseholdError: The error that the trip failed with.
        """
        while self._waiting_bytes >= self._max_waiting_bytes:
            self._change.clear()
            await self._change.wait()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._gathered.append(_Gathered(values, row_count, size, future))
        self._waiting_bytes += size
        if not self._scheduled and self._in_flight < self._max_in_flight:
            # At the end of this turn of the event loop, so that concurrent calls go together.
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return await future

    async def drained(self) -> None:
        """Wait until every call has been answered."""
        while self._gathered or self._in_flight:
            self._change.clear()
            await self._change.wait()

    def _flush(self) -> None:
        self._scheduled = False
        while self._gathered and self._in_flight < self._max_in_flight:
            batch, values = self._next_batch()
            if batch:
                self._in_flight += 1
                self._send(batch, values)
        self._change.set()

    def _next_batch(self) -> tuple[list[_Gathered], list[bytes]]:
        batch: list[_Gathered] = []
        values: list[bytes] = []
        row_count = size = 0
        gathered = self._gathered
        few = len(gathered) <= self._small_trip_rows * self._max_in_flight
        max_rows = self._small_trip_rows if few else self._max_rows
        while gathered:
            call = gathered[0]
            if batch and (row_count + call.row_count > max_rows or size + call.size > self._max_bytes):
                break
            gathered.popleft()
            self._waiting_bytes -= call.size
            if call.future.done():
                continue  # cancelled before it was sent
            batch.append(call)
            values.extend(call.values)
            row_count += call.row_count
            size += call.size
        return batch, values

    def _send(self, batch: list[_Gathered], values: list[bytes]) -> None:
        def answered(reply: list[Any] | None, error: BaseException | None) -> None:
            self._in_flight -= 1
            at = 0
            for call in batch:
                if not call.future.done():
                    if reply is None:
                        call.future.set_exception(copy.copy(error) or AssertionError("no reply and no error"))
                    else:
                        call.future.set_result(reply[at : at + call.row_count])
                at += call.row_count
            if self._gathered:
                self._flush()
            else:
                self._change.set()

        self._runner.send(self._script, values, answered)
