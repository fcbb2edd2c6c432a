"""The queue itself: what can be done with it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, overload

from leasehold.durations import Duration, check_int, seconds, to_ms
from leasehold.errors import InvalidArgument
from leasehold.queue.cleaning import deep_clean, light_clean
from leasehold.queue.dead_letters import Failure
from leasehold.queue.encoding import ROW_BYTES, all_trips, completion, encoded, failing, item_row, trips
from leasehold.queue.lease import Lease
from leasehold.queue.leasing import MAX_BYTES as INSPECT_BYTES
from leasehold.queue.nouns import QueueWithNouns
from leasehold.queue.views import STATES, CleanReport, Counts, ItemView, State, read_inspection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from leasehold.item import Item
    from leasehold.queue.encoding import Pipeline, Rows

#: The most items that one `lease_many` or `inspect` gives.
MAX_AT_ONCE = 1000


class AsyncWorkQueue(QueueWithNouns):
    """An atomic work queue on Redis or Valkey, shared with every client of the redis-work-queue family.

    Put items in, lease them for a time, work, complete them. The item of a dead worker comes back by
    itself when its lease ends. Each step is one Lua script on the server, so it happens wholly or not at
    all, and concurrent calls of many coroutines share their trips.

        async with AsyncWorkQueue.from_url("redis://localhost", "emails") as queue:
            await queue.add_item(Item(b"hello"))
            async with await queue.lease(30) as lease:
                print(lease.data)

    Execution is at least once; completion is exactly once: of all the holders that an item ever had, one
    is told True.

    Args:
        name: The queue's name, which is the prefix of its keys: 1 to 512 bytes of UTF-8. On a cluster it
            holds a hash tag, such as `"{emails}"`.
        redis: A client of redis-py (`redis.asyncio.Redis` or `RedisCluster`). Only its address and login
            are used; it stays yours to close.
        return_to: Where items go whose lease has ended: `"end"` of the queue, as in redis-work-queue, or
            `"front"`, as in Worqr.
        reply_timeout: Seconds to wait for an answer before the connection counts as lost.
        clock: For tests: gives the time in seconds since 1970 in place of the server's clock.

    Raises:
        InvalidArgument: If one of them is not as said.
    """

    # ------------------------------------------------------------------ adding

    async def add_item(self, item: Item, *, delay: Duration = 0, at: datetime | None = None) -> bool:
        """Add an item, unless one with its id is there.

        Whether it waits, is leased or is delayed: as long as it is unfinished, its id is taken. Adding
        again after an error is safe: it answers False if the first try had arrived.

        Args:
            item: What to add.
            delay: How long it stays out of sight before it can be leased, in seconds; 0 is not at all.
            at: Or when it can be leased: a `datetime` with a time zone. One that is past means at once.

        Returns:
            True if it was added, False if it was already there (its data then stays as it was).

        Raises:
            InvalidArgument: If `item` is no Item, or `delay` or `at` is not as said; nothing was sent.
            QueueClosed: If this object is closed.
            ServerError: If the server cannot be reached or refuses; says what may have happened.
        """
        row = item_row(item, delay, at)
        return bool(await self._engine.one("add_items", row, size=len(item.data) + ROW_BYTES))

    async def add_unique_item(self, item: Item, *, delay: Duration = 0, at: datetime | None = None) -> None:
        """Add an item whose id you promise to be new: nothing is looked up.

        Should it be there all the same, its data is replaced and it counts as added anew: earlier holders
        can no longer complete it. One that waits keeps its place; if that is deep in a long queue, the
        queue's length may count it twice for a while.

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `add_item`.
        """
        row = item_row(item, delay, at, unique=True)
        await self._engine.one("add_items", row, size=len(item.data) + ROW_BYTES)

    async def add_items(
        self, items: Iterable[Item], *, delay: Duration = 0, at: datetime | None = None
    ) -> list[bool]:
        """Add many items, each as `add_item` would, in few trips.

        Each trip (up to 500 items or 1 MiB) is one step; between trips others may act.

        Returns:
            For each item, whether it was added.

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `add_item`. All items are checked before the
                first is sent.
        """
        rows = [item_row(item, delay, at) for item in items]
        return await self._settle("add_items", rows, [len(row[1]) + ROW_BYTES for row in rows])

    def add_item_to_pipeline(
        self, pipeline: Pipeline, item: Item, *, delay: Duration = 0, at: datetime | None = None
    ) -> None:
        """Put an `add_item` into your own pipeline; its result there is `[1]` if added, `[0]` if not.

        With `pipeline(transaction=True)` the item is added if and only if your other commands are run.
        """
        self._put(pipeline, item_row(item, delay, at))

    def add_unique_item_to_pipeline(
        self, pipeline: Pipeline, item: Item, *, delay: Duration = 0, at: datetime | None = None
    ) -> None:
        """Put an `add_unique_item` into your own pipeline."""
        self._put(pipeline, item_row(item, delay, at, unique=True))

    # ----------------------------------------------------------------- leasing

    @overload
    async def lease(
        self, lease_time: Duration, *, block: Literal[True] = ..., timeout: Literal[0] = ...
    ) -> Lease: ...

    @overload
    async def lease(
        self, lease_time: Duration, *, block: bool = ..., timeout: Duration = ...
    ) -> Lease | None: ...

    async def lease(self, lease_time: Duration, *, block: bool = True, timeout: Duration = 0) -> Lease | None:
        """Lease the next item.

        Items whose lease has ended come back here, without a cleaner: an idle waiter takes them within
        milliseconds.

        Args:
            lease_time: How long the item is yours, in seconds, as short as a millisecond.
            block: Whether to wait when there is none.
            timeout: How long to wait, in seconds; 0 is for ever.

        Returns:
            The lease, or None if there was nothing (in time). With `block` and no `timeout`, never None.

        Raises:
            InvalidArgument: If a duration is not as said; nothing was sent.
            QueueClosed: If this object is closed, also while waiting.
            ServerError: If the server cannot be reached or refuses. An item that was leased by a lost call
                comes back when its lease ends.
        """
        lease_ms = to_ms("lease_time", lease_time)
        wait = seconds("timeout", timeout, zero=True)
        leased = await self._engine.lease(1, lease_ms, blocks=block, timeout=wait)
        return Lease(self, *leased[0]) if leased else None

    async def lease_many(
        self, count: int, lease_time: Duration, *, block: bool = True, timeout: Duration = 0
    ) -> list[Lease]:
        """Lease up to `count` items: what is there, or, if there is nothing, the first that comes.

        Args:
            count: The most items, 1 to 1,000. Large payloads end a trip at 8 MiB, with fewer items.
            lease_time: How long each is yours, in seconds.
            block: Whether to wait when there is none.
            timeout: How long to wait, in seconds; 0 is for ever.

        Returns:
            The leases in queue order; empty if there was nothing (in time).

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `lease`.
        """
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        lease_ms = to_ms("lease_time", lease_time)
        wait = seconds("timeout", timeout, zero=True)
        leased = await self._engine.lease(count, lease_ms, blocks=block, timeout=wait)
        return [Lease(self, *one) for one in leased]

    async def complete(
        self,
        lease: Lease,
        *,
        fenced: bool = False,
        result: bytes | None = None,
        keep_result: Duration = 3600,
    ) -> bool:
        """Finish an item: it is gone for good, and nobody leases it again.

        The first holder of this incarnation of the item counts, even if its lease has ended and another
        works on it. A holder of an earlier incarnation (completed, then added again) never does.

        Args:
            lease: What `lease` gave.
            fenced: Whether only the current holder counts.
            result: What to keep for `results.get`; written only by the completion that counts.
            keep_result: For how long, in seconds.

        Returns:
            True for exactly one holder of each incarnation; False: somebody else has completed it, or the
            lease is of an earlier incarnation or, when fenced, over.

        Raises:
            InvalidArgument: If `lease` is no lease of this queue, or another argument cannot be used.
            QueueClosed, ServerError: As in `add_item`. Repeating is safe.
        """
        row = self._claim(lease, completion(fenced=fenced, result=result, keep_result=keep_result))
        return bool(await self._engine.one("complete_many", row, size=len(row[2]) + ROW_BYTES) == 1)

    async def complete_many(
        self,
        leases: Sequence[Lease],
        *,
        fenced: bool = False,
        results: Sequence[bytes | None] | None = None,
        keep_result: Duration = 3600,
    ) -> list[bool]:
        """Finish many items, each as `complete` would, with the result at its place in `results`."""
        if results is None:
            flag = b"1" if fenced else b"0"
            return await self._settle("complete_many", [self._claim(lease, flag) for lease in leases])
        if len(results) != len(leases):
            raise InvalidArgument("results", results, f"as many as there are leases, {len(leases)}")
        rows = [
            self._claim(lease, completion(fenced=fenced, result=result, keep_result=keep_result))
            for lease, result in zip(leases, results, strict=True)
        ]
        return await self._settle("complete_many", rows, [len(row[2]) + ROW_BYTES for row in rows])

    async def renew(self, lease: Lease, lease_time: Duration) -> bool:
        """Give yourself more time, counted from now.

        Returns:
            False if the item is no longer yours: completed, taken back, or leased to another. Stop working.

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `complete`.
        """
        return (await self.renew_many([lease], lease_time))[0]

    async def renew_many(self, leases: Sequence[Lease], lease_time: Duration) -> list[bool]:
        """Give yourself more time for many items, each as `renew` would."""
        lease_ms = to_ms("lease_time", lease_time)
        asked_at = time.monotonic()
        rows = [self._claim(lease, b"%d" % lease_ms) for lease in leases]
        ends = await self._send("renew_many", rows)
        for lease, ends_ms in zip(leases, ends, strict=True):
            if ends_ms:
                lease.extend(asked_at, lease_ms, ends_ms)
        return [ends_ms > 0 for ends_ms in ends]

    async def release(self, lease: Lease, *, delay: Duration = 0, front: bool = True) -> bool:
        """Give an item back before its lease ends. The delivery is taken back, too: it was no attempt.

        Args:
            lease: What `lease` gave.
            delay: How long it stays out of sight, in seconds; 0 is not at all.
            front: Whether it goes to the front of the queue, where it came from, or to the end. With a
                `delay` it goes to the end when it falls due.

        Returns:
            False if it was no longer yours.

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `complete`.
        """
        tail = (b"%d" % to_ms("delay", delay, zero=True), b"1" if front else b"0")
        return bool(await self._engine.one("release_many", self._claim(lease, *tail)))

    async def release_many(
        self, leases: Sequence[Lease], *, delay: Duration = 0, front: bool = True
    ) -> list[bool]:
        """Give many items back, each as `release` would. At the front they keep their order."""
        tail = (b"%d" % to_ms("delay", delay, zero=True), b"1" if front else b"0")
        rows = [self._claim(lease, *tail) for lease in leases]
        return await self._settle("release_many", rows, last_first=front)

    async def fail(
        self, lease: Lease, error: str | BaseException, *, retry_in: Duration | None = None
    ) -> bool:
        """Say that the work on an item went wrong: it is tried again, or becomes a dead letter.

        Args:
            lease: What `lease` gave. Only the current holder counts.
            error: What went wrong; of an exception the traceback is kept (16 KiB, without its middle if it
                is longer). It is kept with a dead letter alone.
            retry_in: When it can be leased again, in seconds; 0 is at once, at the end of the queue. None: it
                becomes a dead letter: see `dead_letters`.

        Returns:
            False if it was no longer yours.

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `complete`.
        """
        return (await self.fail_many([Failure(lease, error, retry_in)]))[0]

    async def fail_many(self, failures: Sequence[Failure]) -> list[bool]:
        """Say of many items what went wrong, of each as `fail` would."""
        rows = [self._claim(one.lease, *failing(one.error, one.retry_in)) for one in failures]
        sizes = [
            len(row[3]) + ROW_BYTES + (len(failure[0].data) if row[2] == b"-1" else 0)
            for row, failure in zip(rows, failures, strict=True)
        ]
        return await self._settle("fail_many", rows, sizes)

    # ----------------------------------------------------------------- looking

    async def counts(self) -> Counts:
        """How many items are waiting, leased, scheduled and dead, at one instant."""
        return Counts(*await self._engine.run("counts"))

    async def queue_len(self) -> int:
        """How many items wait, those under lease not included."""
        return (await self.counts()).waiting

    async def processing(self) -> int:
        """How many items are under lease, expired leases that nobody has taken back yet included."""
        return (await self.counts()).leased

    async def inspect(
        self, state: State = "waiting", *, start: int = 0, count: int = 100, data: bool = True
    ) -> list[ItemView]:
        """Look at items of one state without touching them.

        Args:
            state: `"waiting"`, `"leased"` or `"scheduled"`.
            start: Where to begin: 0 is the next to be leased, or the first to fall due; -1 is the last.
            count: How many, 1 to 1,000.
            data: Whether to bring the payloads (8 MiB of them at most).

        Raises:
            InvalidArgument, QueueClosed, ServerError: As in `lease`.
        """
        if state not in STATES:
            raise InvalidArgument("state", state, ", ".join(STATES))
        check_int("start", start, minimum=-(2**53), maximum=2**53)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        limit = INSPECT_BYTES if data else -1
        reply = await self._engine.run(
            "inspect", state=state.encode(), start=start, count=count, max_bytes=limit
        )
        return read_inspection(state, reply, with_data=data)

    # ---------------------------------------------------------------- cleaning

    async def light_clean(self) -> CleanReport:
        """Bring back what foreign workers dropped, and drop what is done: one walk over the leased items.

        Our own items need no cleaner. Run it about as often as the shortest lease that clients of other
        libraries take. It works in steps of 500 entries; any number of cleaners may run at once.
        """
        return await light_clean(self._engine)

    async def deep_clean(self) -> CleanReport:
        """Do a light clean, then find items that are in no list at all, and put them back.

        A client of another library that dies between its commands leaves such orphans. It scans the keys
        of the database in steps and holds the ids of the waiting items in memory while it runs, so run it
        rarely. Nothing blocks meanwhile.
        """
        return await deep_clean(self._engine, self._keys)

    def _put(self, pipeline: Pipeline, row: Sequence[bytes]) -> None:
        # The name of the command as a text: the pipelines of clusters look it up.
        pipeline.execute_command("EVAL", *self._engine.command("add_items", row)[1:])

    def _claim(self, lease: Lease, *tail: bytes) -> tuple[bytes, ...]:
        """The row by which a script knows a lease, with what it wants to know besides."""
        if not isinstance(lease, Lease) or lease.queue_name != self._name:
            raise InvalidArgument("lease", lease, f"a lease of the queue {self._name!r}")
        return (encoded(lease), b"%d" % lease.token, *tail)

    async def _settle(
        self, name: str, rows: Rows, sizes: Sequence[int] | None = None, *, last_first: bool = False
    ) -> list[bool]:
        return [answer == 1 for answer in await self._send(name, rows, sizes, last_first=last_first)]

    async def _send(
        self, name: str, rows: Rows, sizes: Sequence[int] | None = None, *, last_first: bool = False
    ) -> list[int]:
        """Send rows in as few trips as their sizes allow."""
        sizes = [ROW_BYTES] * len(rows) if sizes is None else sizes
        calls = [
            self._engine.many(name, rows[start:stop], size=sum(sizes[start:stop]))
            for start, stop in trips(sizes)
        ]
        return await all_trips(calls, last_first=last_first)
