"""Read what a queue contains, and describe it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.errors import summary_of
from leasequeue.queue.internals import clock_of
from leasequeue.states import ITEM_STATES, STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.dead_letters import DeadLetter
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.views import Counts, ItemView

#: Items read per call, and items shown of each state.
PAGE = 1000
SHOWN = 10
#: The maximum number of characters shown of data or an error.
MAX_SHOWN = 120


@dataclass(frozen=True)
class QueueContents:
    """The contents of a queue at the time they were read.

    Attributes:
        name: The queue's name.
        now: The time by the queue's clock, in seconds since 1970.
        counts: The number of items in each state.
        items: The unfinished items: waiting, then leased, then scheduled.
        dead_letters: The dead letters, the newest first.
    """

    name: str
    now: float
    counts: Counts
    items: Sequence[ItemView]
    dead_letters: Sequence[DeadLetter]

    @classmethod
    async def of(cls, queue: AsyncWorkQueue, *, data: bool = True) -> QueueContents:
        """Read all items and dead letters of a queue, with or without their data.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.inspect`.
        """
        items: list[ItemView] = []
        for state in ITEM_STATES:
            start = 0
            while page := await queue.inspect(state, start=start, count=PAGE, data=data):
                items += page
                start += len(page)
        letters: list[DeadLetter] = []
        while page_of_dead := await queue.dead_letters.list(start=len(letters), count=PAGE, data=data):
            letters += page_of_dead
        clock = clock_of(queue) or time.time
        return cls(queue.name, clock(), await queue.counts(), tuple(items), tuple(letters))

    def report(self) -> str:
        """Return a description of the contents, of some lines."""
        counts = [(state, count) for state, count in zip(STATES, self.counts, strict=True) if count]
        if not counts:
            return f"queue {self.name!r}, which is empty"
        lines = [
            f"queue {self.name!r}, which holds {', '.join(f'{count} {state}' for state, count in counts)}:"
        ]
        for state, count in counts:
            rows = self._rows(state)
            lines += [f"  {state:9}  {row}" for row in rows[:SHOWN]]
            if count > SHOWN:
                lines.append(f"  {state:9}  ... and {count - SHOWN} more")
        return "\n".join(lines)

    def _rows(self, state: str) -> list[str]:
        if state == "dead":
            return [f"{letter.id!r}  {describe_dead_letter(letter)}" for letter in self.dead_letters[:SHOWN]]
        views = [view for view in self.items if view.state == state]
        return [f"{view.id!r}  {describe_item(view, self.now)}" for view in views[:SHOWN]]


def describe_item(view: ItemView, now: float) -> str:
    """Describe an unfinished item: its data, its attempts, and when it is due."""
    words = [shorten(view.data)]
    if view.due is not None:
        left = view.due - now
        what = "the lease expires" if view.state == "leased" else "due"
        words.append(f"{what} in {left:.1f} s" if left >= 0 else f"{what} since {-left:.1f} s")
    if view.state == "leased":
        words.append(f"attempt {view.attempt}")
    elif view.attempt:
        words.append(tries(view.attempt))
    return ", ".join(words)


def describe_dead_letter(letter: DeadLetter) -> str:
    """Describe a dead letter: its data, its attempts, and one line of its error."""
    return (
        f"{shorten(letter.data)}, {tries(letter.attempt)}, {shorten(summary_of(letter.error), quoted=False)}"
    )


def shorten(value: Any, *, quoted: bool = True) -> str:
    """Return a value as one line of limited length."""
    text = repr(value) if quoted else str(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"


def tries(attempt: int) -> str:
    """Describe how often an item was tried."""
    if not attempt:
        return "not tried"
    return "tried once" if attempt == 1 else f"tried {attempt} times"
