"""What hangs off a queue: things that have few calls each, and names of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.queue.dead import DeadLetters
from leasehold.queue.life import OpenQueue
from leasehold.queue.results import Results

if TYPE_CHECKING:
    from leasehold.queue.schedules import Schedules


class QueueWithNouns(OpenQueue):
    """The part of `AsyncWorkQueue` that gives its nouns."""

    @property
    def dead_letters(self) -> DeadLetters:
        """The items that were given up: look at them, requeue or drop them."""
        return DeadLetters(lambda: self._engine)

    @property
    def results(self) -> Results:
        """What completed items have left."""
        return Results(lambda: self._engine)

    @property
    def schedule(self) -> Schedules:
        """What is added again and again: at intervals, or by the clock."""
        # Few need it, and not everybody who wants a queue is to wait for what it imports.
        from leasehold.queue.schedules import Schedules

        return Schedules(self)
