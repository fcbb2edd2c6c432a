"""Rebuilds the state of a queue from its events."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leasequeue.states import DETAILS, EVENTS, FIELDS, GONE, STATES, EventKind
from tests.lua.space import Expiring, snapshot
from tests.stateful.model import Held, Known, Letter, Model

if TYPE_CHECKING:
    from collections.abc import Collection

    from redis.asyncio import Redis

    from leasequeue.views import Event


class Replay(Model):
    """A queue that is rebuilt from its events: of data it has the size, and of dead letters the time."""

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
        places: tuple[Collection[str], ...] = (self.waiting, self.leased, self.scheduled, self.dead)
        return {state for state, ids in zip(STATES, places, strict=True) if item_id in ids}

    def _apply(self, event: Event) -> None:
        item_id, at = event.id, round(event.at * 1000)
        match event.what:
            case "added" | "requeued":
                self.add_again(event)
            case "leased":
                self.be_leased(event)
            case "renewed":
                self.be_renewed(event)
            case "released":
                self.items[item_id].attempt -= 1
                self.move(event)
            case "replaced":
                self.replace(event)
            case "expired" | "due" | "failed" | "restored" | "reclaimed":
                self.move(event)
            case "completed" | "vanished" | "cancelled" | "discarded" | "moved":
                assert self.cancel(item_id)
            case "died":
                assert len(self.items[item_id].data) == event.size
                self.cancel(item_id)
                self.dead[item_id] = died(at)
            case "dropped":
                del self.dead[item_id]
            case what:
                raise AssertionError(what)

    def add_again(self, event: Event) -> None:
        """Add an item, or requeue a dead letter."""
        assert event.size is not None
        self.dead.pop(event.id, None) if event.what == "requeued" else None
        self.items[event.id] = Known(bytes(event.size))
        if event.id not in self.waiting:  # else it is replaced where it was
            self.move(event)

    def be_leased(self, event: Event) -> None:
        """Lease an item."""
        assert event.token == self.fence + 1
        item, at = self.items[event.id], round(event.at * 1000)
        assert len(item.data) == event.size
        self.waiting.remove(event.id)
        self.grant(Held(event.id, event.token), at, _ms(event.due) - at)
        assert item.attempt == event.attempt

    def be_renewed(self, event: Event) -> None:
        """Renew a lease. One that had expired begins again: its time in the ledger is that of the event."""
        at = round(event.at * 1000)
        if self.leased[event.id] <= at:
            self.items[event.id].leased_ms = at
        self.leased[event.id] = _ms(event.due)

    def replace(self, event: Event) -> None:
        """Replace the data of an item, which stays where it waits unless it is delayed or was."""
        assert event.size is not None
        self.items[event.id] = Known(bytes(event.size))
        if event.due is not None or event.id not in self.waiting:
            self.move(event)

    def reject_late_outcomes(self, item_id: str) -> None:
        """Let no lease of an item that there was so far complete it."""
        item = self.items[item_id]
        item.last = item.last or 0
        item.first = item.last + 1

    def move(self, event: Event) -> None:
        """Let an item leave its state, and enter that after the event."""
        self.leave(event.id)
        self.enter(event.id, None if event.due is None else _ms(event.due))
        if event.due is None and event.front:
            self.waiting.insert(0, self.waiting.pop())


def died(at: int) -> Letter:
    """Return what is known of a dead letter."""
    return Letter(b"", "", at, 0, 0)


async def live(redis: Redis, prefix: str) -> Replay:
    """Return the state of a queue, read from its keys. Items in lanes come last, in no order."""
    state: dict[str, Any] = {
        name: drawn.contents if isinstance(drawn, Expiring) else drawn
        for name, drawn in (await snapshot(redis, prefix)).items()
    }
    sizes = {key[5:]: len(value) for key, value in state.items() if key.startswith("item:")}
    items = {one: Known(bytes(size)) for one, size in sizes.items()}
    for one, entry in state.get("ledger", {}).items():
        first, last, attempt, at = map(int, entry.split())
        items[one] = replace(items[one], first=first, last=last, attempt=attempt, leased_ms=at)
    leased = {one: round(end) for one, end in state.get("deadlines", {}).items()}
    scheduled = {one: round(due) for one, due in state.get("scheduled", {}).items()}
    in_lanes = [member.partition("\0")[2][16:] for member in state.get("lanes", {})]
    listed = [*reversed(state.get("queue", [])), *reversed(state.get("held", [])), *in_lanes]
    waiting = [
        one for one in dict.fromkeys(listed) if one in sizes and one not in leased and one not in scheduled
    ]
    return Replay(
        items=items,
        waiting=waiting,
        leased=leased,
        scheduled=scheduled,
        dead={one: died(round(at)) for one, at in state.get("dead", {}).items()},
        fence=int(state.get("fence", 0)),
    )


def _ms(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1000)
