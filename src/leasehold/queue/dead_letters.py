"""Dead letters: items that were given up, kept to be looked at, tried once more, or dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.durations import LONGEST_KEPT_SECONDS, Duration, check_int, to_ms
from leasehold.item import MAX_DATA_BYTES
from leasehold.queue.bulk import Bulk
from leasehold.queue.encoding import MAX_REPLY_BYTES, TRIP_ROWS, encoded_id

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence

    from leasehold.queue.engine import Engine

#: The most that one call lists or drops in one step.
MAX_AT_ONCE = 1000
#: Values per dead letter in the reply of `dead_list`.
_FIELDS = 7


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """An item that was given up."""

    id: str
    #: The data; None if it was not asked for, or did not fit into the reply.
    data: bytes | None
    #: Bytes of data.
    size: int
    #: What it failed with, the last time: the text or the traceback, at most 16 KiB.
    error: str
    #: When it was given up: seconds since 1970, server's clock.
    died_at: float
    #: How often it was tried.
    attempt: int
    #: The number of its last lease.
    token: int


class DeadLetters:
    """The dead letters of a queue. `AsyncWorkQueue.dead_letters` gives it.

        for letter in await queue.dead_letters.list():
            print(letter.id, letter.error)
        await queue.dead_letters.requeue("mail-1", "mail-2")

    No client of another library sees them. An id that dies again takes the place of its older letter.
    Every call raises QueueClosed and ServerError as `AsyncWorkQueue.counts` does.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def list(self, *, start: int = 0, count: int = 100, data: bool = True) -> builtins.list[DeadLetter]:
        """Look at dead letters, the newest first.

        Args:
            start: Where to begin: 0 is the newest, -1 the oldest.
            count: How many, 1 to 1,000.
            data: Whether to bring the payloads (8 MiB of them at most).

        Raises:
            InvalidArgument: If one of them is not as said.
        """
        check_int("start", start, minimum=-(2**53), maximum=2**53)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        reply = await self._look(start=start, count=count, max_bytes=MAX_REPLY_BYTES if data else -1)
        return [letter for letter in _read(reply, with_data=data) if letter.size >= 0]

    async def get(self, item_id: str) -> DeadLetter | None:
        """Look at one dead letter.

        Returns:
            The dead letter, with its data; None if there is none with this id.

        Raises:
            InvalidArgument: If `item_id` can be no id.
        """
        reply = await self._look(encoded_id(item_id), max_bytes=MAX_DATA_BYTES)
        letter = _read(reply, with_data=True)[0]
        return letter if letter.size >= 0 else None

    async def count(self) -> int:
        """How many there are."""
        return int((await self._engine().run("counts"))[3])

    async def requeue(self, *item_ids: str) -> builtins.list[bool]:
        """Put dead letters back to the end of the queue, as if they were added now.

        Each is a new incarnation: its attempts begin again at 1, and no earlier holder can complete it. Up to
        500 ids go in one step.

        Returns:
            For each id, whether it went back. False: there is no such dead letter, or an item with its id has
            been added since; then it stays where it is.

        Raises:
            InvalidArgument: If one can be no id; nothing was sent.
        """
        ids = [encoded_id(item_id) for item_id in item_ids]
        return [answer == 1 for answer in await Bulk(self._engine).requeue(ids)]

    async def requeue_all(self) -> int:
        """Put all dead letters back, the oldest first, and return how many went.

        Those that die while it runs are left alone, and those whose id has been added since stay.
        """
        newest = _read(await self._look(start=0, count=1), with_data=False)
        requeued = stayed = 0
        while newest:
            # The oldest of those that are not known to stay.
            some = await self._look(start=-TRIP_ROWS - stayed, count=TRIP_ROWS)
            ids = [
                some[at] for at in range(0, len(some), _FIELDS) if some[at + 1] <= newest[0].died_at * 1000
            ]
            if not ids:
                break
            answers = await Bulk(self._engine).requeue(ids[::-1])
            requeued += answers.count(1)
            stayed += answers.count(-1)
        return requeued

    async def drop(self, *item_ids: str) -> builtins.list[bool]:
        """Drop dead letters for good.

        Returns:
            For each id, whether there was one.

        Raises:
            InvalidArgument: If one can be no id; nothing was sent.
        """
        ids = [encoded_id(item_id) for item_id in item_ids]
        answers: builtins.list[int] = []
        for at in range(0, len(ids), TRIP_ROWS):
            answers += await self._engine().run("drop_many", ids[at : at + TRIP_ROWS])
        return [answer == 1 for answer in answers]

    async def drop_all(self) -> int:
        """Drop all dead letters for good, and return how many there were."""
        return await self.drop_older_than(0)

    async def drop_older_than(self, age: Duration) -> int:
        """Drop for good what has been dead for at least so many seconds, and return how many that was.

        Raises:
            InvalidArgument: If `age` is not as said.
        """
        age_ms = to_ms("age", age, zero=True, longest=LONGEST_KEPT_SECONDS)
        dropped, last = 0, MAX_AT_ONCE
        while last == MAX_AT_ONCE:
            last = await self._engine().run("drop_old", age_ms=age_ms, count=MAX_AT_ONCE)
            dropped += last
        return dropped

    async def _look(self, *ids: bytes, start: int = 0, count: int = 1, max_bytes: int = -1) -> Sequence[Any]:
        reply: Sequence[Any] = await self._engine().run(
            "dead_list", ids, start=start, count=count, max_bytes=max_bytes
        )
        return reply


def _read(reply: Sequence[Any], *, with_data: bool) -> list[DeadLetter]:
    letters: list[DeadLetter] = []
    for at in range(0, len(reply), _FIELDS):
        item_id, died_ms, size, data, error, attempt, token = reply[at : at + _FIELDS]
        letters.append(
            DeadLetter(
                id=item_id.decode(errors="surrogateescape"),
                data=data if with_data else None,
                size=size,
                error=error.decode(errors="replace"),
                died_at=died_ms / 1000,
                attempt=attempt,
                token=token,
            )
        )
    return letters
