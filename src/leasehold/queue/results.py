"""Results of completed items, kept for the time that the completion has set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.queue.encoding import encoded_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.queue.engine import Engine


class Results:
    """The results of a queue's items: `AsyncWorkQueue.results`."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def get(self, item_id: str) -> bytes | None:
        """Return the result with which an item was completed.

        Args:
            item_id: The item's id. If it was completed several times, the last result is returned.

        Returns:
            The result; None if the item is not completed, has no result, or the result has expired.

        Raises:
            InvalidArgument: If `item_id` cannot be an id.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        found: list[bytes | None] = await self._engine().run("result", [encoded_id(item_id)])
        return found[0]
