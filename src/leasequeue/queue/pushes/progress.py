"""Reports of progress: the last value of each lease is sent, a few times per second at most."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.errors import InvalidArgument, LeasequeueError, QueueClosed
from leasequeue.errors.log import Log
from leasequeue.item import codec
from leasequeue.wire.subscriptions import keeps_running

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


#: The longest progress, in bytes of JSON.
MAX_PROGRESS_BYTES = 1000
#: How long after a trip with reports the next one is sent, at least (s).
REPORT_SECONDS = 0.2

log = Log("leasequeue.queue")


def progress_text(value: Any) -> bytes:
    """Return progress as it is stored."""
    allowed = f"a value that can be written as JSON of at most {MAX_PROGRESS_BYTES} bytes"
    try:
        text = codec.encode(value)
    except Exception as error:
        raise InvalidArgument("value", value, allowed) from error
    if len(text) > MAX_PROGRESS_BYTES:
        raise InvalidArgument("value", value, allowed)
    return text


def read_progress(text: bytes | None) -> Any:
    """Return stored progress as a value; None if there is none, or it is no JSON."""
    try:
        return _decode(text) if text else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # any client may write it
        return None


_decode = codec.decoder(Any)


class ProgressReports:
    """Sends the latest report of each lease of an event loop.

    The first report is sent at once. Those that follow within REPORT_SECONDS are sent together, of each lease
    the last.
    """

    def __init__(self, send: Callable[..., Awaitable[Any]], name: str) -> None:
        self._send_rows = send
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._latest: dict[Sequence[bytes], bytes] = {}
        self._sending: asyncio.Task[None] | None = None
        self._failing = False

    def add(self, lease: Sequence[bytes], text: bytes) -> None:
        """Send progress soon, unless other progress of the same lease follows before."""
        self._latest[lease] = text
        if not keeps_running(self._sending):
            self._sending = self._loop.create_task(self._send_all(), name="leasequeue progress")

    def close(self) -> None:
        """Send nothing more."""
        self._latest.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        try:
            while self._latest:
                latest, self._latest = self._latest, {}
                await self._send([(*lease, text) for lease, text in latest.items()])
                await asyncio.sleep(REPORT_SECONDS)
        finally:
            self._sending = None

    async def _send(self, rows: Sequence[Sequence[bytes]]) -> None:
        try:
            for at in range(0, len(rows), 250):
                part = rows[at : at + 250]
                await self._send_rows("progress", part, size=sum(128 + len(row[2]) for row in part))
        except QueueClosed:
            return
        except Exception as error:
            if not isinstance(error, LeasequeueError):
                log.exception("progress of %s cannot be reported", self._name)
            elif not self._failing:  # the next report replaces these
                log.warning("progress of %s cannot be reported: %s", self._name, error)
            self._failing = True
        else:
            self._failing = False
