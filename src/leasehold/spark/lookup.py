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
from leasehold.states import STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import Filter

    from leasehold.queue.bulk import Bulk

#: How much data one look brings at most; what does not fit is asked for again.
LOOK_BYTES = 8 << 20
#: Values per item in the reply of `find_many`.
_FOUND = 9
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
class ItemFilter:
    """Which items are wanted: what the filters of a query say that can be said to the server.

    Attributes:
        states: Those of these states.
        ids: Those of these ids; None: of any.
        ages: Those whose age compares so with a number of seconds.
    """

    states: frozenset[str] = frozenset(STATES)
    ids: frozenset[str] | None = None
    ages: tuple[tuple[str, float], ...] = ()

    def with_condition(self, condition: Filter) -> ItemFilter | None:
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

    @property
    def which(self) -> str:
        """Whether items, dead letters or both are looked at: as `Bulk.find` has it."""
        if "dead" not in self.states:
            return "living"
        return "dead" if len(self.states) == 1 else "all"

    def select(self, rows: list[Row]) -> list[Row]:
        """Those that are wanted, as they were when they were looked at. Only wanted ids are looked at."""
        if len(self.states) < len(STATES):
            rows = [row for row in rows if row[_STATE] in self.states]
        for name, seconds in self.ages:
            order = _BY_NAME[name]
            rows = [row for row in rows if row[_AGE] is not None and order(row[_AGE], seconds)]
        return rows


_BY_NAME = {kind.__name__: order for kind, order in _ORDERS.items()}


async def look(bulk: Bulk, ids: Sequence[bytes], wanted: ItemFilter, *, data: bool) -> list[Row]:
    """Look at up to 1,000 ids; what is gone, or not wanted, is left out.

    An id that was added again after it died is two rows: a dead letter, and an item.

    Args:
        bulk: The queue's.
        ids: Which.
        wanted: Which are wanted.
        data: Whether to bring their data.
    """
    if data and wanted.ages:
        # Most will be too young or too old: their data need not travel.
        ids = [row[_ID] for row in await _read(bulk, ids, wanted, data=False)]
    return await _read(bulk, ids, wanted, data=data)


async def _read(bulk: Bulk, ids: Sequence[bytes], wanted: ItemFilter, *, data: bool) -> list[Row]:
    if not data:
        return wanted.select(await _step(bulk, ids, wanted, -1))
    found: list[Row] = []
    while ids:
        rows = await _step(bulk, ids, wanted, LOOK_BYTES)
        # An id that is live and dead is told whole or not at all: a second look finds another moment.
        ids = [*dict.fromkeys(row[_ID] for row in rows if row[_DATA] is None)]
        cut = {*ids}
        whole = [row for row in rows if row[_ID] not in cut]
        found += whole
        if ids and not whole:
            # The first is larger than a whole look: it is asked for alone.
            found += await _step(bulk, ids[:1], wanted, 2 * MAX_DATA_BYTES)
            del ids[0]
    return wanted.select(found)


async def _step(bulk: Bulk, ids: Sequence[bytes], wanted: ItemFilter, room: int) -> list[Row]:
    """Look once. What is told of an id, live and dead, is of one moment."""
    now_ms, *values = await bulk.find(ids, which=wanted.which, max_bytes=room)
    rows: list[Row] = []
    for at in range(0, len(values), _FOUND):
        state, item_id, size, data, due_ms, text, token, attempt, since_ms = values[at : at + _FOUND]
        told = None if text is None else text.decode(errors="backslashreplace")
        holder, error = (None, told) if state == b"dead" else (told, None)
        rows.append(
            (
                item_id,
                state.decode(),
                data,
                size,
                attempt,
                token or None,
                holder,
                None if due_ms < 0 else due_ms * 1000,
                max(0, now_ms - since_ms) / 1000 if since_ms else None,
                error,
            )
        )
    return rows
