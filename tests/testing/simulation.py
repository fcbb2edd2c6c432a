"""Generate random correct histories: a correct queue, and callers with unreliable connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasequeue.testing.history import Event, FinalState

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from leasequeue.testing.history.events import Kind

QUEUE = "q"
STEP = 100


@dataclass
class Holder:
    """The holder of a lease, and when it received the lease."""

    item: str
    token: int
    attempt: int
    received_at: int
    process: str
    begun: bool = False


@dataclass
class Simulation:
    """A queue that takes random steps and records what its callers see.

    The steps happen one after the other, `STEP` apart; a call may be in flight for longer than that.
    """

    random: random.Random
    events: list[Event] = field(default_factory=list)
    now: int = STEP
    fence: int = 0
    #: The attempt of each unfinished item, and the token of its current holder.
    attempts: dict[str, int] = field(default_factory=dict)
    current: dict[str, int] = field(default_factory=dict)
    #: The first and the last token of each unfinished incarnation.
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    holders: list[Holder] = field(default_factory=list)

    def run(self, steps: int) -> None:
        moves: list[Callable[[], None]] = [
            self.add, self.add, self.lease, self.lease, self.lease, self.expire, self.begin, self.begin,
            self.complete, self.complete, self.fail, self.release, self.renew, self.requeue, self.drop,
            self.cancel, self.progress,
        ]  # fmt: skip
        for _ in range(steps):
            self.now += STEP
            self.random.choice(moves)()

    @property
    def final(self) -> FinalState:
        return FinalState(QUEUE, frozenset(self.attempts), frozenset(self.dead))

    # ---------------------------------------------------------------- the steps

    def add(self) -> None:
        item = self.random.choice("abcdef")
        self._call("add", item, lambda: self._add(item))

    def _add(self, item: str) -> bool:
        if item in self.attempts:
            return False
        self.attempts[item] = 0
        return True

    def lease(self) -> None:
        waiting = sorted(self.attempts.keys() - self.current.keys())
        if not waiting:
            return
        item = self.random.choice(waiting)
        self.fence += 1
        self.attempts[item] += 1
        self.current[item] = self.fence
        self.tokens[item] = (self.tokens.get(item, (self.fence, 0))[0], self.fence)
        if self.random.random() < 0.1:
            return  # the worker was killed before it recorded the lease
        called_at, answered_at = self._times(0)
        process = f"w{self.random.randrange(3)}"
        holder = Holder(item, self.fence, self.attempts[item], answered_at, process)
        self.holders.append(holder)
        self.events.append(
            Event(
                answered_at, "lease", QUEUE, item, process, holder.token, holder.attempt, called_at=called_at
            )
        )

    def expire(self) -> None:
        if self.current:
            del self.current[self.random.choice(sorted(self.current))]

    def begin(self) -> None:
        ready = [one for one in self._informed() if not one.begun and self.current.get(one.item) == one.token]
        if ready:
            holder = self.random.choice(ready)
            holder.begun = True
            self.events.append(Event(self.now, "begin", QUEUE, holder.item, holder.process, holder.token))

    def complete(self) -> None:
        self._call_as_holder("complete", self._complete)

    def _complete(self, holder: Holder) -> bool:
        first, last = self.tokens.get(holder.item, (1, 0))
        return first <= holder.token <= last and self._end(holder.item)

    def _end(self, item: str) -> bool:
        self.tokens.pop(item, None)
        self.current.pop(item, None)
        return self.attempts.pop(item, None) is not None

    def fail(self) -> None:
        kind: Kind = self.random.choice(["retry", "die"])
        self._call_as_holder(
            kind,
            lambda holder: self._end_lease(holder) and (kind == "retry" or self._die(holder.item)),
        )

    def _die(self, item: str) -> bool:
        self.dead.add(item)
        return self._end(item)

    def release(self) -> None:
        self._call_as_holder("release", lambda holder: self._end_lease(holder) and self._uncount(holder.item))

    def _uncount(self, item: str) -> bool:
        self.attempts[item] -= 1
        return True

    def _end_lease(self, holder: Holder) -> bool:
        if self.current.get(holder.item) != holder.token:
            return False
        del self.current[holder.item]
        return True

    def renew(self) -> None:
        self._call_as_holder("renew", lambda holder: self.current.get(holder.item) == holder.token)

    def progress(self) -> None:
        self._call_as_holder("progress", lambda holder: self.current.get(holder.item) == holder.token)

    def cancel(self) -> None:
        item = self.random.choice("abcdef")
        self._call("cancel", item, lambda: self._end(item))

    def requeue(self) -> None:
        item = self.random.choice("abcdef")
        self._call("requeue", item, lambda: item in self.dead and self._add(item) and self._bury(item))

    def drop(self) -> None:
        item = self.random.choice("abcdef")
        self._call("drop", item, lambda: self._bury(item))

    def _bury(self, item: str) -> bool:
        was_dead = item in self.dead
        self.dead.discard(item)
        return was_dead

    # ------------------------------------------------------------------- calls

    def _informed(self) -> list[Holder]:
        """Return the holders that have received their lease by now."""
        return [holder for holder in self.holders[-12:] if holder.received_at < self.now]

    def _call_as_holder(self, kind: Kind, effect: Callable[[Holder], bool]) -> None:
        if informed := self._informed():
            holder = self.random.choice(informed)
            self._call(kind, holder.item, lambda: effect(holder), holder)

    def _call(self, kind: Kind, item: str, effect: Callable[[], bool], holder: Holder | None = None) -> None:
        process, token = (holder.process, holder.token) if holder else ("p", None)
        called_at, answered_at = self._times(holder.received_at if holder else 0)
        call = Event(called_at, kind, QUEUE, item, process, token)
        self.events.append(call)
        # Most calls are answered. Others were not sent, lost their answer, or were made by a process that was
        # killed before the answer came.
        fate = self.random.choices(["answered", "unsent", "unknown", "killed"], [20, 1, 1, 1])[0]
        arrives = fate == "answered" or (fate != "unsent" and self.random.random() < 0.5)
        accepted = arrives and effect()
        if fate != "killed":
            outcome = accepted if fate == "answered" else fate
            self.events.append(call._replace(at=answered_at, called_at=called_at, outcome=outcome))

    def _times(self, earliest: int) -> tuple[int, int]:
        """Return when a call was made and answered that has its effect now."""
        called_at = self.now - self.random.randrange(1, 3 * STEP)
        return max(earliest + 1, called_at), self.now + self.random.randrange(1, 3 * STEP)
