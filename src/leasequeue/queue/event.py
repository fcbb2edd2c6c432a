"""An event, and how it is read from the stream and from a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.item.codec import is_moment, read_number, read_stored
from leasequeue.states import DETAILS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.codecs import Payloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change of an item, of the queue or of a worker. Fields that do not apply are None."""

    #: The event's number. Numbers increase without a gap while events are kept.
    number: int
    #: What `events(since=…)` continues after: its number or, of a queue with shards, how far each is read.
    cursor: str
    #: What happened; see the reference. Empty if that cannot be read.
    what: str
    #: The item's id; of an event of a worker the worker's, of one of the queue empty.
    id: str
    #: When, in seconds since 1970, server's clock.
    at: float
    #: The session that leased or renewed the item.
    holder: str | None
    #: The token of the lease.
    token: int | None
    #: The number of the attempt.
    attempt: int | None
    #: Bytes of data.
    size: int | None
    #: When the lease ends, or the item falls due, in seconds since 1970.
    due: float | None
    #: Whether it went to the front of the queue.
    front: bool
    #: The last 1,000 bytes of the error.
    error: str | None
    #: The group that is meant; None: the queue.
    group: str | None = None
    #: The limits that are in force now.
    limits: dict[str, Any] | None = None
    #: How many items were removed.
    count: int | None = None
    #: What the holder has reported.
    progress: str | None = None
    #: The queue that has the item now.
    queue: str | None = None
    #: Why.
    reason: str | None = None
    #: When it ends by itself, in seconds since 1970.
    until: float | None = None
    #: The name of the worker.
    worker: str | None = None
    #: The result of a completed item, if the event was published.
    result: bytes | None = None
    #: Bytes of the result, if it was too large to be published: more than 64 KiB, or, with those of the same
    #: step, more than 1 MiB.
    result_size: int | None = None


def event_of(number: bytes, flat: Sequence[Any]) -> Event:
    """Return the event with a number and the fields of the reply of `events_read`."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    texts = {_text(name): _text(value) for name, value in pairs if value}
    details = read_stored(texts.pop("details", None), dict[str, Any]())
    return _event(int(number.partition(b"-")[0]), texts, details)


def event_of_json(number: int, fields: Mapping[str, Any], payloads: Payloads) -> Event:
    """Return the event with a number and the fields of a message."""
    fields = {name: value for name, value in fields.items() if value != ""}
    details = {**fields.get("details", {})}
    if "result" in fields:
        result, item_id = (str(fields.get(one)).encode(errors="surrogateescape") for one in ("result", "id"))
        details["result"] = payloads.shown(result, item_id)
    if "result_size" in fields:
        details["result_size"] = fields["result_size"]
    return _event(number, fields, details)


def _event(number: int, fields: Mapping[str, Any], details: dict[str, Any]) -> Event:
    """Return an event; another client may have written it: what cannot be read counts as missing."""

    def integer(name: str) -> int | None:
        return read_number(str(fields.get(name, "")).encode(errors="replace"), None)

    due, error = integer("due"), fields.get("error")
    if "until" in details:
        details["until"] = details["until"] / 1000 if is_moment(details["until"]) else None
    return Event(
        number=number,
        cursor=str(number),
        what=fields.get("what", ""),
        id=fields.get("id", ""),
        at=(integer("time") or 0) / 1000,
        holder=fields.get("holder"),
        token=integer("token"),
        attempt=integer("attempt"),
        size=integer("size"),
        due=None if due is None else due / 1000,
        front="front" in fields,
        error=error and error.encode(errors="surrogateescape").decode(errors="replace"),
        **{name: value for name, value in details.items() if name in _DETAILS},
    )


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


#: The details that this version knows.
_DETAILS = {*DETAILS, "result", "result_size"}
