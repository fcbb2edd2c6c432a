"""Concurrent calls share a trip: while one is under way, the next gathers.

A lone call is sent at once. Calls made in the same turn of the event loop go together, up to a number
of rows and of bytes. Each caller gets its own answers; one that is cancelled harms no other.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from leasehold.scripting.connection import OnReply

#: How a batch is sent: the rows of all its calls, one after the other.
Send = Callable[[list[bytes], OnReply], None]


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
        send: Sends a batch.
        max_rows: The most rows in one trip.
        lively_rows: The most rows in one trip while few wait. Several small trips under way keep server and
            process busy at the same time; one large trip at a time has them take turns.
        max_bytes: The most bytes in one trip; a single call may be larger and then goes alone.
        max_waiting_bytes: When this much waits to be sent, further callers wait before they are taken in.
        max_under_way: How many trips may be under way at once.
    """

    def __init__(
        self,
        send: Send,
        *,
        max_rows: int = 500,
        lively_rows: int = 250,
        max_bytes: int = 1 << 20,
        max_waiting_bytes: int = 64 << 20,
        max_under_way: int = 4,
    ) -> None:
        self._send = send
        self._max_rows = max_rows
        self._lively_rows = min(lively_rows, max_rows)
        self._max_bytes = max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._max_under_way = max_under_way
        self._gathered: deque[_Gathered] = deque()
        self._waiting_bytes = 0
        self._under_way = 0
        self._scheduled = False
        self._change = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def max_rows(self) -> int:
        """The most rows that one call may bring."""
        return self._max_rows

    async def call(self, values: Sequence[bytes], *, row_count: int = 1, size: int = 64) -> list[Any]:
        """Send rows with whatever else is about to go, and return the answers to them.

        Args:
            values: The rows, flat.
            row_count: How many rows they are, at most `max_rows`.
            size: Their weight in bytes, roughly.

        Raises:
            LeaseholdError: What the trip ended with, if it failed.
        """
        while self._waiting_bytes >= self._max_waiting_bytes:
            self._change.clear()
            await self._change.wait()
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._gathered.append(_Gathered(values, row_count, size, future))
        self._waiting_bytes += size
        if not self._scheduled and self._under_way < self._max_under_way:
            # At the end of this turn of the loop, so that calls made side by side go together.
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return await future

    async def settled(self) -> None:
        """Wait until everything that was called has been answered."""
        while self._gathered or self._under_way:
            self._change.clear()
            await self._change.wait()

    def _flush(self) -> None:
        self._scheduled = False
        while self._gathered and self._under_way < self._max_under_way:
            batch, values = self._next_batch()
            if batch:
                self._under_way += 1
                self._dispatch(batch, values)
        self._change.set()

    def _next_batch(self) -> tuple[list[_Gathered], list[bytes]]:
        batch: list[_Gathered] = []
        values: list[bytes] = []
        row_count = size = 0
        gathered = self._gathered
        few = len(gathered) <= self._lively_rows * self._max_under_way
        most = self._lively_rows if few else self._max_rows
        while gathered:
            call = gathered[0]
            if batch and (row_count + call.row_count > most or size + call.size > self._max_bytes):
                break
            gathered.popleft()
            self._waiting_bytes -= call.size
            if call.future.done():
                continue  # cancelled before it was sent: nothing happens
            batch.append(call)
            values.extend(call.values)
            row_count += call.row_count
            size += call.size
        return batch, values

    def _dispatch(self, batch: list[_Gathered], values: list[bytes]) -> None:
        def answered(reply: list[Any] | None, error: BaseException | None) -> None:
            self._under_way -= 1
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

        self._send(values, answered)
