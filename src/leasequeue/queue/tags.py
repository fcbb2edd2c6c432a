"""Tags: texts by which items and dead letters are found, counted, cancelled and requeued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.durations import Duration, check_bool, check_int, to_ms
from leasequeue.queue.cancelling import KEEP_SECONDS
from leasequeue.queue.dead_letters import read_letter
from leasequeue.queue.encoding import MAX_REPLY_BYTES, SLOW_ROWS, TRIP_ROWS, check_tag, encoded_id
from leasequeue.queue.views import fetched, read_inspection, read_options

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Callable, Sequence

    from leasequeue.codecs import Payloads
    from leasequeue.queue.dead_letters import DeadLetter
    from leasequeue.queue.engine import Engine
    from leasequeue.queue.views import ItemView

#: The maximum number of tags, or of items, that one call returns.
MAX_AT_ONCE = 1000
#: Values per item in the reply of `find_many`.
_FIELDS = 12


class Tags:
    """The unfinished items and the dead letters of a queue by their tags: `AsyncWorkQueue.tags`.

        await queue.add_items(rows, tags=["import-7"])
        print(await queue.tags.count("import-7"))
        await queue.tags.cancel("import-7")

    An item has the tags with which it was added until it is completed, cancelled or discarded; as a dead
    letter, until it is dropped. Items without tags cost nothing. Every call raises InvalidArgument and
    ServerError as those of `AsyncWorkQueue` do.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def list(self, *, after: str | None = None, count: int = 100) -> dict[str, int]:
        """Return tags in the order of their bytes, and how many items and dead letters have each.

        Args:
            after: The tag after which to begin; None: with the first.
            count: The maximum number of tags, 1 to 1,000.
        """
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        return await self._counts(b"" if after is None else check_tag(after).encode() + b"\x01", count)

    async def count(self, tag: str) -> int:
        """Return how many unfinished items and dead letters have a tag."""
        found = await self._counts(check_tag(tag).encode() + b"\x00", 1)
        return found.get(tag, 0)

    async def find(
        self, tag: str, *, after: str | None = None, count: int = 100, data: bool = True
    ) -> builtins.list[ItemView | DeadLetter]:
        """Return the unfinished items and the dead letters that have a tag, in the order of their ids' bytes.

        Args:
            tag: The tag.
            after: The id after which to begin; None: with the first.
            count: The maximum number of ids, 1 to 1,000. An id may have both.
            data: Whether to fetch the payloads; at most 8 MiB of them, the others are left out.
        """
        check_bool("data", data)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        start = b"" if after is None else encoded_id(after, argument="after")
        ids = await self._ids(check_tag(tag).encode(), start, count)
        found: builtins.list[ItemView | DeadLetter] = []
        room = MAX_REPLY_BYTES if data else -1
        for at in range(0, len(ids), TRIP_ROWS):
            some = ids[at : at + TRIP_ROWS]
            reply = await self._engine().bulk.find(some, which="all", max_bytes=room)
            views = _read(reply, tag, self._engine().payloads, with_data=data)
            room -= fetched(views)
            found += views
        return sorted(found, key=lambda one: encoded_id(one.id))

    async def cancel(self, tag: str, *, keep: Duration = KEEP_SECONDS) -> int:
        """Cancel the unfinished items that have a tag, as `AsyncWorkQueue.cancel` would; return how many.

        Up to 100 are one step: items that are added in between may be missed.

        Args:
            tag: The tag.
            keep: As in `AsyncWorkQueue.cancel`.
        """
        keep_ms, cancelled = b"%d" % to_ms("keep", keep, zero=True), 0
        async for ids in self._pages(tag):
            answers = await self._engine().run("cancel_many", [x for one in ids for x in (one, keep_ms)])
            cancelled += answers.count(1)
        return cancelled

    async def requeue(self, tag: str) -> int:
        """Requeue the dead letters that have a tag, as `DeadLetters.requeue` would; return how many."""
        return sum([(await self._engine().bulk.requeue(ids)).count(1) async for ids in self._pages(tag)])

    async def _counts(self, first: bytes, count: int) -> dict[str, int]:
        reply = await self._engine().run("list_tags", first=first, count=count)
        names = (one.decode(errors="replace") for one in reply[::2])
        return dict(zip(names, reply[1::2], strict=True))

    async def _ids(self, tag: bytes, after: bytes, count: int) -> builtins.list[bytes]:
        ids: builtins.list[bytes] = await self._engine().run("tagged", tag=tag, after=after, count=count)
        return ids

    async def _pages(self, tag: str) -> AsyncIterator[builtins.list[bytes]]:
        name, after = check_tag(tag).encode(), b""
        while ids := await self._ids(name, after, SLOW_ROWS):
            yield ids
            after = ids[-1]


def _read(
    reply: Sequence[Any], tag: str, payloads: Payloads, *, with_data: bool
) -> list[ItemView | DeadLetter]:
    """Parse the reply of the `find_many` script; what has the tag no more is left out."""
    views: list[ItemView | DeadLetter] = []
    for at in range(1, len(reply), _FIELDS):
        state, *row = reply[at : at + _FIELDS]
        if tag not in read_options(row[9]).tags:
            continue
        if state != b"dead":
            views += read_inspection(state.decode(), [reply[0], *row], payloads, with_data=with_data)
            continue
        item_id, size, data, _, _, token, attempt, died_ms, error, *_ = row
        data = payloads.shown(data, item_id)
        views.append(read_letter(item_id, died_ms, size, data, error, attempt, token, with_data=with_data))
    return views
