"""Choose dead letters by their task, their error and their age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasequeue.errors import summary_of
from leasequeue.tasks.wire import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue import AsyncWorkQueue, DeadLetter


@dataclass(frozen=True, kw_only=True)
class LetterFilter:
    """What a dead letter must have to be chosen; what is None or 0 is not asked for."""

    #: The name of its task.
    task: str | None = None
    #: A text in its error, or in the line that `summary_of` makes of it.
    error: str | None = None
    #: When it became a dead letter at the earliest: seconds since 1970, server's clock.
    oldest: float = 0.0

    async def choose(self, queue: AsyncWorkQueue, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """Return those to which all applies. Data that a listing had no room for is read."""
        return [letter for letter in letters if await self._applies(queue, letter)]

    async def _applies(self, queue: AsyncWorkQueue, letter: DeadLetter) -> bool:
        if letter.died_at < self.oldest:
            return False
        if self.error and self.error not in letter.error and self.error not in summary_of(letter.error):
            return False
        if self.task is None:
            return True
        data = letter.data
        if data is None and letter.size:
            whole = await queue.dead_letters.get(letter.id)
            data = whole.data if whole else None
        return self.task == task_of(data or b"")
