"""Rows of items by their ids: each is read in one step, by an executor."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from leasehold.item import MAX_DATA_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import Filter

    from leasehold.queue.bulk import Bulk

#: The states that an item can be in.
STATES = ("waiting", "leased", "scheduled", "dead")
#: How much data one look brings at most; what does not fit is asked for again.
LOOK_BYTES = 8 << 20
#: Values per item in the replies of `find_many` and `dead_list`.
_FOUND, _DEAD = 9, 7
_ORDERS = {
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}

#: One item: the columns of `rows.ITEMS`, in their order, with the id as bytes; times in µs since 1970.
Row = tuple[Any, ...]
_ID, _STATE, _DATA, _SIZE, _AGE = 0, 1, 2, 3, 8


@dataclass(frozen=True)
class Wanted:
    """Which items are wanted: what the filters of a query say that can be said to the server.

    Attributes:
        states: Those of these states.
        ids: Those of these ids; None: of any.
        ages: Those whose age compares so with a number of seconds.
    """

    states: frozenset[str] = frozenset(STATES)
    ids: frozenset[str] | None = None
    ages: tuple[tuple[str, float], ...] = ()

    def narrowed(self, condition: Filter) -> Wanted | None:
        """Take in one more condition; None if it is none that this knows."""
        if isinstance(condition, (EqualTo, EqualNullSafe)):
            values = frozenset([condition.value])
        elif isinstance(condition, In):
            values = frozenset(condition.value)
        elif type(condition) in _ORDERS and condition.attribute == ("age",):  # type: ignore[attr-defined]
            order = (type(condition).__name__, float(condition.value))  # type: ignore[attr-defined]
            return replace(self, ages=(*self.ages, order))
        else:
            return None
        if condition.attribute == ("state",):
            return replace(self, states=self.states & values)
        if condition.attribute == ("id",):
            return replace(self, ids=values if self.ids is None else self.ids & values)
        return None

    def among(self, rows: list[Row]) -> list[Row]:
        """Those that are wanted, as they were when they were looked at. Only wanted ids are looked at."""
        if len(self.states) < len(STATES):
            rows = [row for row in rows if row[_STATE] in self.states]
        for name, seconds in self.ages:
            order = _BY_NAME[name]
            rows = [row for row in rows if row[_AGE] is not None and order(row[_AGE], seconds)]
        return rows


_BY_NAME = {kind.__name__: order for kind, order in _ORDERS.items()}


async def look(bulk: Bulk, ids: Sequence[bytes], wanted: Wanted, *, data: bool) -> list[Row]:
    """Look at up to 1,000 items; those that are gone, or not wanted, are left out.

    Args:
        bulk: The queue's.
        ids: Of which items.
        wanted: Which are wanted.
        data: Whether to bring their data.
    """
    if data and wanted.ages:
        # Most will be too young or too old: their data need not travel.
        ids = [row[_ID] for row in await _read(bulk, ids, wanted, data=False)]
    return await _read(bulk, ids, wanted, data=data)


async def _read(bulk: Bulk, ids: Sequence[bytes], wanted: Wanted, *, data: bool) -> list[Row]:
    dead = "dead" in wanted.states
    if not data:
        return wanted.among(await _step(bulk, ids, -1, dead=dead))
    found: list[Row] = []
    while ids:
        rows = await _step(bulk, ids, LOOK_BYTES, dead=dead)
        whole = [row for row in rows if row[_DATA] is not None]
        found += whole
        ids = [row[_ID] for row in rows if row[_DATA] is None]
        if ids and not whole:
            # The first is larger than a whole look: it is asked for alone.
            found += await _step(bulk, ids[:1], MAX_DATA_BYTES, dead=dead)
            del ids[0]
    return wanted.among(found)


async def _step(bulk: Bulk, ids: Sequence[bytes], room: int, *, dead: bool) -> list[Row]:
    """Look once, at the living first; who is not among them may be dead, or just be coming back."""
    now_ms, rows = await _living(bulk, ids, room)
    if dead and len(rows) < len(ids):
        rows += await _dead(bulk, _without(ids, rows), room, now_ms)
    if dead and len(rows) < len(ids):
        rows += (await _living(bulk, _without(ids, rows), room))[1]
    return rows


def _without(ids: Iterable[bytes], rows: Iterable[Row]) -> list[bytes]:
    met = {row[_ID] for row in rows}
    return [item_id for item_id in ids if item_id not in met]


async def _living(bulk: Bulk, ids: Sequence[bytes], room: int) -> tuple[int, list[Row]]:
    now_ms, *values = await bulk.find(ids, max_bytes=room)
    rows: list[Row] = []
    for at in range(0, len(values), _FOUND):
        state, item_id, size, data, due_ms, holder, token, deliveries, leased_ms = values[at : at + _FOUND]
        rows.append(
            (
                item_id,
                state.decode(),
                data,
                size,
                deliveries,
                token or None,
                None if holder is None else holder.decode(errors="backslashreplace"),
                None if due_ms < 0 else due_ms * 1000,
                (now_ms - leased_ms) / 1000 if leased_ms else None,
                None,
            )
        )
    return now_ms, rows


async def _dead(bulk: Bulk, ids: Sequence[bytes], room: int, now_ms: int) -> list[Row]:
    values = await bulk.run("dead_list", ids, start=0, count=0, max_bytes=room)
    rows: list[Row] = []
    for at in range(0, len(values), _DEAD):
        item_id, died_ms, size, data, error, deliveries, token = values[at : at + _DEAD]
        if size >= 0:
            # The time of the look before: it may have died since.
            age = max(0, now_ms - died_ms) / 1000 if died_ms else None
            text = error.decode(errors="backslashreplace")
            rows.append((item_id, "dead", data, size, deliveries, token or None, None, None, age, text))
    return rows
