"""What hangs off a queue: things that have few calls each, and names of their own."""

from __future__ import annotations

from leasehold.item import MAX_DATA_BYTES
from leasehold.queue.bulk import Bulk
from leasehold.queue.dead_letters import DeadLetters
from leasehold.queue.encoding import encoded_id
from leasehold.queue.events import Events
from leasehold.queue.life import OpenQueue
from leasehold.queue.results import Results
from leasehold.queue.schedules import Schedules
from leasehold.queue.views import ItemView, read_found


class QueueWithNouns(OpenQueue):
    """The part of `AsyncWorkQueue` that gives its nouns, and a single item."""

    async def find(self, item_id: str, *, data: bool = True) -> ItemView | None:
        """Look at one item by its id, without touching it.

        Args:
            item_id: The item's id.
            data: Whether to bring the payload, however large it is.

        Returns:
            The item; None if there is no unfinished one with this id. One that is neither scheduled nor
            leased counts as waiting.

        Raises:
            InvalidArgument: If `item_id` can be no id.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        reply = await self._engine.run(
            "find_many",
            [encoded_id(item_id)],
            which=b"living",
            max_bytes=MAX_DATA_BYTES if data else -1,
        )
        return read_found(reply, with_data=data)

    @property
    def bulk(self) -> Bulk:
        """Scripts with finished rows, for `leasehold.spark`."""
        return Bulk(lambda: self._engine)

    @property
    def dead_letters(self) -> DeadLetters:
        """The items that were given up: look at them, requeue or drop them."""
        return DeadLetters(lambda: self._engine)

    @property
    def events(self) -> Events:
        """What became of each item, if the queue is told to keep that."""
        return Events(lambda: self._engine)

    @property
    def results(self) -> Results:
        """What completed items have left."""
        return Results(lambda: self._engine)

    @property
    def schedules(self) -> Schedules:
        """What is added again and again: at intervals, or by the clock."""
        return Schedules(lambda: self._engine, self.name)
