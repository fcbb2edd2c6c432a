"""Right histories, made at random: a queue that does what it promises, and callers who are unlucky."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold.testing.history import Event, FinalState

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasehold.testing.history.events import Kind

QUEUE = "q"
STEP = 100


@dataclass
class Holder:
    """One who was given a lease, and when he learned of it."""

    item: str
    token: int
    attempt: int
    knows_at: int
    by: str
    begun: bool = False


@dataclass
class Simulation:
    """Takes random steps, and writes down what callers would see of them.

    The steps happen one after the other, `STEP` apart; a call may be under way for longer than that.
    """

    random: random.Random
    events: list[Event] = field(default_factory=list)
    now: int = STEP
    fence: int = 0
    #: For each item that is there: its attempt, and the number that holds it.
    items: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    #: The first and the last number of each incarnation that is there.
    numbers: dict[str, tuple[int, int]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    holders: list[Holder] = field(default_factory=list)

    def play(self, steps: int) -> None:
        moves: list[Callable[[], None]] = [
            self.add, self.add, self.lease, self.lease, self.lease, self.expire, self.begin, self.begin,
            self.complete, self.complete, self.fail, self.release, self.renew, self.requeue, self.drop,
        ]  # fmt: skip
        for _ in range(steps):
            self.now += STEP
            self.random.choice(moves)()

    @property
    def final(self) -> FinalState:
        return FinalState(QUEUE, frozenset(self.items), frozenset(self.dead))

    # ---------------------------------------------------------------- the steps

    def add(self) -> None:
        item = self.random.choice("abcdef")
        self._call("add", item, lambda: self._born(item))

    def _born(self, item: str) -> bool:
        if item in self.items:
            return False
        self.items[item] = 0
        return True

    def lease(self) -> None:
        free = sorted(self.items.keys() - self.held.keys())
        if not free:
            return
        item = self.random.choice(free)
        self.fence += 1
        self.items[item] += 1
        self.held[item] = self.fence
        self.numbers[item] = (self.numbers.get(item, (self.fence, 0))[0], self.fence)
        if self.random.random() < 0.1:
            return  # the worker was killed before it could tell
        asked, answered = self._times(0)
        by = f"w{self.random.randrange(3)}"
        holder = Holder(item, self.fence, self.items[item], answered, by)
        self.holders.append(holder)
        self.events.append(
            Event(answered, "lease", QUEUE, item, by, holder.token, holder.attempt, asked=asked)
        )

    def expire(self) -> None:
        if self.held:
            del self.held[self.random.choice(sorted(self.held))]

    def begin(self) -> None:
        ready = [one for one in self._able() if not one.begun and self.held.get(one.item) == one.token]
        if ready:
            holder = self.random.choice(ready)
            holder.begun = True
            self.events.append(Event(self.now, "begin", QUEUE, holder.item, holder.by, holder.token))

    def complete(self) -> None:
        self._settle("complete", self._completed)

    def _completed(self, one: Holder) -> bool:
        first, last = self.numbers.get(one.item, (1, 0))
        return first <= one.token <= last and self._gone(one.item)

    def _gone(self, item: str) -> bool:
        self.numbers.pop(item, None)
        self.held.pop(item, None)
        return self.items.pop(item, None) is not None

    def fail(self) -> None:
        kind: Kind = self.random.choice(["retry", "die"])
        self._settle(kind, lambda one: self._leaves(one) and (kind == "retry" or self._died(one.item)))

    def _died(self, item: str) -> bool:
        self.dead.add(item)
        return self._gone(item)

    def release(self) -> None:
        self._settle("release", lambda one: self._leaves(one) and self._uncounted(one.item))

    def _uncounted(self, item: str) -> bool:
        self.items[item] -= 1
        return True

    def _leaves(self, one: Holder) -> bool:
        if self.held.get(one.item) != one.token:
            return False
        del self.held[one.item]
        return True

    def renew(self) -> None:
        self._settle("renew", lambda one: self.held.get(one.item) == one.token)

    def requeue(self) -> None:
        item = self.random.choice("abcdef")
        self._call("requeue", item, lambda: item in self.dead and self._born(item) and self._not_dead(item))

    def drop(self) -> None:
        item = self.random.choice("abcdef")
        self._call("drop", item, lambda: self._not_dead(item))

    def _not_dead(self, item: str) -> bool:
        there = item in self.dead
        self.dead.discard(item)
        return there

    # ------------------------------------------------------------------- calls

    def _able(self) -> list[Holder]:
        """Those who know by now what they hold."""
        return [one for one in self.holders[-12:] if one.knows_at < self.now]

    def _settle(self, kind: Kind, effect: Callable[[Holder], bool]) -> None:
        if able := self._able():
            one = self.random.choice(able)
            self._call(kind, one.item, lambda: effect(one), one)

    def _call(self, kind: Kind, item: str, effect: Callable[[], bool], holder: Holder | None = None) -> None:
        by, token = (holder.by, holder.token) if holder else ("p", None)
        asked, answered = self._times(holder.knows_at if holder else 0)
        ask = Event(asked, kind, QUEUE, item, by, token)
        self.events.append(ask)
        # Most calls are answered. Of the others, the caller was told that they did not get through, or that
        # nobody knows, or was killed before he was told.
        fate = self.random.choices(["answered", "unsent", "unknown", "killed"], [20, 1, 1, 1])[0]
        arrives = fate == "answered" or (fate != "unsent" and self.random.random() < 0.5)
        outcome = arrives and effect()
        if fate != "killed":
            told = outcome if fate == "answered" else fate
            self.events.append(ask._replace(at=answered, asked=asked, outcome=told))

    def _times(self, earliest: int) -> tuple[int, int]:
        """When a call was asked for and answered that has its effect now."""
        asked = self.now - self.random.randrange(1, 3 * STEP)
        return max(earliest + 1, asked), self.now + self.random.randrange(1, 3 * STEP)
