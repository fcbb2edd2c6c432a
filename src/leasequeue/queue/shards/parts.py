"""The parts of a queue with shards: its results, dead letters, limits and schedules, each over all shards."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from leasequeue.durations import Duration, check_int, seconds
from leasequeue.errors import EventsLost, InvalidArgument
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.queue.cancelling import KEEP_SECONDS
from leasequeue.queue.dead_letters import MAX_AT_ONCE, DeadLetter, DeadLetters
from leasequeue.queue.encoding import MAX_REPLY_BYTES, check_group, encoded_id
from leasequeue.queue.events import MAX_KEPT, Events
from leasequeue.queue.groups import FOUND_STATES, GroupCounts, Groups
from leasequeue.queue.history import History, HistoryCell, QueueHistory, Tier
from leasequeue.queue.holds import Hold, check_hold
from leasequeue.queue.limits import (
    EACH_GROUP,
    MAX_LIMIT,
    DeclaredLimit,
    HoldLimit,
    Limit,
    LimitName,
    Limits,
    QueueLimits,
    interval_of,
    rate_text,
)
from leasequeue.queue.results import Results
from leasequeue.queue.schedules import CatchUp, Schedules, ScheduleView
from leasequeue.queue.stats import QueueStats, WaitTimes, WorkerStats
from leasequeue.queue.tags import Tags
from leasequeue.queue.views import Counts

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
    from datetime import datetime

    from leasequeue.queue.event import Event
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.run_logs import LoggedRecord
    from leasequeue.queue.shards.spreading import Shards
    from leasequeue.queue.streams import Chunk
    from leasequeue.queue.views import ItemView

T = TypeVar("T")


def merged(found: Sequence[Sequence[T]], key: Callable[[T], float | bytes] | None) -> list[T]:
    """Join what each shard has found: by a key, or the first of each before the second of any."""
    if key is not None:
        return sorted(itertools.chain.from_iterable(found), key=key)
    rounds = itertools.zip_longest(*found)
    return [one for row in rounds for one in row if one is not None]


def joined_stats(name: str, found: Sequence[QueueStats]) -> QueueStats:
    """Join the statistics of all shards. Of the wait times, the median is that of the shards' medians.

    The time is that of the first one, as the clocks of nodes differ. The queue is paused if all shards are.
    """
    samples = sum(one.wait.samples for one in found)
    waits = [one.wait for one in found if one.wait.samples]
    oldest = max(found, key=lambda one: one.oldest_age)
    workers: dict[str, WorkerStats] = {}
    for one in sorted(
        itertools.chain.from_iterable(shard.workers for shard in found), key=lambda one: one.dead
    ):
        known, worker = workers.get(one.id), one.id
        if known and not known.dead and one.dead and one.session not in {known.session, *known.others}:
            known, worker = None, one.session  # it has begun again under another session
        workers[worker] = one if known is None else replace(
            known,
            dead=known.dead and one.dead,
            others=(*known.others, *({one.session} - {known.session, *known.others})),
            items=known.items + one.items,
            item_seconds=known.item_seconds + one.item_seconds,
            item_squares=known.item_squares + one.item_squares,
            ages=(*known.ages, *one.ages),
        )  # fmt: skip
    return replace(
        oldest,
        queue=name,
        counts=Counts(*map(sum, zip(*(one.counts for one in found), strict=True))),
        wait=WaitTimes(
            mean=sum(one.mean * one.samples for one in waits) / samples if samples else 0.0,
            median=sorted(one.median for one in waits)[len(waits) // 2] if waits else 0.0,
            longest=max((one.longest for one in waits), default=0.0),
            samples=samples,
        ),
        leases=sum(one.leases for one in found),
        paused=found[0].paused if all(one.paused for one in found) else None,
        at=found[0].at,
        limit=_whole([one.limit for one in found]),
        workers=tuple(workers.values()),
        due=sum(one.due for one in found),
        due_soon=sum(one.due_soon for one in found),
        expired=sum(one.expired for one in found),
        orphaned=sum(one.orphaned for one in found),
    )


class ShardedResults(Results):
    """See `Results`."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse)
        self._shards = shards

    async def get(self, item_id: str) -> bytes | None:
        """See `Results.get`."""
        found = await self._shards.each(
            lambda shard: shard.results.get(item_id), self._shards.with_id(item_id)
        )
        return next((one for one in found if one is not None), None)

    async def _shown(self, item_id: str) -> bytes | None:
        found = await self._shards.each(
            lambda shard: shard.results._shown(item_id),  # noqa: SLF001 - of the same name here
            self._shards.with_id(item_id),
        )
        return next((one for one in found if one is not None), None)

    async def progress(self, item_id: str) -> AsyncGenerator[Any, None]:
        """See `Results.progress`."""
        await self._shards.checked()
        shard = await self._home_of(item_id)
        async with contextlib.aclosing(shard.results.progress(item_id)) as values:
            async for value in values:
                yield value

    async def stream(self, item_id: str, *, after: str | None = None) -> AsyncGenerator[Chunk[bytes], None]:
        """See `Results.stream`."""
        await self._shards.checked()
        shard = await self._home_of(item_id)
        async with contextlib.aclosing(shard.results.stream(item_id, after=after)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def is_awaited(self, item_id: str) -> bool:
        """See `Results.is_awaited`."""
        return await self._shards.any_of(item_id, lambda shard: shard.results.is_awaited(item_id))

    async def logs(self, item_id: str) -> builtins.list[LoggedRecord]:
        """See `Results.logs`."""
        found = await self._shards.each(
            lambda shard: shard.results.logs(item_id), self._shards.with_id(item_id)
        )
        return next((one for one in found if one), [])

    async def is_cancelled(self, item_id: str) -> bool:
        """See `Results.is_cancelled`."""
        return await self._shards.any_of(item_id, lambda shard: shard.results.is_cancelled(item_id))

    async def wait(
        self, item_id: str, timeout: Duration | None = None, *, what: str = "item"
    ) -> bytes | None:
        """See `Results.wait`."""
        if timeout is not None:
            seconds("timeout", timeout, zero=False)
        await self._shards.checked()
        shard = await self._home_of(item_id)
        return await shard.results.wait(item_id, timeout, what=what)

    async def _home_of(self, item_id: str) -> AsyncWorkQueue:
        """Return the shard that knows an item. One whose group is not known is looked for in all of them."""
        shards = self._shards.with_id(item_id)
        if len(shards) == 1:
            return shards[0]

        for look in (_finds, _is_dead, _has_result, _was_cancelled):
            found = await self._shards.each(lambda shard, look=look: look(shard, item_id), shards)  # type: ignore[misc]
            if any(found):
                return shards[found.index(True)]
        return shards[0]


async def _finds(shard: AsyncWorkQueue, item_id: str) -> bool:
    return await shard.find(item_id, data=False) is not None


async def _is_dead(shard: AsyncWorkQueue, item_id: str) -> bool:
    return await shard.dead_letters.get(item_id) is not None


async def _has_result(shard: AsyncWorkQueue, item_id: str) -> bool:
    return await shard.results._shown(item_id) is not None  # noqa: SLF001 - also one that cannot be read


async def _was_cancelled(shard: AsyncWorkQueue, item_id: str) -> bool:
    return await shard.results.is_cancelled(item_id)


class ShardedDeadLetters(DeadLetters):
    """See `DeadLetters`."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse)
        self._shards = shards

    async def list(
        self, *, start: int = 0, count: int = 100, data: bool = True, max_bytes: int = MAX_REPLY_BYTES
    ) -> builtins.list[DeadLetter]:
        """Return dead letters, the newest first; see there.

        `start` is at least -1,000, and `start` + `count` at most 1,000.
        """
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        check_int("start", start, minimum=-MAX_AT_ONCE, maximum=MAX_AT_ONCE - count)
        first, most = (0, start + count) if start >= 0 else (start, -start)
        found = await self._shards.each(
            lambda shard: shard.dead_letters.list(start=first, count=most, data=data, max_bytes=max_bytes)
        )
        return merged(found, lambda letter: -letter.died_at)[start:][:count]

    async def get(self, item_id: str, *, max_bytes: int = MAX_DATA_BYTES) -> DeadLetter | None:
        """See `DeadLetters.get`."""
        return await self._shards.any_of(
            item_id, lambda shard: shard.dead_letters.get(item_id, max_bytes=max_bytes)
        )

    async def count(self) -> int:
        """Return how many there are."""
        return sum(await self._shards.each(lambda shard: shard.dead_letters.count()))

    async def requeue(self, *item_ids: str) -> builtins.list[bool]:
        """See `DeadLetters.requeue`."""
        return await self._shards.any_of_each(item_ids, lambda shard, some: shard.dead_letters.requeue(*some))

    async def requeue_all(self) -> int:
        """See `DeadLetters.requeue_all`: the oldest of each shard first."""
        return sum(await self._shards.each(lambda shard: shard.dead_letters.requeue_all()))

    async def drop(self, *item_ids: str) -> builtins.list[bool]:
        """See `DeadLetters.drop`."""
        return await self._shards.any_of_each(item_ids, lambda shard, some: shard.dead_letters.drop(*some))

    async def drop_older_than(self, age: Duration) -> int:
        """See `DeadLetters.drop_older_than`."""
        return sum(await self._shards.each(lambda shard: shard.dead_letters.drop_older_than(age)))


class ShardedSchedules(Schedules):
    """See `Schedules`. A schedule, and all that it adds, is in the shard of its name."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse, shards.name)
        self._shards = shards

    async def every(
        self,
        interval: Duration,
        name: str,
        data: bytes | str = b"",
        *,
        start: datetime | None = None,
        catch_up: CatchUp = "once",
    ) -> bool:
        """See `Schedules.every`."""
        shard = await self._shard(name)
        return await shard.schedules.every(interval, name, data, start=start, catch_up=catch_up)

    async def cron(
        self,
        expression: str,
        name: str,
        data: bytes | str = b"",
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "once",
    ) -> bool:
        """See `Schedules.cron`."""
        shard = await self._shard(name)
        return await shard.schedules.cron(expression, name, data, tz=tz, catch_up=catch_up)

    async def list(self, *, data: bool = True) -> builtins.list[ScheduleView]:
        """See `Schedules.list`."""
        found = await self._shards.each(lambda shard: shard.schedules.list(data=data))
        return merged(found, lambda view: view.next_due.timestamp() if view.next_due else math.inf)

    async def remove(self, name: str) -> bool:
        """See `Schedules.remove`."""
        return await (await self._shard(name)).schedules.remove(name)

    async def tick(self) -> float:
        """See `Schedules.tick`."""
        return min(await self._shards.each(lambda shard: shard.schedules.tick()))

    async def _shard(self, name: str) -> AsyncWorkQueue:
        shard = self._shards.of(name)
        await self._shards.checked()
        return shard


class ShardedTags(Tags):
    """See `Tags`."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse)
        self._shards = shards

    async def list(self, *, after: str | None = None, count: int = 100) -> dict[str, int]:
        """See `Tags.list`."""
        total: Counter[str] = Counter()
        for found in await self._shards.each(lambda shard: shard.tags.list(after=after, count=count)):
            total.update(found)
        return {tag: total[tag] for tag in sorted(total, key=str.encode)[:count]}

    async def count(self, tag: str) -> int:
        """See `Tags.count`."""
        return sum(await self._shards.each(lambda shard: shard.tags.count(tag)))

    async def find(
        self, tag: str, *, after: str | None = None, count: int = 100, data: bool = True
    ) -> builtins.list[ItemView | DeadLetter]:
        """See `Tags.find`."""
        found = merged(
            await self._shards.each(lambda shard: shard.tags.find(tag, after=after, count=count, data=data)),
            lambda one: encoded_id(one.id),
        )
        ids = {*itertools.islice(dict.fromkeys(one.id for one in found), count)}
        return [one for one in found if one.id in ids]

    async def cancel(self, tag: str, *, keep: Duration = KEEP_SECONDS) -> int:
        """See `Tags.cancel`."""
        return sum(await self._shards.each(lambda shard: shard.tags.cancel(tag, keep=keep)))

    async def requeue(self, tag: str) -> int:
        """See `Tags.requeue`."""
        return sum(await self._shards.each(lambda shard: shard.tags.requeue(tag)))


class ShardedGroups(Groups):
    """See `Groups`. With `shard_by="group"`, one shard has all items of a group."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse, lambda _: shards.refuse())
        self._shards = shards

    async def list(
        self, *, after: str | None = None, count: int = 100, everywhere: bool = False
    ) -> dict[str, GroupCounts]:
        """See `Groups.list`."""
        total: dict[str, builtins.list[GroupCounts]] = {}
        for found in await self._shards.each(
            lambda shard: shard.groups.list(after=after, count=count, everywhere=everywhere)
        ):
            for group, counts in found.items():
                total.setdefault(group, []).append(counts)
        return {group: _sum_of(total[group]) for group in sorted(total, key=str.encode)[:count]}

    async def count(self, group: str, *, scheduled: bool = False) -> GroupCounts:
        """See `Groups.count`."""
        return _sum_of(await self._each(group, lambda shard: shard.groups.count(group, scheduled=scheduled)))

    async def peek(self, group: str, count: int = 1, *, data: bool = True) -> builtins.list[ItemView]:
        """See `Groups.peek`. Items of one level in several shards have no common order."""
        found = merged(
            await self._each(group, lambda shard: shard.groups.peek(group, count, data=data)), None
        )
        return sorted(found, key=lambda view: -view.priority)[:count]

    async def find(self, group: str, *, count: int = 100, data: bool = True) -> builtins.list[ItemView]:
        """See `Groups.find`."""
        each = await self._each(group, lambda shard: shard.groups.find(group, count=count, data=data))
        return sorted(merged(each, None), key=lambda view: FOUND_STATES.index(view.state))[:count]

    async def purge(self, group: str) -> int:
        """See `Groups.purge`."""
        return sum(await self._each(group, lambda shard: shard.groups.purge(group)))

    async def cancel(self, group: str, *, keep: Duration = KEEP_SECONDS) -> int:
        """See `Groups.cancel`."""
        return sum(await self._each(group, lambda shard: shard.groups.cancel(group, keep=keep)))

    async def _each(self, group: str, call: Callable[[AsyncWorkQueue], Awaitable[T]]) -> builtins.list[T]:
        return await self._shards.each(call, self._shards.with_group(check_group(group)))


def _sum_of(counts: Sequence[GroupCounts]) -> GroupCounts:
    scheduled = [one.scheduled for one in counts if one.scheduled is not None]
    waiting, leased = sum(one.waiting for one in counts), sum(one.leased for one in counts)
    return GroupCounts(waiting, leased, sum(scheduled) if scheduled else None)


class ShardedLimits(Limits):
    """See `Limits`. What limits the whole queue, each shard has a part of; so it is never exceeded.

    A part of a limit is not used while its shard has nothing to lease. With `shard_by="group"`, the limits of
    groups are not divided.
    """

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse, shards.name)
        self._shards = shards

    async def set(
        self,
        *,
        rate: str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        group: str | None = None,
        ageing: Duration | None = None,
        shared: str | None = None,
        hold: str | None = None,
    ) -> bool:
        """Set limits; see `Limits.set`.

        Raises:
            InvalidArgument: Also if a concurrency, or the burst of a rate, is below the number of shards.
        """
        if hold is not None:
            [done] = await self._shards.each(
                lambda shard: shard.limits.set(
                    rate=rate, burst=burst, concurrency=concurrency, group=group, ageing=ageing, hold=hold
                ),
                (self._shards.of(check_hold(hold)),),
            )
            return done
        if shared is not None:
            raise InvalidArgument(
                "shared", shared, "None on a queue with shards, which are on different nodes"
            )
        if group is not None and self._shards.by == "group":
            shards = self._shards.all if group == EACH_GROUP else self._shards.with_group(group)
            answers = await self._shards.each(
                lambda shard: shard.limits.set(rate=rate, burst=burst, concurrency=concurrency, group=group),
                shards,
            )
            return any(answers)
        count = len(self._shards.all)
        for name, value in (("concurrency", concurrency), ("burst", 1 if rate and burst is None else burst)):
            if value is not None:
                check_int(name, value, minimum=count, maximum=MAX_LIMIT)
        part = None if rate is None else rate_text(interval_of(rate) * count)
        places = {shard: place for place, shard in enumerate(self._shards.all)}
        return any(
            await self._shards.each(
                lambda shard: shard.limits.set(
                    rate=part,
                    burst=_part(burst, places[shard], count),
                    concurrency=_part(concurrency, places[shard], count),
                    group=group,
                    ageing=ageing,
                )
            )
        )

    def hold(self, name: str, *, weight: int = 1, lease_time: Duration = 30) -> Hold:
        """See `Limits.hold`. The limit of a name is in one shard, so it is not divided."""
        return self._shards.of(check_hold(name)).limits.hold(name, weight=weight, lease_time=lease_time)

    async def holds(self) -> dict[str, HoldLimit]:
        """See `Limits.holds`."""
        found = await self._shards.each(lambda shard: shard.limits.holds())
        return {name: one for some in found for name, one in some.items()}

    async def remove_hold(self, name: str) -> bool:
        """See `Limits.remove_hold`."""
        return await self._shards.of(check_hold(name)).limits.remove_hold(name)

    def part_of(self, declared: DeclaredLimit, shard: AsyncWorkQueue) -> DeclaredLimit | None:
        """Return the part of a declared limit that a shard has; None: it has none."""
        if self._shards.by == "group":
            return declared if shard in self._shards.with_group(declared.group) else None
        if declared.rate is not None:
            allowed = "None on a queue with shards, or shard_by='group', which has all calls in one shard"
            raise InvalidArgument("rate", declared.rate, allowed)
        count = len(self._shards.all)
        if declared.concurrency is not None:
            check_int("concurrency", declared.concurrency, minimum=count, maximum=MAX_LIMIT)
        return replace(
            declared, concurrency=_part(declared.concurrency, self._shards.all.index(shard), count)
        )

    async def remove(self, *names: LimitName, group: str | None = None) -> bool:
        """See `Limits.remove`."""
        return any(await self._shards.each(lambda shard: shard.limits.remove(*names, group=group)))

    async def get(self) -> QueueLimits:
        """See `Limits.get`."""
        found = await self._shards.each(lambda shard: shard.limits.get())
        names = dict.fromkeys(itertools.chain.from_iterable(one.groups for one in found))
        whole = _whole if self._shards.by == "id" else _first
        paused = {name: pause for one in found for name, pause in one.paused_groups.items()}
        leased = sum((Counter(one.leased) for one in found), Counter[str]())
        return replace(
            found[0],
            queue=_whole([one.queue for one in found]),
            each_group=whole([one.each_group for one in found]),
            groups={name: whole([one.groups[name] for one in found if name in one.groups]) for name in names},
            paused_groups=paused,
            leased={**leased},
        )


