"""Rebuilds the state of a queue from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.states import DETAILS, EVENTS, FIELDS, GONE, STATES, EventKind
from tests.lua.space import Expiring, snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.views import Event


class ReplayedItem(NamedTuple):
    """An item: its size, and its ledger (first and last token, attempt, time)."""

    size: int
    ledger: tuple[int, int, int, int] | None = None


@dataclass
class Replay:
    """A queue, rebuilt from its events. Times are ms; `waiting` begins with the next item."""

    items: dict[str, ReplayedItem] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    leased: dict[str, int] = field(default_factory=dict)
    scheduled: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    fence: int = 0

    def take(self, event: Event) -> None:
        """Apply an event, and check it against its declaration."""
        kind, before = EVENTS[event.what], self.states_of(event.id)
        given = {name for name in FIELDS | DETAILS if getattr(event, name, None)}
        assert given - {"what", "id"} <= {*kind.fields}, event
        if kind.subject != "item":
            assert (event.id == "") == (kind.subject == "queue"), event
            return
        assert kind is EventKind.ADDED or not kind.before or before & {*kind.before}, event
        if kind is EventKind.RECLAIMED:
            self.reject_late_outcomes(event.id)
        if kind is not EventKind.PROGRESS:
            self._apply(event)
        after = "scheduled" if kind.can_delay and event.due is not None else kind.after
        left = self.states_of(event.id)
        assert after in left if after != GONE else not left & {*kind.before}, event

    def states_of(self, item_id: str) -> set[str]:
        """Return the states in which there is an item or a dead letter of this id."""
        places = zip(STATES, (self.waiting, self.leased, self.scheduled, self.dead), strict=True)
        return {state for state, ids in places if item_id in ids}

    def _apply(self, event: Event) -> None:
        item_id, at = event.id, round(event.at * 1000)
        match event.what:
            case "added" | "requeued":
                self.add(event)
            case "leased":
                self.lease(event)
            case "renewed":
                self.renew(event)
            case "released":
                ledger = self.items[item_id].ledger
                assert ledger is not None
                taken_back = (ledger[0], ledger[1], ledger[2] - 1, ledger[3])
                self.items[item_id] = self.items[item_id]._replace(ledger=taken_back)
                self.leave(item_id)
                self.enter(event)
            case "replaced":
                self.replace(event)
            case "expired" | "due" | "failed" | "restored" | "reclaimed":
                self.leave(item_id)
                self.enter(event)
            case "completed" | "vanished" | "cancelled" | "discarded" | "moved":
                self.leave(item_id)
                del self.items[item_id]
            case "died":
                self.leave(item_id)
                assert self.items.pop(item_id).size == event.size
                self.dead[item_id] = at
            case "dropped":
                del self.dead[item_id]
            case what:
                raise AssertionError(what)

    def add(self, event: Event) -> None:
        """Add an item, or requeue a dead letter."""
        assert event.size is not None
        self.dead.pop(event.id, None) if event.what == "requeued" else None
        waits = event.id in self.waiting
        self.items[event.id] = ReplayedItem(event.size)
        if not waits:  # else it is replaced where it was
            self.leave(event.id)
            self.enter(event)

    def lease(self, event: Event) -> None:
        """Lease an item."""
        assert event.token is not None
        assert event.attempt is not None
        item = self.items[event.id]
        assert item.size == event.size
        first = item.ledger[0] if item.ledger else event.token
        at = round(event.at * 1000)
        self.items[event.id] = item._replace(ledger=(first, event.token, event.attempt, at))
        self.waiting.remove(event.id)
        self.leased[event.id] = _ms(event.due)
        assert event.token == self.fence + 1
        self.fence = event.token

    def renew(self, event: Event) -> None:
        """Renew a lease. One that had expired begins again: its time in the ledger is that of the event."""
        ledger, at = self.items[event.id].ledger, round(event.at * 1000)
        if ledger is not None and self.leased[event.id] <= at:
            self.items[event.id] = self.items[event.id]._replace(ledger=(*ledger[:3], at))
        self.leased[event.id] = _ms(event.due)

    def replace(self, event: Event) -> None:
        """Replace the data of an item, which stays where it waits unless it is delayed or was."""
        assert event.size is not None
        self.items[event.id] = ReplayedItem(event.size)
        if event.due is not None or event.id not in self.waiting:
            self.leave(event.id)
            self.enter(event)

    def reject_late_outcomes(self, item_id: str) -> None:
        """Let no lease of an item that there was so far complete it."""
        _, last, *rest = self.items[item_id].ledger or (0, 0, 0, 0)
        self.items[item_id] = self.items[item_id]._replace(ledger=(last + 1, last, rest[0], rest[1]))

    def enter(self, event: Event) -> None:
        """Put an item into the state after the event."""
        if event.due is not None:
            self.scheduled[event.id] = _ms(event.due)
        elif event.front:
            self.waiting.insert(0, event.id)
        else:
            self.waiting.append(event.id)

    def leave(self, item_id: str) -> None:
        """Remove an item from its state."""
        self.leased.pop(item_id, None)
        self.scheduled.pop(item_id, None)
        if item_id in self.waiting:
            self.waiting.remove(item_id)


async def live(redis: Redis, prefix: str) -> Replay:
    """Return the state of a queue, read from its keys. Items in lanes come last, in no order."""
    state: dict[str, Any] = {
        name: drawn.contents if isinstance(drawn, Expiring) else drawn
        for name, drawn in (await snapshot(redis, prefix)).items()
    }
    sizes = {key[5:]: len(value) for key, value in state.items() if key.startswith("item:")}
    ledger = {one: _four(entry) for one, entry in state.get("ledger", {}).items()}
    leased = {one: round(end) for one, end in state.get("deadlines", {}).items()}
    scheduled = {one: round(due) for one, due in state.get("scheduled", {}).items()}
    in_lanes = [member.partition("\0")[2][16:] for member in state.get("lanes", {})]
    listed = [*reversed(state.get("queue", [])), *reversed(state.get("held", [])), *in_lanes]
    waiting = [
        one for one in dict.fromkeys(listed) if one in sizes and one not in leased and one not in scheduled
    ]
    return Replay(
        items={one: ReplayedItem(size, ledger.get(one)) for one, size in sizes.items()},
        waiting=waiting,
        leased=leased,
        scheduled=scheduled,
        dead={one: round(at) for one, at in state.get("dead", {}).items()},
        fence=int(state.get("fence", 0)),
    )


def _ms(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1000)


def _four(entry: str) -> tuple[int, int, int, int]:
    first, last, attempt, at = map(int, entry.split())
    return first, last, attempt, at
