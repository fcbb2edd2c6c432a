"""Calls of a queue, recorded by `leasequeue.telemetry`. While that is off, none of this is called."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from leasequeue.telemetry.instruments import Instruments

    Row = Sequence[bytes]

T = TypeVar("T", bound="list[Any]")


async def observed(
    active: Instruments,
    queue: str,
    script: str,
    rows: Sequence[Row],
    send: Callable[[Sequence[Row]], Awaitable[list[Any]]],
) -> list[Any]:
    """Send the rows of one call of a batched script, and return the answers to them.

    If it adds items, these get the trace of the call.
    """
    operation = script.partition("_")[0]
    adds = operation == "add" and len(rows) > 0
    producer = active.producer(queue, len(rows), rows[0][0]) if adds else None
    if producer is not None and producer.trace is not None:
        rows = [_with_trace(row, producer.trace) for row in rows]
    began = time.monotonic()
    failed: BaseException | None = None
    answers: list[Any] = []
    try:
        answers = await send(rows)
    except BaseException as error:
        failed = error
        raise
    finally:
        active.called(queue, operation, began, failed)
        if adds:
            active.added(queue, len(rows) if failed is not None else answers.count(1), failed)
        if producer is not None:
            producer.end(failed)
    return answers


async def observed_lease(active: Instruments, queue: str, leasing: Awaitable[T], *, waits: bool) -> T:
    """Return the items that a call has leased. Its duration is recorded unless it waits or finds nothing."""
    began = time.monotonic()
    try:
        items = await leasing
    except Exception as error:
        active.called(queue, "lease", began, error)
        raise
    if items:
        active.leased(queue, len(items))
        if not waits:
            active.called(queue, "lease", began)
    return items


def traced_row(active: Instruments, queue: str, row: Row) -> Row:
    """Return a row of `add_items` for a pipeline of the user, with a trace that ends here."""
    producer = active.producer(queue, 1, row[0])
    if producer is None:
        return row
    producer.end()
    return row if producer.trace is None else _with_trace(row, producer.trace)


def _with_trace(row: Row, trace: bytes) -> Row:
    item_id, data, wait, how = row
    option = b'"trace":"%b"}' % trace
    return (item_id, data, wait, how + b":{" + option if len(how) == 1 else how[:-1] + b"," + option)
