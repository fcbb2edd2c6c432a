"""The states of an item, and the events: of items, of the queue and of its workers.

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

#: What an event is about.
Subject = Literal["item", "queue", "worker"]

#: The fields of an event, in the order in which the server stores them, and what each says.
FIELDS = {
    "what": "what happened, see below",
    "id": "the item's id; of an event of a worker the worker's, of one of the queue empty",
    "time": "when, in ms since 1970",
    "holder": "the session that leased or renewed",
    "token": "the token of the lease",
    "attempt": "the number of the attempt",
    "size": "bytes of data",
    "due": "when the lease expires, or the item falls due, in ms since 1970",
    "front": "`1`: the item went to the front of the queue; else to the end",
    "error": "the last 1,000 bytes of the error",
}
#: The fields that few events have: together they are one more field, `details`, a JSON object.
DETAILS = {
    "count": "how many items were removed",
    "group": "the group that is meant; none: the queue",
    "limits": "the limits that are in force now, as a JSON object; none: no limit",
    "progress": "what the holder has reported",
    "queue": "the queue that has the item now",
    "reason": "why",
    "until": "when it ends by itself, in ms since 1970",
    "worker": "the name of the worker",
}


def _of(
    subject: Subject, name: str, fields: tuple[str, ...], note: str = ""
) -> tuple[str, tuple[str, ...], str, tuple[str, ...], str, Subject]:
    """Declare an event that concerns no item."""
    return name, (), "", fields, note, subject


class EventKind(StrEnum):
    """What an event says. One of an item: it has left a state of `before` and is in the state `after`.

    Attributes:
        before: The states that the item can have been in.
        after: Its state now. If this is waiting and the event has the field `due`, the item is scheduled.
        fields: The fields and details that the event may have, beside the fields that all have.
        note: What else there is to know.
        subject: What the event is about: an item, the queue or a worker. Only items have states.
    """

    before: tuple[str, ...]
    after: str
    fields: tuple[str, ...]
    note: str
    subject: Subject

    def __new__(  # noqa: D102 - the line of each event calls it
        cls,
        name: str,
        before: tuple[str, ...],
        after: str,
        fields: tuple[str, ...] = (),
        note: str = "",
        subject: Subject = "item",
    ) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.before, kind.after, kind.fields, kind.note, kind.subject = before, after, fields, note, subject
        return kind

    ADDED = "added", (GONE,), "waiting", ("size", "due"), "with *unique* from any state"
    REPLACED = "replaced", ("waiting", "scheduled"), "waiting", ("size", "due"), "waits where it did"
    DUE = "due", ("scheduled",), "waiting", ("front",), "its delay is over, or it was promoted"
    LEASED = "leased", ("waiting",), "leased", ("holder", "token", "attempt", "size", "due")
    RENEWED = "renewed", ("leased",), "leased", ("holder", "token", "due")
    PROGRESS = "progress", ("leased",), "leased", ("token", "progress")
    EXPIRED = "expired", ("leased",), "waiting", ("front",)
    RECLAIMED = "reclaimed", ("leased",), "waiting", ("holder", "token", "front"), "its worker has failed"
    RELEASED = "released", ("leased",), "waiting", ("token", "due", "front")
    FAILED = "failed", ("leased",), "waiting", ("token", "attempt", "due", "error")
    DIED = "died", ("leased",), DEAD, ("token", "attempt", "size", "error")
    COMPLETED = "completed", ITEM_STATES, GONE, ("token",)
    CANCELLED = "cancelled", ITEM_STATES, GONE, ("token",)
    DISCARDED = "discarded", ITEM_STATES, GONE, ("reason",), "`expired`, `purged` or `deleted`"
    MOVED = "moved", ("waiting", "scheduled"), GONE, ("queue",), "`added` in the other queue"
    REQUEUED = "requeued", (DEAD,), "waiting", ("size",)
    DROPPED = "dropped", (DEAD,), GONE
    VANISHED = "vanished", ITEM_STATES, GONE, (), "a client of another library has completed it"
    RESTORED = "restored", (), "waiting", (), "the id was in no list"

    PAUSED = _of("queue", "paused", ("group", "reason", "until"))
    RESUMED = _of("queue", "resumed", ("group",))
    LIMITED = _of("queue", "limited", ("group", "limits"), "its limits have changed")
    PURGED = _of("queue", "purged", ("group", "count"), "each item has its own event")
    DELETED = _of("queue", "deleted", ("count",), "each item has its own event")
    WORKER_UP = _of("worker", "worker_up", ("worker",), "it serves the queue from now on")
    WORKER_DOWN = _of("worker", "worker_down", ("worker",), "it has stopped")
    WORKER_FAILED = _of("worker", "worker_failed", ("worker",), "it is gone; see `reclaimed`")

    @property
    def can_delay(self) -> bool:
        """Whether the item is scheduled, and not waiting, if the event has the field `due`."""
        return self.after == "waiting" and "due" in self.fields


#: All events by their names.
EVENTS = {kind.value: kind for kind in EventKind}
#: The events of items. The history of an item, and the state of a queue, follow from these.
ITEM_EVENTS = tuple(kind for kind in EventKind if kind.subject == "item")
#: The events after which an item waits or, with `due`, is scheduled.
ENTERS = tuple(kind for kind in EventKind if kind.after == "waiting")
#: The events that end an unfinished item.
ENDS = tuple(kind for kind in EventKind if kind.after in {GONE, DEAD} and kind.before != (DEAD,))
#: The events that make a dead letter or end one; those that do not change an unfinished item.
DEAD_LETTERS = tuple(kind for kind in EventKind if DEAD in {*kind.before, kind.after})
ENDS_OF_DEAD_LETTERS = tuple(kind for kind in DEAD_LETTERS if (kind.before, kind.after) == ((DEAD,), GONE))
