"""Histories, told call by call."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from leasehold.testing.history import Event, FinalState, History, check

if TYPE_CHECKING:
    from leasehold.testing.history.events import Kind

QUEUE = "q"


class Story:
    """What happened, one thing after the other, unless a time says otherwise."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._clock = itertools.count(100, 100)

    def now(self) -> int:
        return next(self._clock)

    def call(
        self,
        kind: Kind,
        item: str,
        token: int | None = None,
        *,
        answer: bool | None = True,
        by: str = "w",
        asked: int | None = None,
    ) -> Story:
        """A call and its answer; None is none."""
        ask = Event(asked or self.now(), kind, QUEUE, item, by, token)
        self.events.append(ask)
        if answer is not None:
            self.events.append(ask._replace(at=self.now(), asked=ask.at, outcome=answer))
        return self

    def add(self, item: str = "x", *, answer: bool | None = True) -> Story:
        return self.call("add", item, answer=answer, by="producer")

    def lease(
        self, token: int, attempt: int = 1, *, item: str = "x", by: str = "w", asked: int | None = None
    ) -> Story:
        asked = asked or self.now()
        self.events.append(Event(self.now(), "lease", QUEUE, item, by, token, attempt, asked))
        return self

    def begin(self, token: int, *, item: str = "x", by: str = "w") -> Story:
        self.events.append(Event(self.now(), "begin", QUEUE, item, by, token))
        return self

    def end(self, token: int, outcome: str = "returned", *, item: str = "x", by: str = "w") -> Story:
        self.events.append(Event(self.now(), "end", QUEUE, item, by, token, outcome=outcome))
        return self

    def complete(
        self, token: int, *, answer: bool | None = True, item: str = "x", asked: int | None = None
    ) -> Story:
        return self.call("complete", item, token, answer=answer, asked=asked)

    def exit(self, by: str = "w") -> Story:
        self.events.append(Event(self.now(), "exit", by=by))
        return self

    def broken(self, *, unfinished: str = "", dead: str = "", unknown_end: bool = False) -> set[str]:
        """The names of the rules that the story breaks; in the end these ids, a letter each, are there."""
        final = FinalState(QUEUE, frozenset(unfinished), frozenset(dead))
        found = check(History(self.events), *(() if unknown_end else (final,)))
        assert all(violation.queue == QUEUE and str(violation) for violation in found)
        return {violation.rule for violation in found}
