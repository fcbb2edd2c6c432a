"""The states of an item, and the events that take it from one state to another.

This is their only declaration. The Python API, the command line, Spark's reports, the tests and the reference
derive from it. A script that emits an event that is not declared here is refused when it is composed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self, get_args

#: The states of an unfinished item.
State = Literal["waiting", "leased", "scheduled"]
ITEM_STATES: tuple[State, ...] = get_args(State)
#: The states of all that the server holds; a dead letter is not an unfinished item.
DEAD = "dead"
STATES = (*ITEM_STATES, DEAD)
#: What an item is before it is added and after it has ended.
GONE = "gone"

#: The fields of an event, in the order in which the server stores them, and what each says.
FIELDS = {
    "what": "what happened, see below",
    "id": "the item's id",
    "time": "when, in ms since 1970",
    "holder": "the session that leased or renewed",
    "token": "the token of the lease",
    "attempt": "the number of the attempt",
    "size": "bytes of data",
    "due": "when the lease expires, or the item falls due, in ms since 1970",
    "front": "`1`: the item went to the front of the queue; else to the end",
    "error": "the last 1,000 bytes of the error",
}


class EventKind(StrEnum):
    """What an event says: an item has left a state of `before` and is in the state `after`.

    Attributes:
        before: The states that the item can have been in.
        after: Its state now. If this is waiting and the event has the field `due`, the item is scheduled.
        fields: The fields that the event may have, beside those that all have.
        note: What else there is to know.
    """

    before: tuple[str, ...]
    after: str
    fields: tuple[str, ...]
    note: str

    def __new__(  # noqa: D102 - the line of each event calls it
        cls,
        name: str,
        before: tuple[str, ...],
        after: str,
        fields: tuple[str, ...] = (),
        note: str = "",
    ) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.before, kind.after, kind.fields, kind.note = before, after, fields, note
        return kind

    ADDED = "added", (GONE,), "waiting", ("size", "due"), "with *unique* from any state"
    DUE = "due", ("scheduled",), "waiting"
    LEASED = "leased", ("waiting",), "leased", ("holder", "token", "attempt", "size", "due")
    RENEWED = "renewed", ("leased",), "leased", ("holder", "token", "due")
    EXPIRED = "expired", ("leased",), "waiting", ("front",)
    RELEASED = "released", ("leased",), "waiting", ("token", "due", "front")
    FAILED = "failed", ("leased",), "waiting", ("token", "attempt", "due", "error")
    DIED = "died", ("leased",), DEAD, ("token", "attempt", "size", "error")
    COMPLETED = "completed", ITEM_STATES, GONE, ("token",)
    REQUEUED = "requeued", (DEAD,), "waiting", ("size",)
    DROPPED = "dropped", (DEAD,), GONE
    VANISHED = "vanished", ITEM_STATES, GONE, (), "a client of another library has completed it"
    RESTORED = "restored", (), "waiting", (), "the id was in no list"

    @property
    def can_delay(self) -> bool:
        """Whether the item is scheduled, and not waiting, if the event has the field `due`."""
        return self.after == "waiting" and "due" in self.fields


#: All events by their names.
EVENTS = {kind.value: kind for kind in EventKind}
#: The events after which an item waits or, with `due`, is scheduled.
ENTERS = tuple(kind for kind in EventKind if kind.after == "waiting")
#: The events that end an unfinished item.
ENDS = tuple(kind for kind in EventKind if kind.after in {GONE, DEAD} and kind.before != (DEAD,))
#: The events that make a dead letter or end one; those that do not change an unfinished item.
DEAD_LETTERS = tuple(kind for kind in EventKind if DEAD in {*kind.before, kind.after})
ENDS_OF_DEAD_LETTERS = tuple(kind for kind in DEAD_LETTERS if (kind.before, kind.after) == ((DEAD,), GONE))