def _part(value: int | None, place: int, count: int) -> int | None:
    """Return the part of a limit that the shard at a place has: the first ones have the remainder."""
    return None if value is None else value // count + (place < value % count)


def _whole(parts: Sequence[Limit]) -> Limit:
    """Return the limit of which these are the parts."""
    rates = [interval_of(one.rate) for one in parts if one.rate is not None]
    return Limit(
        rate=rate_text(round(1 / sum(1 / one for one in rates))) if rates else None,
        burst=sum(one.burst or 0 for one in parts) or None,
        concurrency=sum(one.concurrency or 0 for one in parts) or None,
    )


def _first(parts: Sequence[Limit]) -> Limit:
    return parts[0]


class ShardedEvents(Events):
    """See `Events`. The events of each shard are in order, and numbered separately.

    A cursor is a text with the number of the last event that was read of each shard.
    """

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse)
        self._shards = shards

    async def keep(self, *, count: int | None = None, age: Duration | None = None) -> int:
        """Keep events of all shards, each its part of `count`; see `Events.keep`.

        Return 0: `last_cursor` says where to continue.
        """
        part = (
            None
            if count is None
            else -(-check_int("count", count, minimum=1, maximum=MAX_KEPT) // len(self._shards.all))
        )
        await self._shards.each(lambda shard: shard.events.keep(count=part, age=age))
        return 0

    async def publish(self) -> int:
        """Publish the events of all shards; see `Events.publish`. Return 0."""
        await self._shards.each(lambda shard: shard.events.publish())
        return 0

    async def stop(self, only: Literal["kept", "live"] | None = None) -> None:
        """See `Events.stop`."""
        await self._shards.each(lambda shard: shard.events.stop(only))

    async def last_cursor(self) -> str:
        """See `Events.last_cursor`."""
        last = await self._shards.each(lambda shard: shard.events.last_number())
        return _Cursor(self._shards, last).text

    def __call__(
        self,
        since: int | str | None = None,
        *,
        follow: bool = True,
        live: bool = False,
        ids: Collection[str] | None = None,
        kinds: Collection[str] | None = None,
    ) -> AsyncIterator[Event]:
        """Read the events of all shards; see `Events.__call__`.

        Those of one shard are in order. Without `follow` all are, by their times.

        Args:
            since: The `cursor` of the last event that is already known; a number is that of one shard.
            follow: See there.
            live: See there.
            ids: See there.
            kinds: See there.
        """
        cursor = _Cursor.read(since, self._shards)
        readers = [
            shard.events._reading(  # noqa: SLF001 - a part of it
                cursor.after[at],
                follow=follow,
                live=live,
                ids=ids,
                kinds=kinds,
                on_begin=partial(cursor.begin, at),
            )
            for at, shard in enumerate(self._shards.all)
        ]
        return _joined(readers, cursor, in_order=not follow)


class _Cursor:
    """How far the events of each shard are read: the number of the last one; None before it has begun."""

    def __init__(self, shards: Shards, after: Sequence[int | None]) -> None:
        self._layout = f"{len(shards.all)}{shards.by}"
        self.after = [*after]
        #: Set when it is known of each shard where its reading begins.
        self.known = asyncio.Event()

    @classmethod
    def read(cls, text: object, shards: Shards) -> _Cursor:
        """Read a text; None: at the begin of all shards."""
        cursor = cls(shards, [None] * len(shards.all))
        if text is not None:
            layout, *parts = text.split("-") if isinstance(text, str) else ("",)
            if (layout, len(parts)) != (cursor._layout, len(shards.all)) or not all(
                map(_PART.fullmatch, parts)
            ):
                allowed = f"the `cursor` of an event of this queue, which begins with {cursor._layout}-"
                raise InvalidArgument("since", text, allowed)
            cursor.after = [int(one, 16) for one in parts]
            cursor.known.set()
        return cursor

    @property
    def text(self) -> str:
        """The text of it, with which the reading can continue."""
        return "-".join([self._layout, *(f"{one or 0:x}" for one in self.after)])

    def begin(self, at: int, number: int) -> None:
        """Note the number after which the events of a shard are read."""
        self.after[at] = number
        if None not in self.after:
            self.known.set()

    def passed(self, at: int, event: Event) -> Event:
        """Return an event of a shard with the cursor after it."""
        self.after[at] = event.number
        return replace(event, cursor=self.text)

    def lost(self, at: int, error: EventsLost) -> EventsLost:
        """Return an error of a shard with the cursor to continue with."""
        self.after[at] = error.first_kept - 1
        return EventsLost(error.after, error.first_kept, error.advice, cursor=self.text)


#: What a cursor has of each shard: a hexadecimal number.
_PART = re.compile(r"[0-9a-f]{1,15}")


async def _joined(
    readers: Sequence[AsyncIterator[Event]], cursor: _Cursor, *, in_order: bool
) -> AsyncIterator[Event]:
    """Yield what the readers of the shards yield: in the order of the times, or as it comes."""
    pending = {asyncio.ensure_future(anext(one)): at for at, one in enumerate(readers)}
    known = asyncio.ensure_future(cursor.known.wait())
    waiting: set[asyncio.Future[Any]] = {known, *pending}
    try:
        while not (cursor.known.is_set() or any(one.done() and one.exception() for one in pending)):
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        while pending:
            how = asyncio.ALL_COMPLETED if in_order else asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait(pending, return_when=how)
            for task in [one for one in done if one.exception() is not None]:
                at, error = pending.pop(task), task.exception()
                done.discard(task)
                if isinstance(error, EventsLost):
                    raise cursor.lost(at, error) from error
                if not isinstance(error, StopAsyncIteration):
                    task.result()
            ready = sorted(done, key=lambda one: (one.result().at, pending[one]))
            for task in ready[:1] if in_order else ready:
                at = pending.pop(task)
                yield cursor.passed(at, task.result())
                pending[asyncio.ensure_future(anext(readers[at]))] = at
    finally:
        known.cancel()
        for task in pending:
            task.cancel()
        await asyncio.gather(known, *pending, return_exceptions=True)
        for reader in readers:
            await reader.aclose()  # type: ignore[attr-defined] # each is a generator


class ShardedHistory(History):
    """See `History`."""

    def __init__(self, shards: Shards) -> None:
        super().__init__(shards.refuse, shards.name)
        self._shards = shards

    async def keep(self) -> None:
        """See `History.keep`."""
        await self._shards.each(lambda shard: shard.history.keep())

    async def stop(self) -> None:
        """See `History.stop`."""
        await self._shards.each(lambda shard: shard.history.stop())

    async def __call__(self, tier: Tier = "minute", *, count: int = 60) -> QueueHistory:
        """See `History.__call__`."""
        found = await self._shards.each(lambda shard: shard.history(tier, count=count))
        columns = zip(*(one.cells for one in found), strict=True)
        return replace(found[0], queue=self._name, cells=tuple(_joined_cell(cells) for cells in columns))


def _joined_cell(cells: Sequence[HistoryCell]) -> HistoryCell:
    def sums(of: Callable[[HistoryCell], tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*map(of, cells), strict=True)))

    added, completed, failed, dead, expired = sums(
        lambda one: (one.added, one.completed, one.failed, one.dead, one.expired)
    )
    return replace(
        cells[0],
        added=added,
        completed=completed,
        failed=failed,
        dead=dead,
        expired=expired,
        runs=sums(lambda one: one.runs),
        waits=sums(lambda one: one.waits),
        oldest_age=max(one.oldest_age for one in cells),
    )
