"""Cancelling items by their ids or their data: the calls behind `AsyncWorkQueue.cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.durations import Duration, check_int, check_list, to_ms
from leasequeue.errors import InvalidArgument
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.queue.encoding import TRIP_BYTES, encoded_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.queue.engine import Engine

#: How many items one step of a search by data looks at, unless their data is large.
STEP = 500
#: How long a cancelled item is noted for callers that ask for its result, unless it is said otherwise (s).
KEEP_SECONDS = 3600
#: The answer to a renewal of a lease whose item was cancelled.
CANCELLED = -1
#: The maximum of ids of one `cancel_data`.
MAX_CANCELLED = 1_000_000


def cancel_row(item_id: str, keep: Duration) -> tuple[bytes, bytes]:
    """Return the row that cancels an item."""
    return encoded_id(item_id), b"%d" % to_ms("keep", keep, zero=True)


def cancel_rows(item_ids: Iterable[str], keep: Duration) -> list[tuple[bytes, bytes]]:
    """Return the rows that cancel items."""
    kept = b"%d" % to_ms("keep", keep, zero=True)
    return [(encoded_id(one), kept) for one in check_list("item_ids", item_ids, "ids")]


async def cancel_data(engine: Engine, data: bytes | str, *, limit: int | None, keep: Duration) -> list[str]:
    """Cancel the items with this data, and return their ids. See `AsyncWorkQueue.cancel_data`."""
    if engine.payloads.codecs:
        raise InvalidArgument("data", data, "a queue without a codec: cancel by ids, or by a tag")
    payload = data.encode() if isinstance(data, str) else data
    if not isinstance(payload, bytes) or len(payload) > MAX_DATA_BYTES:
        raise InvalidArgument("data", data, f"bytes or a text, at most {MAX_DATA_BYTES} bytes")
    payload = engine.payloads.encode(payload, "")
    left = MAX_CANCELLED
    if limit is not None:
        left = check_int("limit", limit, minimum=1, maximum=MAX_CANCELLED)
    keep_ms = to_ms("keep", keep, zero=True)
    size = max(1, min(STEP, TRIP_BYTES // max(1, len(payload))))
    found: list[str] = []
    for state in ("waiting", "laned", "leased", "scheduled"):
        done, cursor = 0, b"0"
        while not done and len(found) < left:
            done, cursor, *ids = await engine.run(
                "cancel_data",
                payload=payload,
                keep_ms=keep_ms,
                state=state.encode(),
                cursor=cursor,
                count=size,
                at_most=min(size, left - len(found)),
            )
            found += (one.decode(errors="surrogateescape") for one in ids)
    return found
