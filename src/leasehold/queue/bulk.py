"""Scripts with finished rows of bytes, for those who have many: `leasehold.spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasehold.queue.encoding import MAX_REPLY_BYTES, TRIP_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.queue.engine import Engine

#: The most rows of one call.
MAX_ROWS = 1000
#: For how long it is known what a run of a job has added, if it does not end (ms): a week.
KEEP_RUN_MS = 7 * 24 * 3600 * 1000
#: For how long after its beginning a run is found by the job's name (ms). Longer than what it has added is
#: known, which each addition prolongs; a name that has outlived that finds a run that knows of nothing.
KEEP_NAME_MS = 5 * KEEP_RUN_MS
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

    async def open_run(self, job: bytes, new: bytes, *, keep_ms: int = KEEP_NAME_MS) -> bytes:
        """Say under which run a job of a name goes on: the one that is open, or a new one.

        Args:
            job: The job's name.
            new: The new run, if none is open: unlike any other.
            keep_ms: For how long the name is known.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        run: bytes = await self.run("once_run", job=job, run=new, keep_ms=keep_ms)
        return run

    async def add_once(self, run: bytes, rows: Sequence[bytes], *, keep_ms: int = KEEP_RUN_MS) -> list[int]:
        """Add items, each once for a run, however often it is called: repeating a lost call is safe.

        Args:
            run: The run of the job.
            rows: For each item id, data, delay (ms, or `@` and ms since 1970) and `b"0"`; at most 1,000
                items, and 1 MiB unless it is one.
            keep_ms: For how long the run is known.

        Returns:
            For each item 1: added; 0: already there; 2: added by the run before, or the run has ended.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        answers: list[int] = await self.run("add_once", rows, run=run, keep_ms=keep_ms)
        return answers

    async def end_run(
        self, run: bytes, *, ended_ms: int, job: bytes = b"", report: bytes = b"", keep_ms: int = 0
    ) -> int:
        """End a run: what is left of its tasks adds nothing, and its job's name is free again.

        Args:
            run: The run.
            ended_ms: For how long it is known that it has ended.
            job: The job's name, under which the report is kept.
            report: Follows the number of items in the result. Repeating is safe if it is unlike any other.
            keep_ms: For how long the result is kept; 0: there is none.

        Returns:
            How many items it has added; -1: it was ended before, with another report.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        added: int = await self.run(
            "once_drop", run=run, job=job, report=report, ended_ms=ended_ms, keep_ms=keep_ms
        )
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
            reply = await self.run("requeue_many", some, max_bytes=MAX_REPLY_BYTES)
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
                "list_ids", state=state.encode(), cursor=cursor, count=MAX_ROWS
            )
            ids += page
            if cursor == b"0":
                return ids, used == 1
