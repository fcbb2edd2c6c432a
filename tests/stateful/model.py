"""A model of a queue in plain Python; the rule machine compares the server with it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Known:
    """An unfinished item. Tokens and times are those of the ledger."""

    data: bytes
    level: int = 0
    group: str | None = None
    expires: int | None = None
    first: int | None = None
    last: int | None = None
    attempt: int = 0
    leased_ms: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Letter:
    """A dead letter."""

    data: bytes
    error: str
    died_ms: int
    attempt: int
    token: int
    level: int = 0
    group: str | None = None


@dataclass(frozen=True)
class Held:
    """A lease that was granted once; it may have expired."""

    id: str
    token: int


@dataclass
class Model:
    """A queue. Times are in ms; `waiting` begins with the next item and may hold ghosts and doubles.

    Levels and groups are kept, and change no order: which item is the next is decided by `lease` for plain
    queues alone. What others have leased is told by `grant`.
    """

    return_front: bool = False
    items: dict[str, Known] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    leased: dict[str, int] = field(default_factory=dict)
    scheduled: dict[str, int] = field(default_factory=dict)
    dead: dict[str, Letter] = field(default_factory=dict)
    recent: dict[str, int] = field(default_factory=dict)
    fence: int = 0

    def state(self, item_id: str) -> str:
        if item_id in self.leased:
            return "leased"
        return "scheduled" if item_id in self.scheduled else "waiting"

    def ids(self, *states: str) -> list[str]:
        """Return the ids in some states."""
        return [one for one in self.items if self.state(one) in states]

    def oldest(self, elapsed: int, now: int) -> list[str]:
        """Return the ids of leases that began so long ago, the oldest first."""
        began = sorted((self.items[one].leased_ms, self.items[one].last, one) for one in self.leased)
        return [one for at, _, one in began if at <= now - elapsed]

    def add(
        self, item_id: str, known: Known, now: int, delay: int = 0, *, window: int = 0, replaces: bool = False
    ) -> bool:
        waits = item_id in self.items and item_id not in self.leased
        if item_id in self.items and not (replaces and waits):
            return False
        if not waits and self.recent.get(item_id, 0) > now:
            return False
        # An id that was scheduled while it waited is still in the list.
        stays = waits and not delay and (item_id not in self.scheduled or item_id in self.waiting)
        self.scheduled.pop(item_id, None)
        self.items[item_id] = known
        if not stays:
            self._wait(item_id, now, delay, front=False)
        if window:
            self.recent[item_id] = now + window
        return True

    def lease(self, count: int, now: int, lease_ms: int) -> list[tuple[Held, bytes, int]]:
        self.reclaim(now)
        given: list[tuple[Held, bytes, int]] = []
        while self.waiting and len(given) < count:
            item_id = self.waiting.pop(0)
            if item_id not in self.items or item_id in self.leased or item_id in self.scheduled:
                continue  # a ghost or a double
            known = self.items[item_id]
            if self._is_late(known, now):
                del self.items[item_id]
                continue
            self.grant(Held(item_id, self.fence + 1), now, lease_ms)
            given.append((Held(item_id, self.fence), known.data, known.attempt))
        return given

    def grant(self, held: Held, now: int, lease_ms: int) -> None:
        known, self.fence = self.items[held.id], held.token
        known.first, known.last = known.first or held.token, held.token
        known.attempt, known.leased_ms = known.attempt + 1, now
        self.leased[held.id] = now + lease_ms

    def complete(self, held: Held, *, fenced: bool) -> bool:
        known = self.items.get(held.id)
        if known is None or known.first is None or known.last is None:
            return False
        if not known.first <= held.token <= known.last:
            return False
        if fenced and not self.holds(held):
            return False
        self._end(held.id)
        return True

    def cancel(self, item_id: str) -> bool:
        if item_id not in self.items:
            return False
        self._end(item_id)
        return True

    def cancel_data(self, data: bytes) -> set[str]:
        equal = {item_id for item_id, known in self.items.items() if known.data == data}
        for item_id in equal:
            self._end(item_id)
        return equal

    def renew(self, held: Held, now: int, lease_ms: int) -> bool:
        if not self.holds(held):
            return False
        if self.leased[held.id] <= now:
            self.items[held.id].leased_ms = now  # it begins again
        self.leased[held.id] = now + lease_ms
        return True

    def release(self, held: Held, now: int, delay: int, *, front: bool) -> bool:
        if not self.holds(held):
            return False
        del self.leased[held.id]
        self.items[held.id].attempt -= 1
        self._wait(held.id, now, delay, front=front)
        return True

    def end_lease(self, item_id: str) -> None:
        del self.leased[item_id]
        self.waiting.insert(0, item_id)

    def fail(self, held: Held, error: str, now: int, retry_in: int | None) -> bool:
        if not self.holds(held):
            return False
        del self.leased[held.id]
        known = self.items[held.id]
        if retry_in is not None:
            known.error = error
            self._wait(held.id, now, retry_in, front=False)
            return True
        del self.items[held.id]
        facts = (known.attempt, held.token, known.level, known.group)
        self.dead[held.id] = Letter(known.data, error, now, *facts)
        return True

    def requeue(self, item_id: str) -> bool:
        if item_id not in self.dead or item_id in self.items:
            return False
        letter = self.dead.pop(item_id)
        self.items[item_id] = Known(letter.data, letter.level, letter.group)
        self.waiting.append(item_id)
        return True

    def requeue_all(self) -> int:
        # Those that died in one moment are listed by their ids, as bytes.
        oldest_first = sorted(self.dead, key=lambda one: (self.dead[one].died_ms, one.encode()))
        return sum(self.requeue(item_id) for item_id in oldest_first)

    def drop_older_than(self, age: int, now: int) -> int:
        old = [item_id for item_id, letter in self.dead.items() if letter.died_ms <= now - age]
        for item_id in old:
            del self.dead[item_id]
        return len(old)

    def holds(self, held: Held) -> bool:
        known = self.items.get(held.id)
        return known is not None and held.id in self.leased and known.last == held.token

    def reclaim(self, now: int) -> None:
        expired = sorted((end, item_id) for item_id, end in self.leased.items() if end <= now)
        back = [item_id for _, item_id in expired]
        for item_id in back:
            del self.leased[item_id]
        self.waiting = [*back, *self.waiting] if self.return_front else [*self.waiting, *back]
        for _, item_id in sorted((due, item_id) for item_id, due in self.scheduled.items() if due <= now):
            del self.scheduled[item_id]
            self.waiting.append(item_id)

    def discard_late(self, now: int) -> None:
        for item_id in [one for one, known in self.items.items() if self._is_late(known, now)]:
            self._end(item_id)

    def _is_late(self, known: Known, now: int) -> bool:
        return known.expires is not None and known.expires <= now and known.attempt == 0

    def _end(self, item_id: str) -> None:
        self.leave(item_id)
        del self.items[item_id]

    def leave(self, item_id: str) -> None:
        """Let an item leave its state."""
        if item_id in self.leased:
            del self.leased[item_id]
        elif item_id in self.scheduled:
            del self.scheduled[item_id]
        elif item_id in self.waiting:
            youngest = len(self.waiting) - 1 - self.waiting[::-1].index(item_id)
            del self.waiting[youngest]

    def enter(self, item_id: str, due: int | None, deadline: int | None = None) -> None:
        """Let an item be scheduled, be leased, or wait."""
        if deadline is not None:
            self.leased[item_id] = deadline
        elif due is not None:
            self.scheduled[item_id] = due
        else:
            self.waiting.append(item_id)

    def _wait(self, item_id: str, now: int, delay: int, *, front: bool) -> None:
        if delay:
            self.scheduled[item_id] = now + delay
        elif front:
            self.waiting.insert(0, item_id)
        else:
            self.waiting.append(item_id)
