"""A queue whose items are spread over several queues, its shards: `AsyncWorkQueue(…, shards=16)`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn, Unpack, cast

from leasequeue.durations import Duration, check_bool, check_int, check_list
from leasequeue.errors import InvalidArgument
from leasequeue.item import Item
from leasequeue.queue.cancelling import KEEP_SECONDS
from leasequeue.queue.lease import Failure, Lease
from leasequeue.queue.many_queues import lease_from
from leasequeue.queue.queue import MAX_AT_ONCE, AsyncWorkQueue, QueueAdmin, engines_of
from leasequeue.queue.shards.flow_runs import ShardedFlowRuns
from leasequeue.queue.shards.parts import (
    ShardedDeadLetters,
    ShardedEvents,
    ShardedGroups,
    ShardedHistory,
    ShardedLimits,
    ShardedResults,
    ShardedSchedules,
    ShardedTags,
    joined_stats,
    merged,
)
from leasequeue.queue.shards.spreading import ShardBy, Shards
from leasequeue.queue.streams import KEEP_STREAM_SECONDS, MAX_STREAM_BYTES
from leasequeue.queue.views import CleanReport, Counts, ItemView
from leasequeue.states import ITEM_STATES, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from leasequeue.codecs import Codecs
    from leasequeue.queue.encoding import AddOptions, Pipeline, UniqueOptions
    from leasequeue.queue.engine import Engine
    from leasequeue.queue.engines import Engines
    from leasequeue.queue.limits import Pause
    from leasequeue.queue.stats import QueueStats
    from leasequeue.wire.endpoints import Client


class ShardedQueue(AsyncWorkQueue):
    """A queue whose items are spread over its shards, which are queues. `AsyncWorkQueue` makes it."""

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        name: str,
        redis: Client,
        *,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
        replicas: int = 0,
        shards: int = 1,
        shard_by: ShardBy = "id",
        codec: Codecs = None,
    ) -> None:
        parts = self._parts = Shards(
            name,
            redis,
            shards,
            shard_by,
            return_to=return_to,
            reply_timeout=reply_timeout,
            clock=clock,
            replicas=replicas,
            codec=codec,
        )
        self._name = name
        self.shards, self.whole = parts.all, self
        for one in self.shards:
            one.whole = self
            engines_of(one).called = name
        self._engine = parts.refuse
        self._engines = cast("Engines", _NoEngines(parts.refuse))
        self.admin = _ShardedAdmin(self)
        self.dead_letters = ShardedDeadLetters(parts)
        self.events = ShardedEvents(parts)
        self.history = ShardedHistory(parts)
        self.limits = self.divided = ShardedLimits(parts)
        self.results = ShardedResults(parts)
        self.flow_runs = ShardedFlowRuns(parts, self.results)
        self.schedules = ShardedSchedules(parts)
        self.tags = ShardedTags(parts)
        self.groups = ShardedGroups(parts)

    async def check_shards(self) -> None:
        """Raise InvalidArgument if the queue was first used with another number of shards."""
        await self._parts.checked()

    @property
    def session(self) -> str:
        """The session of the running event loop, which all shards share."""
        return self.shards[0].session

    @property
    def url(self) -> str | None:
        """Where the server is; None on a cluster or under Sentinel."""
        return self.shards[0].url

    async def close(self) -> None:
        """Close all shards; see `AsyncWorkQueue.close`."""
        await asyncio.gather(*(one.close() for one in self.shards))

    def shard_of(self, item_id: str, *, group: str | None = None) -> AsyncWorkQueue:
        """Return the shard of an item: by its group, with `shard_by="group"`, else by its id.

        A flow run, with the items of its stages, is in that of its id.
        """
        return self._parts.of(item_id, group)

    # ------------------------------------------------------------------ adding

    async def add_item(
        self, item: Item, *, delay: Duration = 0, at: datetime | None = None, **options: Unpack[AddOptions]
    ) -> bool:
        """See `AsyncWorkQueue.add_item`."""
        shard = self._shard_for(item, options)
        await self._parts.checked()
        return await shard.add_item(item, delay=delay, at=at, **options)

    async def add_or_find(
        self, item: Item, *, delay: Duration = 0, at: datetime | None = None, **options: Unpack[AddOptions]
    ) -> tuple[str, bool]:
        """See `AsyncWorkQueue.add_or_find`."""
        shard = self._shard_for(item, options)
        await self._parts.checked()
        return await shard.add_or_find(item, delay=delay, at=at, **options)

    async def add_unique_item(
        self, item: Item, *, delay: Duration = 0, at: datetime | None = None, **options: Unpack[UniqueOptions]
    ) -> None:
        """See `AsyncWorkQueue.add_unique_item`."""
        shard = self._shard_for(item, options)
        await self._parts.checked()
        await shard.add_unique_item(item, delay=delay, at=at, **options)

    async def add_items(
        self,
        items: Iterable[Item],
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[AddOptions],
    ) -> list[bool]:
        """Add many items; see `AsyncWorkQueue.add_items`.

        Raises:
            PartlyApplied: If one shard fails and another does not; its `answers` say which were added.
        """
        return await self._parts.spread(
            check_list("items", items, "items"),
            lambda item: self._shard_for(item, options),
            lambda shard, some: shard.add_items(some, delay=delay, at=at, **options),
        )

    def add_item_to_pipeline(
        self,
        pipeline: Pipeline,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[AddOptions],
    ) -> None:
        """See `AsyncWorkQueue.add_item_to_pipeline`."""
        shard = self._shard_for(item, options)
        shard.add_item_to_pipeline(pipeline, item, delay=delay, at=at, **options)

    def add_unique_item_to_pipeline(
        self,
        pipeline: Pipeline,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[UniqueOptions],
    ) -> None:
        """See `AsyncWorkQueue.add_unique_item_to_pipeline`."""
        shard = self._shard_for(item, options)
        shard.add_unique_item_to_pipeline(pipeline, item, delay=delay, at=at, **options)

    def _shard_for(self, item: Item, options: AddOptions | UniqueOptions) -> AsyncWorkQueue:
        if not isinstance(item, Item):
            raise InvalidArgument("item", item, "an Item")
        group, key = options.get("group"), options.get("unique_until_start")
        if key is not None and (group is None or self._parts.by != "group"):
            allowed = "None on a queue with shards, or shard_by='group' and a group, of which it is unique"
            raise InvalidArgument("unique_until_start", key, allowed)
        return self._parts.of(item.id, group if isinstance(group, str) else None)

    # ----------------------------------------------------------------- leasing

    async def lease(  # type: ignore[override] # its two forms are those of the base class
        self, lease_time: Duration, *, block: bool = True, timeout: Duration | None = None
    ) -> Lease | None:
        """See `AsyncWorkQueue.lease`."""
        leases = await self.lease_many(1, lease_time, block=block, timeout=timeout)
        return leases[0] if leases else None

    async def lease_many(
        self, count: int, lease_time: Duration, *, block: bool = True, timeout: Duration | None = None
    ) -> list[Lease]:
        """See `AsyncWorkQueue.lease_many`. The shards are asked in turn, each call begins with the next.

        Those where items of higher levels wait are asked first, as far as their replies have said it.
        """
        await self._parts.checked()
        return await lease_from([self], count, lease_time, block=block, timeout=timeout)

    def _in_turn(self) -> Sequence[AsyncWorkQueue]:
        return self._parts.in_turn()

    async def complete(
        self,
        lease: Lease,
        *,
        fenced: bool = False,
        result: bytes | None = None,
        keep_result: Duration | None = 3600,
    ) -> bool:
        """See `AsyncWorkQueue.complete`."""
        return await self._parts.holding(lease).complete(
            lease, fenced=fenced, result=result, keep_result=keep_result
        )

    async def complete_many(
        self,
        leases: Sequence[Lease],
        *,
        fenced: bool = False,
        results: Sequence[bytes | None] | None = None,
        keep_result: Duration | None = 3600,
    ) -> list[bool]:
        """See `AsyncWorkQueue.complete_many`."""
        leases = check_list("leases", leases, "leases")
        values = [None] * len(leases) if results is None else check_list("results", results, "bytes or None")
        if len(values) != len(leases):
            raise InvalidArgument("results", results, f"as many as there are leases, {len(leases)}")
        return await self._parts.spread(
            [*zip(leases, values, strict=True)],
            lambda pair: self._parts.holding(pair[0]),
            lambda shard, some: shard.complete_many(
                [lease for lease, _ in some],
                fenced=fenced,
                results=None if results is None else [value for _, value in some],
                keep_result=keep_result,
            ),
        )

    async def renew_many(self, leases: Sequence[Lease], lease_time: Duration) -> list[bool]:
        """See `AsyncWorkQueue.renew_many`."""
        leases = check_list("leases", leases, "leases")
        return await self._parts.spread(
            leases, self._parts.holding, lambda shard, some: shard.renew_many(some, lease_time)
        )

    async def progress(self, lease: Lease, value: Any) -> bool:
        """See `AsyncWorkQueue.progress`."""
        return await self._parts.holding(lease).progress(lease, value)

    async def emit(
        self,
        lease: Lease,
        chunk: bytes,
        *,
        keep: Duration = KEEP_STREAM_SECONDS,
        max_bytes: int = MAX_STREAM_BYTES,
    ) -> bool:
        """See `AsyncWorkQueue.emit`."""
        return await self._parts.holding(lease).emit(lease, chunk, keep=keep, max_bytes=max_bytes)

    async def release(self, lease: Lease, *, delay: Duration = 0, front: bool = True) -> bool:
        """See `AsyncWorkQueue.release`."""
        return await self._parts.holding(lease).release(lease, delay=delay, front=front)

    async def release_many(
        self, leases: Sequence[Lease], *, delay: Duration = 0, front: bool = True
    ) -> list[bool]:
        """See `AsyncWorkQueue.release_many`."""
        return await self._parts.spread(
            check_list("leases", leases, "leases"),
            self._parts.holding,
            lambda shard, some: shard.release_many(some, delay=delay, front=front),
        )

    async def fail_many(self, failures: Sequence[Failure]) -> list[bool]:
        """See `AsyncWorkQueue.fail_many`."""
        failures = check_list("failures", failures, "failures")
        if wrong := [one for one in failures if not isinstance(one, Failure)]:
            raise InvalidArgument("failures", wrong[0], "a Failure")
        return await self._parts.spread(
            failures, lambda one: self._parts.holding(one.lease), lambda shard, some: shard.fail_many(some)
        )

    # ----------------------------------------------------- cancelling and pausing

    async def cancel(self, item_id: str, *, keep: Duration = KEEP_SECONDS) -> bool:
        """See `AsyncWorkQueue.cancel`."""
        return await self._parts.any_of(item_id, lambda shard: shard.cancel(item_id, keep=keep))

    async def cancel_many(self, item_ids: Iterable[str], *, keep: Duration = KEEP_SECONDS) -> list[bool]:
        """See `AsyncWorkQueue.cancel_many`."""
        ids = check_list("item_ids", item_ids, "ids")
        return await self._parts.any_of_each(ids, lambda shard, some: shard.cancel_many(some, keep=keep))

    async def cancel_data(
        self, data: bytes | str, *, limit: int | None = None, keep: Duration = KEEP_SECONDS
    ) -> list[str]:
        """See `AsyncWorkQueue.cancel_data`."""
        await self._parts.checked()
        ids: list[str] = []
        for shard in self.shards:
            left = None if limit is None else limit - len(ids)
            if left is not None and left < 1 and ids:
                break
            ids += await shard.cancel_data(data, limit=left, keep=keep)
        return ids

    async def promote(self, item_id: str) -> bool:
        """See `AsyncWorkQueue.promote`."""
        return await self._parts.any_of(item_id, lambda shard: shard.promote(item_id))

    async def set_priority(self, item_id: str, priority: int) -> bool:
        """See `AsyncWorkQueue.set_priority`."""
        return await self._parts.any_of(item_id, lambda shard: shard.set_priority(item_id, priority))

    async def pause(
        self,
        *,
        reason: str = "",
        until: datetime | None = None,
        for_: Duration | None = None,
        group: str | None = None,
    ) -> Pause:
        """Pause the queue or a group; see `AsyncWorkQueue.pause`. One shard is paused after the other."""
        pauses = await self._parts.each(
            lambda shard: shard.pause(reason=reason, until=until, for_=for_, group=group),
            self._parts.with_group(group),
        )
        return pauses[0]

    async def resume(self, *, group: str | None = None) -> bool:
        """See `AsyncWorkQueue.resume`."""
        return any(
            await self._parts.each(lambda shard: shard.resume(group=group), self._parts.with_group(group))
        )

    # -------------------------------------------------------------- inspecting

    async def counts(self) -> Counts:
        """Return the sums over the shards, each at its own instant."""
        return Counts(*map(sum, zip(*await self._parts.each(lambda shard: shard.counts()), strict=True)))

    async def stats(self, *, horizon: Duration | None = None, note: bool = True) -> QueueStats:
        """Return the statistics of all shards together; see `AsyncWorkQueue.stats`."""
        return joined_stats(
            self._name, await self._parts.each(lambda shard: shard.stats(horizon=horizon, note=note))
        )

    async def inspect(
        self, state: State = "waiting", *, start: int = 0, count: int = 100, data: bool = True
    ) -> list[ItemView]:
        """Look at items of one state; see `AsyncWorkQueue.inspect`. Those that wait have no common order.

        Args:
            state: See there.
            start: Where to begin, 0 or more; with `count` at most 1,000.
            count: See there.
            data: See there.
        """
        if state not in ITEM_STATES:
            raise InvalidArgument("state", state, ", ".join(ITEM_STATES))
        check_bool("data", data)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        check_int("start", start, minimum=0, maximum=MAX_AT_ONCE - count)
        found = await self._parts.each(lambda shard: shard.inspect(state, count=start + count, data=data))
        in_order = merged(found, None if state == "waiting" else lambda view: view.due or 0.0)
        return in_order[start : start + count]

    async def find(self, item_id: str, *, data: bool = True) -> ItemView | None:
        """See `AsyncWorkQueue.find`."""
        return await self._parts.any_of(item_id, lambda shard: shard.find(item_id, data=data))

    async def peek(self, count: int = 1, *, data: bool = True) -> list[ItemView]:
        """Look at the items that the shards lease next: those of higher levels first."""
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        found = merged(await self._parts.each(lambda shard: shard.peek(count, data=data)), None)
        return sorted(found, key=lambda view: -view.priority)[:count]

    # ---------------------------------------------------------------- cleaning

    async def light_clean(self) -> CleanReport:
        """See `AsyncWorkQueue.light_clean`."""
        return sum(await self._parts.each(lambda shard: shard.light_clean()), CleanReport())

    async def deep_clean(self) -> CleanReport:
        """See `AsyncWorkQueue.deep_clean`. One shard after the other, as each scans the keys of its node."""
        await self._parts.checked()
        report = CleanReport()
        for shard in self.shards:
            report += await shard.deep_clean()
        return report


class _NoEngines:
    """Stands for the engines of a queue with shards, which has none."""

    def __init__(self, refuse: Callable[[], Engine]) -> None:
        self.here = refuse
        self._refuse = refuse

    def __getattr__(self, _: str) -> NoReturn:
        self._refuse()
        raise AssertionError


class _ShardedAdmin(QueueAdmin):
    """See `QueueAdmin`."""

    def __init__(self, queue: ShardedQueue) -> None:
        super().__init__(queue)
        self._parts = queue._parts  # noqa: SLF001 - a part of it

    async def recover(self, count: int, elapsed: Duration, lease_time: Duration) -> list[Lease]:
        """See `QueueAdmin.recover`."""
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        await self._parts.checked()
        leases: list[Lease] = []
        for shard in self._parts.all:
            if len(leases) < count:
                leases += await shard.admin.recover(count - len(leases), elapsed, lease_time)
        return leases

    async def clear_leases(self, *, elapsed: Duration = 0, count: int | None = None) -> list[str]:
        """See `QueueAdmin.clear_leases`."""
        await self._parts.checked()
        ids: list[str] = []
        for shard in self._parts.all:
            left = None if count is None else count - len(ids)
            if left != 0 or not ids:
                ids += await shard.admin.clear_leases(elapsed=elapsed, count=left)
        return ids

    async def purge(self, *, scheduled: bool = False, dead: bool = False) -> int:
        """See `QueueAdmin.purge`."""
        return sum(await self._parts.each(lambda one: one.admin.purge(scheduled=scheduled, dead=dead)))

    async def delete(self) -> int:
        """See `QueueAdmin.delete`. A queue that is made later may have another number of shards."""
        first, *others = self._parts.all
        deleted = sum(await self._parts.each(lambda one: one.admin.delete(), others)) if others else 0
        # The last, as it has the number of shards, which who repeats a call that was stopped has to find.
        deleted += await first.admin.delete()
        self._parts.forget()
        return deleted

    async def fsck(self) -> CleanReport:
        """See `QueueAdmin.fsck`."""
        return sum(await self._parts.each(lambda one: one.admin.fsck()), CleanReport())


AsyncWorkQueue._spread = ShardedQueue  # noqa: SLF001 - its place for this
