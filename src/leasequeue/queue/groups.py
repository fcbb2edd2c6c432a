"""Groups from outside: list, count, find, purge, cancel and move what a tenant or a customer has."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.durations import Duration, check_bool, check_int, to_ms
from leasequeue.queue import operations
from leasequeue.queue.cancelling import KEEP_SECONDS
from leasequeue.queue.encoding import MAX_REPLY_BYTES, SLOW_ROWS, TRIP_ROWS, check_group
from leasequeue.queue.views import fetched, read_inspection

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Awaitable, Callable

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.views import ItemView
    from leasequeue.states import State

#: The maximum number of groups, or of items, that one call returns.
MAX_AT_ONCE = 1000
#: Values per item in the reply of `find_many`.
_FIELDS = 12
#: How often `cancel` looks for what has changed its state since it looked before.
_PASSES = 10
#: The states in the order in which an item passes through them.
_STATES: tuple[State, ...] = ("scheduled", "waiting", "leased")
#: The same in the order in which they are found.
FOUND_STATES = tuple(reversed(_STATES))


class GroupCounts(NamedTuple):
    """How many items of a group are in each state."""

    #: How many can be leased, as far as limits and pauses permit.
    waiting: int
    #: How many use a slot of the group.
    leased: int
    #: None: not counted, because all scheduled items of the queue would have to be looked at.
    scheduled: int | None = None


class Groups:
    """The unfinished items of a queue by their groups: `AsyncWorkQueue.groups`.

        print(await queue.groups.list())
        await queue.groups.move("tenant-7", "{shop}:archive")

    Waiting and leased items of a group are looked up; it costs the same however many others there are. To
    find scheduled ones, all scheduled items of the queue are looked at, in steps of at most 250. Dead
    letters are not found by their groups: give the items a tag. Every call raises InvalidArgument and
    ServerError as those of `AsyncWorkQueue` do.
    """

    def __init__(self, engine: Callable[[], Engine], other_name: Callable[[str], Awaitable[str]]) -> None:
        self._engine = engine
        self._other_name = other_name

    async def list(
        self, *, after: str | None = None, count: int = 100, everywhere: bool = False
    ) -> dict[str, GroupCounts]:
        """Return groups in the order of their bytes, and how many items of each wait and are leased.

        Args:
            after: The group after which to begin; None: with the first.
            count: The maximum number of groups, 1 to 1,000.
            everywhere: Whether to look at all leased and scheduled items of the queue: those are counted too
                that are scheduled, and groups are found of which no item waits.
        """
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        check_bool("everywhere", everywhere)
        first = b"" if after is None else check_group(after).encode() + b"\x01"
        reply = await self._engine().run("list_groups", first=first, count=count, exact=0)
        found = {group: GroupCounts(*numbers) for group, *numbers in _rows(reply, 3)}
        if not everywhere:
            return found
        scheduled, leased = await self._scan("scheduled"), await self._scan("leased")
        for group in {*scheduled, *leased}:
            if group.encode() >= first:
                found.setdefault(group, GroupCounts(0, leased[group]))
        in_order = sorted(found, key=str.encode)[:count]
        return {group: found[group]._replace(scheduled=scheduled[group]) for group in in_order}

    async def count(self, group: str, *, scheduled: bool = False) -> GroupCounts:
        """Return how many items of a group wait and are leased.

        Args:
            group: The group.
            scheduled: Whether to look at all scheduled items of the queue, and count those of the group.
        """
        check_bool("scheduled", scheduled)
        name = check_group(group).encode()
        _, waiting, leased = await self._engine().run("list_groups", first=name, count=1, exact=1)
        ids = {one async for page in self._pages(name, "scheduled") for one in page} if scheduled else None
        return GroupCounts(waiting, leased, None if ids is None else len(ids))

    async def peek(self, group: str, count: int = 1, *, data: bool = True) -> builtins.list[ItemView]:
        """Look at the items of a group that are leased next, in their order; see `AsyncWorkQueue.peek`.

        Args:
            group: The group.
            count: The maximum number of items, 1 to 1,000.
            data: Whether to fetch the payloads (8 MiB of them at most).
        """
        return await self._find(group, ("waiting",), count, data=data)

    async def find(self, group: str, *, count: int = 100, data: bool = True) -> builtins.list[ItemView]:
        """Return the items of a group that are leased, those that wait, and those that are scheduled.

        Args:
            group: The group.
            count: The maximum number of items, 1 to 1,000.
            data: Whether to fetch the payloads (8 MiB of them at most).
        """
        return await self._find(group, FOUND_STATES, count, data=data)

    async def purge(self, group: str) -> int:
        """Remove the items of a group that wait now; return how many. Those leased or scheduled stay.

        As `QueueAdmin.purge`: up to 250 are one step, and items that are added later stay.
        """
        name = check_group(group).encode()
        removed = await operations.purge(self._engine(), ("promoted", "lanes"), name)
        await self._engine().run("purge_queue", source=b"lanes", of_group=name, count=0, purged=removed)
        return removed

    async def cancel(self, group: str, *, keep: Duration = KEEP_SECONDS) -> int:
        """Cancel the unfinished items of a group, as `AsyncWorkQueue.cancel` would; return how many.

        Up to 100 are one step. It looks again until it finds none, at most 10 times: items that are added
        meanwhile may be missed. Pause the group first, so that none of its items is leased in between.

        Args:
            group: The group.
            keep: As in `AsyncWorkQueue.cancel`.
        """
        name, keep_ms = check_group(group).encode(), b"%d" % to_ms("keep", keep, zero=True)
        cancelled = 0
        for _ in range(_PASSES):
            before = cancelled
            for state in _STATES:
                async for ids in self._pages(name, state):
                    rows = [value for one in ids for value in (one, keep_ms)]
                    cancelled += (await self._engine().run("cancel_many", rows)).count(1)
            if cancelled == before:
                break
        return cancelled

    async def move(self, group: str, other: str) -> builtins.list[str]:
        """Move the items of a group that wait or are scheduled to another queue, as `QueueAdmin.move` does.

        They keep their order, options, due times and attempts; 100 are one step, which is applied as a whole.
        Leased ones stay, and so do stages of flow runs and ids that the other queue has. Items that are added
        meanwhile are moved or stay, none is lost: let producers add to the other queue first. Repeating is
        safe, and moves what is left. Limits and pauses of the group do not move.

        Args:
            group: The group.
            other: The name of the other queue; on a cluster it has the same hash tag. It has no shards.

        Returns:
            The ids of the items that were moved.

        Raises:
            InvalidArgument: If an argument cannot be used, or one of the queues has shards, or the other one
                is in another slot or on another server; nothing was moved.
            QueueDeleted: If the other queue is being deleted.
        """
        name, there = check_group(group).encode(), await self._other_name(other)
        moved: builtins.list[str] = []
        for state in ("waiting", "scheduled"):
            left = (await self.count(group)).waiting
            async for ids in self._pages(name, state):
                moved += await operations.move(self._engine(), there, None, ids)
                left -= len(ids)
                if state == "waiting" and left <= 0:
                    break  # else a producer could keep this busy for ever
        return moved

    async def _scan(self, state: State) -> Counter[str]:
        """Return how many items of each group are leased or scheduled."""
        groups: dict[bytes, bytes] = {}
        async for page in self._walk(b"", state, TRIP_ROWS):
            groups |= page
        return Counter(one.decode(errors="replace") for one in groups.values())

    async def _find(
        self, group: str, states: tuple[State, ...], count: int, *, data: bool
    ) -> builtins.list[ItemView]:
        check_bool("data", data)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        name = check_group(group).encode()
        found: dict[str, ItemView] = {}
        room = MAX_REPLY_BYTES if data else -1
        for state in states:
            size = min(count, SLOW_ROWS) if state == "waiting" else TRIP_ROWS  # of any group
            async for ids in self._pages(name, state, size):
                reply = await self._engine().bulk.find(ids, which="living", max_bytes=room)
                for at in range(1, len(reply), _FIELDS):
                    its_state, *row = reply[at : at + _FIELDS]
                    [view] = read_inspection(
                        its_state.decode(), [reply[0], *row], self._engine().payloads, with_data=data
                    )
                    room -= fetched([view])
                    if view.group == group and view.state in states and len(found) < count:
                        found.setdefault(view.id, view)
                if len(found) == count:
                    return [*found.values()]
        return [*found.values()]

    async def _pages(
        self, group: bytes, state: State, size: int = SLOW_ROWS
    ) -> AsyncIterator[builtins.list[bytes]]:
        async for page in self._walk(group, state, size):
            for at in range(0, len(page), SLOW_ROWS):
                yield [*page][at : at + SLOW_ROWS]

    async def _walk(self, group: bytes, state: State, size: int) -> AsyncIterator[dict[bytes, bytes]]:
        """Yield pages of the ids of a group, or of all that have one, each with its group."""
        cursor: bytes | None = None
        while cursor != b"":
            cursor, *found = await self._engine().run(
                "group_ids", of_group=group, state=state.encode(), cursor=cursor or b"", count=size
            )
            yield dict(zip(found[::2], found[1::2], strict=True))


def _rows(reply: list[Any], size: int) -> list[tuple[Any, ...]]:
    """Split a reply into rows that begin with a text."""
    starts = range(0, len(reply), size)
    return [(reply[at].decode(errors="replace"), *reply[at + 1 : at + size]) for at in starts]
