"""What a queue tells about itself: small frozen results with names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from leasehold.states import State


class Counts(NamedTuple):
    """How many items are in each state, at one instant."""

    #: Ready to be leased, those on their way to a waiting process included.
    waiting: int
    #: Under lease, those whose lease has ended and that nobody has taken back yet included.
    leased: int
    #: Delayed, or to be tried again: not due yet.
    scheduled: int
    #: Dead letters: given up, and kept to be looked at.
    dead: int

    @property
    def total(self) -> int:
        """All unfinished items; dead letters are not among them."""
        return self.waiting + self.leased + self.scheduled


@dataclass(frozen=True, kw_only=True)
class ItemView:
    """One item as it stood when it was looked at."""

    id: str
    state: State
    #: Bytes of data; None for a ghost (an id in the list whose data is gone; it is dropped when met).
    size: int | None
    #: The data; None if it was not asked for, did not fit into the reply, or is gone.
    data: bytes | None
    #: The lease key's value: a session of ours begins with "lh:". None if nobody holds it.
    holder: str | None
    #: The number of its last lease; None if it was never leased by us.
    token: int | None
    #: How often it was leased in this incarnation, leases that were given back not included.
    attempt: int
    #: When its lease ends or, if scheduled, when it falls due: seconds since 1970, server's clock.
    due: float | None
    #: Seconds since it was last leased; None if never. (The family's items carry no time of adding.)
    age: float | None


@dataclass(frozen=True, kw_only=True)
class CleanReport:
    """What a clean found and put right. All zero is a clean queue."""

    #: Entries looked at.
    looked_at: int = 0
    #: Items brought back: expired leases, due items, ids left in the inbox of a dead process.
    returned: int = 0
    #: Entries without work behind them that were dropped.
    dropped: int = 0
    #: Leases of foreign clients that are watched from now on.
    adopted: int = 0
    #: Items that were in no list at all and are back in the queue (deep clean only).
    restored: int = 0

    def __add__(self, other: CleanReport) -> CleanReport:
        return CleanReport(
            looked_at=self.looked_at + other.looked_at,
            returned=self.returned + other.returned,
            dropped=self.dropped + other.dropped,
            adopted=self.adopted + other.adopted,
            restored=self.restored + other.restored,
        )


#: Values per item in the reply of `inspect`.
_FIELDS = 8


def read_inspection(state: State, reply: list[Any], *, with_data: bool) -> list[ItemView]:
    """Make views of the reply of the `inspect` script."""
    now_ms = reply[0]
    views: list[ItemView] = []
    for at in range(1, len(reply), _FIELDS):
        item_id, size, data, due_ms, holder, token, attempt, leased_ms = reply[at : at + _FIELDS]
        views.append(
            ItemView(
                id=item_id.decode(errors="replace"),
                state=state,
                size=None if size < 0 else size,
                data=data if with_data else None,
                holder=None if holder is None else holder.decode(errors="replace"),
                token=token or None,
                attempt=attempt,
                due=None if due_ms < 0 else due_ms / 1000,
                age=(now_ms - leased_ms) / 1000 if leased_ms else None,
            )
        )
    return views


def read_found(reply: list[Any], *, with_data: bool) -> ItemView | None:
    """Make a view of the reply of the `find_many` script to one id, if it has found something."""
    now_ms, *found = reply
    if not found:
        return None
    state: State = found[0].decode()
    return read_inspection(state, [now_ms, *found[1:]], with_data=with_data)[0]
