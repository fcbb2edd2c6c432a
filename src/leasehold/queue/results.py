"""Results: what a completion left for those who wait for it, kept for as long as it said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.queue.encoding import encoded_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.queue.engine import Engine


class Results:
    """The results of a queue's items. `AsyncWorkQueue.results` gives it."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def get(self, item_id: str) -> bytes | None:
        """The result that an item was completed with.

        Args:
            item_id: The item's id. If it was completed several times, the last result counts.

        Returns:
            The result; None if the item is not completed, left none, or its time is over.

        Raises:
            InvalidArgument: If `item_id` can be no id.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        found: list[bytes | None] = await self._engine().run("result", [encoded_id(item_id)])
        return found[0]
