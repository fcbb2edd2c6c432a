"""Which queues the flow runs of another queue may add items to, through a client that has rights on both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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

    def is_news(self, text: str) -> bool:
        """Return whether a text was not logged yet, as far as is remembered, and remember it."""
        if text in self._logged:
            return False
        self._logged = {text, *self._logged} if len(self._logged) < MAX_TEXTS else {text}
        return True
