"""Rows of items, looked up by their ids on an executor; each row is read in one step."""

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

from leasequeue.item import MAX_DATA_BYTES
from leasequeue.states import STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import Filter

    from leasequeue.queue.bulk import Bulk

#: The maximum of data in one reply; what does not fit is requested again.
REPLY_BYTES = 8 << 20
#: Values per item in the reply of `find_many`.
_FIELDS = 12
_COMPARISONS = {
    kind.__name__: compare
    for kind, compare in (
        (GreaterThan, operator.gt),
        (GreaterThanOrEqual, operator.ge),
        (LessThan, operator.lt),
        (LessThanOrEqual, operator.le),
    )
}

#: One item: the columns of `schema.ITEMS` in their order, with the id as bytes; times in µs since 1970.
Row = tuple[Any, ...]
_ID, _STATE, _DATA, _AGE = 0, 1, 2, 8


@dataclass(frozen=True)
class ItemFilter:
    """The filters of a query that the server and the executors evaluate.

    Attributes:
        states: The states to select.
        ids: The ids to select; None: all.
        ages: Comparisons of the age with a number of seconds: the name of Spark's filter, and the number.
    """

    states: frozenset[str] = frozenset(STATES)
    ids: frozenset[str] | None = None
    ages: tuple[tuple[str, float], ...] = ()

    def with_condition(self, condition: Filter) -> ItemFilter | None:
        """Return this filter with one more condition; None if it does not support the condition."""
        name = type(condition).__name__
        if isinstance(condition, (EqualTo, EqualNullSafe)):
            values = frozenset([condition.value])
        elif isinstance(condition, In):
            values = frozenset(condition.value)
        elif name in _COMPARISONS and condition.attribute == ("age",):  # type: ignore[attr-defined]
            return replace(self, ages=(*self.ages, (name, float(condition.value))))  # type: ignore[attr-defined]
        else:
            return None
        if condition.attribute == ("state",):
            return replace(self, states=self.states & values)
        if condition.attribute == ("id",):
            return replace(self, ids=values if self.ids is None else self.ids & values)
        return None

    @property
    def which(self) -> str:
        """Whether items, dead letters or both are looked up, as an argument of `Bulk.find`."""
        if "dead" not in self.states:
            return "living"
        return "dead" if len(self.states) == 1 else "all"

    def select(self, rows: list[Row]) -> list[Row]:
        """Return the rows whose state and age match. Only matching ids are looked up."""
        if len(self.states) < len(STATES):
            rows = [row for row in rows if row[_STATE] in self.states]
        for name, seconds in self.ages:
            compare = _COMPARISONS[name]
            rows = [row for row in rows if row[_AGE] is not None and compare(row[_AGE], seconds)]
        return rows


async def look_up(bulk: Bulk, ids: Sequence[bytes], condition: ItemFilter, *, data: bool) -> list[Row]:
    """Return the rows of up to 500 ids, without items that are gone or do not match.

    An id that was added again after it died is two rows: a dead letter, and an item.
    """
    if data and condition.ages:
        # Most items are too young or too old: select first, without their data.
        ids = [row[_ID] for row in await _fetch(bulk, ids, condition, data=False)]
    return await _fetch(bulk, ids, condition, data=data)


async def _fetch(bulk: Bulk, ids: Sequence[bytes], condition: ItemFilter, *, data: bool) -> list[Row]:
    if not data:
        return condition.select(await _request(bulk, ids, condition, -1))
    found: list[Row] = []
    while ids:
        rows = await _request(bulk, ids, condition, REPLY_BYTES)
        # Both rows of an id that is live and dead must be from one reply: a second one shows a later moment.
        ids = [*dict.fromkeys(row[_ID] for row in rows if row[_DATA] is None)]
        cut = {*ids}
        whole = [row for row in rows if row[_ID] not in cut]
        found += whole
        if ids and not whole:
            # The first item is larger than a whole reply: request it alone.
            found += await _request(bulk, ids[:1], condition, 2 * MAX_DATA_BYTES)
            del ids[0]
    return condition.select(found)


async def _request(bulk: Bulk, ids: Sequence[bytes], condition: ItemFilter, max_bytes: int) -> list[Row]:
    """Send one request. Both rows of an id that is live and dead are of the same moment."""
    now_ms, *values = await bulk.find(ids, which=condition.which, max_bytes=max_bytes)
    rows: list[Row] = []
    for at in range(0, len(values), _FIELDS):
        state, item_id, size, data, due_ms, holder, token, attempt, since_ms, error, *_ = values[
            at : at + _FIELDS
        ]
        rows.append(
            (
                item_id,
                state.decode(),
                data,
                size,
                attempt,
                token or None,
                _text(holder),
                None if due_ms < 0 else due_ms * 1000,
                max(0, now_ms - since_ms) / 1000 if since_ms else None,
                _text(error),
            )
        )
    return rows


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")
