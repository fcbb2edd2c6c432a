"""Items of a lease set whose processing has failed: recorded first, failed when the set is completed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.log import Log
from leasequeue.queue.encoding import row_size, trips
from leasequeue.spark.errors import StreamTakenOver
from leasequeue.spark.portal import call_with_retries
from leasequeue.spark.schema import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.queue.bulk import Bulk


@dataclass(frozen=True)
class SetId:
    """What an executor needs to read a set, and the driver to record its failures."""

    stream: str
    reader: str
    number: int
    lease_ms: int

    @property
    def name(self) -> bytes:
        """Return the set's name on the server."""
        return f"{self.stream}:{self.number}".encode()

    @property
    def holder(self) -> str:
        """Return the holder of its leases."""
        return f"lh:{self.stream}"


#: How many failures one call records or returns: with the longest errors 1.6 MiB.
PAGE = 100
#: How long failures are kept (ms): a week longer than any lease; `stream_hold` prolongs that with the set.
KEEP_MS = 14 * 24 * 3600 * 1000
#: The delay of an item that becomes a dead letter.
DIES = -1

_log = Log(__name__)


class ItemFailure(NamedTuple):
    """What to do with an item that was not completed."""

    #: The id, as in the column `id`.
    id: str
    #: When it can be leased again (ms); DIES: it becomes a dead letter.
    delay_ms: int
    #: The size of its data.
    size: int
    error: str


def key_of(set_name: bytes) -> bytes:
    """Return the name under which the failures of a set are kept, as if they were a set."""
    return set_name + b":failures"


async def record(
    bulk: Bulk, set_id: SetId, failures: Sequence[ItemFailure], *, forget: bool, retry_timeout: float
) -> None:
    """Record failures of a set, at most PAGE; `forget` those of an earlier run of the batch first."""
    rows = [
        text.encode() for one in failures for text in (one.id, f"{one.delay_ms:d} {one.size:d} {one.error}")
    ]
    more: dict[str, bytes | int] = {"anew": int(forget), "keep_ms": set_id.lease_ms + KEEP_MS}
    call = partial(bulk.run, "set_failures_put", rows, **_names(set_id), **more)
    if not await call_with_retries(call, retry_timeout):
        raise StreamTakenOver(set_id.stream)


async def recorded(bulk: Bulk, set_id: SetId, retry_timeout: float) -> dict[str, ItemFailure]:
    """Return the failures of a set by id."""
    found: dict[str, ItemFailure] = {}
    cursor = b""
    while cursor != b"0":
        call = partial(bulk.run, "set_failures", (), **_names(set_id), cursor=cursor or b"0", count=PAGE)
        mine, cursor, *flat = await call_with_retries(call, retry_timeout)
        if not mine:
            raise StreamTakenOver(set_id.stream)
        for item_id, value in zip(flat[::2], flat[1::2], strict=True):
            delay_ms, size, error = value.decode().split(" ", 2)
            found[item_id.decode()] = ItemFailure(item_id.decode(), int(delay_ms), int(size), error)
    return found


async def fail(
    bulk: Bulk,
    entries: Sequence[tuple[bytes, bytes]],
    failures: Mapping[str, ItemFailure],
    retry_timeout: float,
) -> None:
    """Fail items as a worker does: schedule each for its next attempt, or make it a dead letter.

    An item whose lease has expired and that has left the set's holder is left alone, as by `fail_many`: it
    gets another attempt anyway.
    """
    of_entry = [failures[readable(item_id)] for item_id, _ in entries]
    sizes = [
        row_size(len(one.error.encode()) + (one.size if one.delay_ms == DIES else 0), slow=one.delay_ms != 0)
        for one in of_entry
    ]
    rows = [
        (item_id, token, b"%d" % one.delay_ms, one.error.encode())
        for (item_id, token), one in zip(entries, of_entry, strict=True)
    ]

    async def send(start: int, stop: int) -> list[int]:
        values = [value for row in rows[start:stop] for value in row]
        answers: list[int] = await call_with_retries(partial(bulk.run, "fail_many", values), retry_timeout)
        return answers

    answers = await asyncio.gather(*(send(*trip) for trip in trips(sizes)))
    if rejected := sum(answer != 1 for trip in answers for answer in trip):
        _log.warning(
            "%d of %d failed items were left alone: their leases had expired, or they were failed before",
            *(rejected, len(rows)),
        )


def _names(set_id: SetId) -> dict[str, Any]:
    return {"stream": set_id.stream.encode(), "reader": set_id.reader.encode(), "set": set_id.name}
