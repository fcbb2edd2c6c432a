"""Scripts with finished rows of bytes, for those who have many: `leasehold.spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.queue.desk import MAX_BYTES
from leasehold.queue.rows import TRIP_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.queue.engine import Engine

#: The most rows of one call.
MOST_ROWS = 1000
#: For how long it is known what a job has added, if it does not end (ms): a week.
KEEP_JOB_MS = 7 * 24 * 3600 * 1000
#: What `requeue_many` says of those that did not fit into its call; they are the last of it.
_NO_ROOM = -2


class Bulk:
    """What a queue can do with rows that are checked and encoded already. `AsyncWorkQueue.bulk` gives it.

    Nothing is gathered: each call is a trip. Several may be under way at once.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def run(self, script: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        """Run any script; its arguments by name.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return await self._engine().run(script, rest, **arguments)

    async def add_once(self, job: bytes, rows: Sequence[bytes], *, keep_ms: int = KEEP_JOB_MS) -> list[int]:
        """Add items, each once for a job, however often it is called: repeating a lost call is safe.

        Args:
            job: The job's name.
            rows: For each item id, data, delay (ms, or `@` and ms since 1970) and `b"0"`; at most 1,000
                items, and 1 MiB unless it is one.
            keep_ms: For how long the job is known.

        Returns:
            For each item 1: added; 0: already there; 2: added by the job before.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        answers: list[int] = await self.run("add_once", rows, job=job, keep_ms=keep_ms)
        return answers

    async def end_job(self, job: bytes, *, report: bytes = b"", keep_ms: int = 0) -> int:
        """Forget what a job has added, and keep its report as the result of its name.

        Args:
            job: The job's name.
            report: Follows the number of items in the result. Repeating is safe if it is unlike any other.
            keep_ms: For how long the result is kept; 0: there is none.

        Returns:
            How many items it has added.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        added: int = await self.run("once_drop", job=job, keep_ms=keep_ms, report=report)
        return added

    async def find(self, ids: Sequence[bytes], *, which: str, max_bytes: int) -> list[Any]:
        """Look at up to 1,000 ids: the reply of `find_many`.

        Args:
            ids: Which.
            which: `living`: the items; `dead`: the dead letters; `all`: both.
            max_bytes: Bring no more data than this.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        reply: list[Any] = await self.run("find_many", ids, which=which.encode(), max_bytes=max_bytes)
        return reply

    async def requeue(self, ids: Sequence[bytes]) -> list[int]:
        """Put dead letters back to the end of the queue.

        Returns:
            For each id 1: it went back; 0: there is no such dead letter; -1: it stays, as an item with its
            id has been added since.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        answers: list[int] = []
        while some := ids[len(answers) : len(answers) + TRIP_ROWS]:
            reply = await self.run("requeue_many", some, max_bytes=MAX_BYTES)
            answers += [answer for answer in reply if answer != _NO_ROOM]
        return answers

    async def ids_of(self, state: str) -> tuple[list[bytes], bool]:
        """List the ids of all items of one state.

        What is in that state all the time is among them; some may be twice.

        Args:
            state: One of `list_ids`.

        Returns:
            The ids, and whether any item was ever leased here.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        ids: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, used, *page = await self.run(
                "list_ids", state=state.encode(), cursor=cursor, count=MOST_ROWS
            )
            ids += page
            if cursor == b"0":
                return ids, used == 1
