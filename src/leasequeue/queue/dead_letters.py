"""Dead letters: items that ran out of attempts, to be inspected, requeued or dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.durations import LONGEST_KEPT_SECONDS, Duration, check_bool, check_int, to_ms
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.queue.encoding import MAX_REPLY_BYTES, SLOW_ROWS, TRIP_ROWS, encoded_id, pages

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence

    from leasequeue.queue.engine import Engine

#: The maximum number of dead letters that one call lists.
MAX_AT_ONCE = 1000
#: How many one step of a listing reads: 100 with errors of 16 KiB took the server 2.8 ms.
_PAGE = 50
#: Values per dead letter in the reply of `dead_list`.
_FIELDS = 7


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """An item that ran out of attempts."""

    #: Its id.
    id: str
    #: The data; None if it was not asked for, or did not fit into the reply.
    data: bytes | None
    #: Bytes of data.
    size: int
    #: The last error: the text or the traceback, at most 16 KiB.
    error: str
    #: When it became a dead letter: seconds since 1970, server's clock.
    died_at: float
    #: The number of attempts.
    attempt: int
    #: The token of its last lease.
    token: int


class DeadLetters:
    """The dead letters of a queue: `AsyncWorkQueue.dead_letters`.

        for letter in await queue.dead_letters.list():
            print(letter.id, letter.error)
        await queue.dead_letters.requeue("mail-1", "mail-2")

    Clients of other libraries do not see them. A newer dead letter replaces an older one with the same id.
    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def list(
        self, *, start: int = 0, count: int = 100, data: bool = True, max_bytes: int = MAX_REPLY_BYTES
    ) -> builtins.list[DeadLetter]:
        """Return dead letters, the newest first.

        Args:
            start: Where to begin: 0 is the newest, -1 the oldest.
            count: The maximum number of dead letters, 1 to 1,000. Fifty are one step: between two, other
                clients may act.
            data: Whether to fetch the payloads.
            max_bytes: How many bytes of them at most, up to 8 MiB. Those that do not fit are left out.
        """
        check_bool("data", data)
        check_int("start", start, minimum=-(2**53), maximum=2**53)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        room = check_int("max_bytes", max_bytes, minimum=0, maximum=MAX_REPLY_BYTES) if data else -1
        found: dict[str, DeadLetter] = {}  # one that has moved between two steps is listed once
        for at, size in pages(start, count, _PAGE):
            page = self._read(await self._page(start=at, count=size, max_bytes=room), with_data=data)
            for letter in page:
                room -= letter.size if letter.data is not None else 0
                if letter.size >= 0:
                    found.setdefault(letter.id, letter)
            if len(page) < size and at >= 0:  # from the end on, the first pages may be before the list
                break
        return [*found.values()]

    async def get(self, item_id: str, *, max_bytes: int = MAX_DATA_BYTES) -> DeadLetter | None:
        """Return one dead letter, with its data unless that is larger; None if there is none with this id."""
        check_int("max_bytes", max_bytes, minimum=0, maximum=MAX_DATA_BYTES)
        reply = await self._page(encoded_id(item_id), max_bytes=max_bytes)
        letter = self._read(reply, with_data=True)[0]
        return letter if letter.size >= 0 else None

    async def count(self) -> int:
        """Return how many there are."""
        return int((await self._engine().run("counts"))[3])

    async def requeue(self, *item_ids: str) -> builtins.list[bool]:
        """Requeue dead letters at the end of the queue, as if they were added now.

        Each is a new incarnation: its attempts start again at 1, and no earlier holder can complete it. Up to
        100 ids are one step.

        Returns:
            For each id, whether it was requeued. False: there is no such dead letter, or an item with its id
            has been added since; then it stays a dead letter.
        """
        ids = [encoded_id(item_id) for item_id in item_ids]
        return [answer == 1 for answer in await self._engine().bulk.requeue(ids)]

    async def requeue_all(self) -> int:
        """Requeue all dead letters, the oldest first, and return how many were requeued.

        Dead letters that are made while it runs stay, and those whose id has been added since.
        """
        newest = self._read(await self._page(start=0, count=1), with_data=False)
        requeued = stayed = 0
        while newest:
            # The oldest of those that are not known to stay.
            some = await self._page(start=-SLOW_ROWS - stayed, count=SLOW_ROWS)
            ids = [
                some[at] for at in range(0, len(some), _FIELDS) if some[at + 1] <= newest[0].died_at * 1000
            ]
            if not ids:
                break
            answers = await self._engine().bulk.requeue(ids[::-1])
            requeued += answers.count(1)
            stayed += answers.count(-1)
        return requeued

    async def drop(self, *item_ids: str) -> builtins.list[bool]:
        """Remove dead letters; return for each id whether there was one."""
        ids = [encoded_id(item_id) for item_id in item_ids]
        answers: builtins.list[int] = []
        for at in range(0, len(ids), TRIP_ROWS):
            answers += await self._engine().run("drop_many", ids[at : at + TRIP_ROWS])
        return [answer == 1 for answer in answers]

    async def drop_all(self) -> int:
        """Remove all dead letters, and return how many there were."""
        return await self.drop_older_than(0)

    async def drop_older_than(self, age: Duration) -> int:
        """Remove dead letters that are at least `age` seconds old, and return how many there were."""
        age_ms = to_ms("age", age, zero=True, longest=LONGEST_KEPT_SECONDS)
        dropped, last = 0, TRIP_ROWS
        while last == TRIP_ROWS:
            last = await self._engine().run("drop_old", age_ms=age_ms, count=TRIP_ROWS)
            dropped += last
        return dropped

    async def _page(self, *ids: bytes, start: int = 0, count: int = 1, max_bytes: int = -1) -> Sequence[Any]:
        reply: Sequence[Any] = await self._engine().run(
            "dead_list", ids, start=start, count=count, max_bytes=max_bytes
        )
        return reply

    def _read(self, reply: Sequence[Any], *, with_data: bool) -> builtins.list[DeadLetter]:
        found: builtins.list[DeadLetter] = []
        for at in range(0, len(reply), _FIELDS):
            item_id, died_ms, size, data, *rest = reply[at : at + _FIELDS]
            shown = self._engine().payloads.shown(data, item_id)
            found.append(read_letter(item_id, died_ms, size, shown, *rest, with_data=with_data))
        return found


def read_letter(
    item_id: bytes,
    died_ms: float,
    size: int,
    data: bytes | None,
    error: bytes,
    attempt: int,
    token: int,
    *,
    with_data: bool,
) -> DeadLetter:
    """Parse the values of a dead letter in a reply."""
    return DeadLetter(
        id=item_id.decode(errors="surrogateescape"),
        data=data if with_data else None,
        size=size,
        error=error.decode(errors="replace"),
        died_at=died_ms / 1000,
        attempt=attempt,
        token=token,
    )
