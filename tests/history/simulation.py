"""Generate random correct histories: the model of a queue, and callers with unreliable connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.history.events import Event, FinalState
from tests.stateful.model import Held, Known, Model

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.history.events import Kind

QUEUE = "q"
STEP = 100


@dataclass
class Holder:
    """The holder of a lease, and when it received the lease."""

    held: Held
    received_at: int
    process: str
    begun: bool = False


@dataclass
class Simulation:
    """A queue that takes random steps and records what its callers see.

    The steps happen one after the other, `STEP` apart; a call may be in flight for longer than that. No time
    passes for the model: a lease ends when `expire` says so.
    """

    random: random.Random
    events: list[Event] = field(default_factory=list)
    now: int = STEP
    model: Model = field(default_factory=lambda: Model(return_front=False))
    holders: list[Holder] = field(default_factory=list)

    def run(self, steps: int) -> None:
        model = self.model
        moves: list[Callable[[], None]] = [
            *[lambda: self._of_item("add", lambda item: model.add(item, Known(b""), 0))] * 2,
            *[self.lease] * 3,
            self.expire,
            *[self.begin] * 2,
            *[lambda: self._of_holder("complete", lambda held: model.complete(held, fenced=False))] * 2,
            lambda: self._of_holder("retry", lambda held: model.fail(held, "", 0, 0)),
            lambda: self._of_holder("die", lambda held: model.fail(held, "", 0, None)),
            lambda: self._of_holder("release", lambda held: model.release(held, 0, 0, front=False)),
            lambda: self._of_holder("renew", lambda held: model.renew(held, 0, 1)),
            lambda: self._of_holder("progress", model.holds),
            lambda: self._of_item("requeue", model.requeue),
            lambda: self._of_item("drop", lambda item: model.dead.pop(item, None) is not None),
            lambda: self._of_item("cancel", model.cancel),
        ]
        for _ in range(steps):
            self.now += STEP
            self.random.choice(moves)()

    @property
    def final(self) -> FinalState:
        return FinalState(QUEUE, frozenset(self.model.items), frozenset(self.model.dead))

    # ---------------------------------------------------------------- the steps

    def lease(self) -> None:
        for held, _, attempt in self.model.lease(1, 0, 1):
            if self.random.random() < 0.1:
                return  # the worker was killed before it recorded the lease
            called_at, answered_at = self._times(0)
            holder = Holder(held, answered_at, f"w{self.random.randrange(3)}")
            self.holders.append(holder)
            recorded = (QUEUE, held.id, holder.process, held.token, attempt, called_at)
            self.events.append(Event(answered_at, "lease", *recorded))

    def expire(self) -> None:
        if self.model.leased:
            self.model.leased[self.random.choice(sorted(self.model.leased))] = 0
            self.model.reclaim(0)

    def begin(self) -> None:
        ready = [one for one in self._informed() if not one.begun and self.model.holds(one.held)]
        if ready:
            holder = self.random.choice(ready)
            holder.begun = True
            begun = (QUEUE, holder.held.id, holder.process, holder.held.token)
            self.events.append(Event(self.now, "begin", *begun))

    # ------------------------------------------------------------------- calls

    def _informed(self) -> list[Holder]:
        """Return the holders that have received their lease by now."""
        return [holder for holder in self.holders[-12:] if holder.received_at < self.now]

    def _of_item(self, kind: Kind, effect: Callable[[str], bool]) -> None:
        item = self.random.choice("abcdef")
        self._call(kind, item, lambda: effect(item))

    def _of_holder(self, kind: Kind, effect: Callable[[Held], bool]) -> None:
        if informed := self._informed():
            holder = self.random.choice(informed)
            self._call(kind, holder.held.id, lambda: effect(holder.held), holder)

    def _call(self, kind: Kind, item: str, effect: Callable[[], bool], holder: Holder | None = None) -> None:
        process, token = (holder.process, holder.held.token) if holder else ("p", None)
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
