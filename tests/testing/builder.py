"""Build histories call by call."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from leasequeue.testing.history import Event, FinalState, History, check

if TYPE_CHECKING:
    from leasequeue.testing.history.events import Kind

QUEUE = "q"


class HistoryBuilder:
    """A history whose events follow each other, unless a time is given."""

    def __init__(self, begun: HistoryBuilder | None = None) -> None:
        self.events: list[Event] = [*begun.events] if begun else []
        self._clock = itertools.count(100 * (2 * len(self.events) + 1), 100)

    def now(self) -> int:
        return next(self._clock)

    def call(
        self,
        kind: Kind,
        item: str,
        token: int | None = None,
        *,
        answer: bool | None = True,
        process: str = "worker",
        called_at: int | None = None,
    ) -> HistoryBuilder:
        """Add a call and its answer; None is no answer."""
        call = Event(called_at or self.now(), kind, QUEUE, item, process, token)
        self.events.append(call)
        if answer is not None:
            self.events.append(call._replace(at=self.now(), called_at=call.at, outcome=answer))
        return self

    def add(self, item: str = "x", *, answer: bool | None = True) -> HistoryBuilder:
        return self.call("add", item, answer=answer, process="producer")

    def lease(
        self,
        token: int,
        attempt: int = 1,
        *,
        item: str = "x",
        process: str = "worker",
        called_at: int | None = None,
    ) -> HistoryBuilder:
        called_at = called_at or self.now()
        self.events.append(Event(self.now(), "lease", QUEUE, item, process, token, attempt, called_at))
        return self

    def begin(self, token: int, *, item: str = "x") -> HistoryBuilder:
        self.events.append(Event(self.now(), "begin", QUEUE, item, "worker", token))
        return self

    def end(self, token: int, outcome: str = "returned") -> HistoryBuilder:
        self.events.append(Event(self.now(), "end", QUEUE, "x", "worker", token, outcome=outcome))
        return self

    def complete(
        self, token: int, *, answer: bool | None = True, item: str = "x", called_at: int | None = None
    ) -> HistoryBuilder:
        return self.call("complete", item, token, answer=answer, called_at=called_at)

    def exit(self) -> HistoryBuilder:
        self.events.append(Event(self.now(), "exit", process="worker"))
        return self

    def violated(self, *, unfinished: str = "", dead: str = "", with_final_state: bool = True) -> set[str]:
        """Return the names of the rules that the history breaks.

        Args:
            unfinished: The ids of the unfinished items in the final state, one letter each.
            dead: The ids of the dead letters, one letter each.
            with_final_state: Whether the check is given the final state.
        """
        final = FinalState(QUEUE, frozenset(unfinished), frozenset(dead))
        found = check(History(self.events), *((final,) if with_final_state else ()))
        assert all(violation.queue == QUEUE and str(violation) for violation in found)
        return {violation.rule for violation in found}
