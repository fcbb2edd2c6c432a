"""Which queues the flow runs of another queue may add items to, through a client that has rights on both."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.errors import FormatTooNew, LeasequeueError

#: For how long it is remembered that a stage was left to a newer worker (s): longer than until the next try.
LEFT_SECONDS = 150.0
#: How many texts are remembered that were logged.
MAX_TEXTS = 100


class Feeds:
    """The pairs of a home queue and a queue that its flow runs may add items to.

    Who can write to a queue can write any flow run there. A caller without a worker acts with its own rights,
    and by its own will: all is permitted, until `limit` is called.

    Attributes:
        text: The pairs as the scripts take them; `*`: all.
    """

    def __init__(self) -> None:
        self._pairs: frozenset[tuple[str, str]] | None = None
        self.text = b"*"
        self._logged: set[str] = set()
        #: The queues that are too new for stages that lead there: since when, when it was last seen, and why.
        self._left: dict[str, tuple[float, float, FormatTooNew]] = {}

    def limit(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Permit these pairs, besides those of earlier calls, and no others."""
        found = frozenset(pairs) | (self._pairs or frozenset())
        if found != self._pairs:
            self._pairs = found
            joined = "\0\0".join(["", *("\0".join(pair) for pair in sorted(found)), ""])
            self.text = joined.encode(errors="surrogateescape")

    def permit(self, home: str, queue: str) -> bool:
        """Return whether the runs of a home queue may add items to a queue."""
        return self._pairs is None or home == queue or (home, queue) in self._pairs

    def leave(self, error: FormatTooNew) -> None:
        """Note that a stage was left to a newer worker."""
        now = time.monotonic()
        since, seen, _ = self._left.get(error.queue, (now, now, error))
        self._left[error.queue] = since if now - seen < LEFT_SECONDS else now, now, error

    def left(self) -> list[tuple[float, LeasequeueError]]:
        """Return since when stages are left to newer workers, and why, for each queue that is too new."""
        now = time.monotonic()
        return [(since, why) for since, seen, why in [*self._left.values()] if now - seen < LEFT_SECONDS]

    def is_news(self, text: str) -> bool:
        """Return whether a text was not logged yet, as far as is remembered, and remember it."""
        if text in self._logged:
            return False
        self._logged = {text, *self._logged} if len(self._logged) < MAX_TEXTS else {text}
        return True
