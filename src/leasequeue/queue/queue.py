"""AsyncWorkQueue: all that can be done with a queue."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, Unpack, cast, overload

from leasequeue import telemetry
from leasequeue.codecs import MAGIC, UNREADABLE_SECONDS
from leasequeue.durations import Duration, check_bool, check_int, check_list, seconds, to_ms
from leasequeue.errors import AccessDenied, InvalidArgument, StreamFull, UnreadablePayload, WrongKeyType
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.queue import operations
from leasequeue.queue.cancelling import CANCELLED, KEEP_SECONDS, cancel_data, cancel_row, cancel_rows
from leasequeue.queue.cleaning import deep_clean, fsck, light_clean
from leasequeue.queue.dead_letters import DeadLetters
from leasequeue.queue.encoding import (
    CHECKED,
    MAX_LEVEL,
    MAX_REPLY_BYTES,
    ROW_BYTES,
    TRIP_ROWS,
    WRONG_TYPE,
    AddOptions,
    UniqueOptions,
    adding,
    adding_unique,
    all_trips,
    completion,
    completions,
    encoded_id,
    failing,
    item_row,
    pages,
    row_size,
    trips,
)
from leasequeue.queue.engines import Engines
from leasequeue.queue.events import Events
from leasequeue.queue.groups import Groups
from leasequeue.queue.history import History
from leasequeue.queue.lease import Failure, Lease
from leasequeue.queue.leasing import UNKNOWN
from leasequeue.queue.limits import Limits, Pause, pause, resume
from leasequeue.queue.observed import observed, traced_row
from leasequeue.queue.plans.flow_runs import FlowRuns
from leasequeue.queue.pushes.progress import progress_text
from leasequeue.queue.results import Results
from leasequeue.queue.schedules import Schedules
from leasequeue.queue.stats import QueueStats, read_stats
from leasequeue.queue.streams import KEEP_STREAM_SECONDS, MAX_STREAM_BYTES, NO_ROOM, chunk_row
from leasequeue.queue.tags import Tags
from leasequeue.queue.views import CleanReport, Counts, ItemView, fetched, read_found, read_inspection
from leasequeue.states import ITEM_STATES, State
from leasequeue.wire.endpoints import Client, client_for
from leasequeue.wire.link import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from datetime import datetime
    from pathlib import Path
    from types import TracebackType

    from leasequeue.codecs import Codecs
    from leasequeue.item import Item
    from leasequeue.queue.encoding import Pipeline, Rows
    from leasequeue.queue.engine import Engine
    from leasequeue.queue.leasing import LeasedItem

T = TypeVar("T")

#: The maximum number of items of one `lease_many` or `inspect`.
MAX_AT_ONCE = 1000
_TIMEOUT_ALLOWED = (
    "seconds (a number or a timedelta), more than 0, at most 30 days; timeout=None waits without limit, "
    "block=False does not wait"
)


class AsyncWorkQueue:
    """An atomic work queue on Redis or Valkey, shared with every client of the redis-work-queue family.

    Add items, lease them for a time, work, complete them. When a worker dies, its items return to the queue
    as their leases expire. Each step is one Lua script on the server, so it is applied as a whole or not at
    all; concurrent calls of many coroutines share trips to the server.

        async with AsyncWorkQueue.from_url("redis://localhost", "emails") as queue:
            await queue.add_item(Item(b"hello"))
            async with await queue.lease(30) as lease:
                print(lease.data)

    Execution is at least once; completion is exactly once: of all holders that an item ever had, one gets
    True.

    Nothing is sent before the first call. An object may be used in any event loop, thread and forked process,
    also in several at once. Each event loop has its own connections, which the queues of one server share.

    Every call raises InvalidArgument if an argument cannot be used, before anything is sent; QueueClosed if
    this object is closed; and ServerError if the server cannot be reached, or answers with an error, which
    says what may have been applied.

    Args:
        name: The queue's name, which is the prefix of its keys: 1 to 512 bytes of UTF-8. On a cluster it
            contains a hash tag, such as `"{emails}"`. A name such as `emails:item` is refused, as keys that
            begin with it belong to the queue `emails`.
        redis: A client of redis-py (`redis.asyncio.Redis` or `RedisCluster`). Only its address and login
            are used; closing it remains your task.
        return_to: Where items go whose lease has expired: `"end"` of the queue, as in redis-work-queue, or
            `"front"`, as in Worqr.
        reply_timeout: Seconds for which the server may be silent while a call waits for its reply, before the
            connection counts as lost; also how long a call waits for the end of the move of a cluster's slot.
        clock: For tests: returns the time in seconds since 1970, in place of the server's clock.
        replicas: How many replicas of the server have what is added or completed when the call returns, 0
            to 100. The call waits for them for half of `reply_timeout`, at most 2 seconds, perhaps after
            another such wait; then it raises NotReplicated, which says that it was applied. A worker logs
            this. Flow runs, and what goes into your own pipeline, do not wait.
        shards: Over how many queues its items are spread, 1 to 256, which lie evenly over the nodes of a
            cluster: for more items than one node can serve or hold. None: it is one queue. The name is then
            one without a hash tag. All clients of the queue must say the same number, for ever.
        shard_by: What decides in which shard an item is: its `"id"`, or its `"group"`, so that the order and
            the limits of a group hold. Ids must then be unique in a group.
        codec: What encodes the data of items, results and chunks of streams, and decodes them: one codec,
            several in the order in which they encode, or where to import them from, `"module:name"`. See
            `leasequeue.codecs`. All processes of a queue need the same.

    Raises:
        InvalidArgument: If an argument cannot be used.
    """

    #: The whole queue, and the leases of others: check, move, purge, delete, recover, clear.
    admin: QueueAdmin
    #: The items that ran out of attempts: list, requeue or drop them.
    dead_letters: DeadLetters
    #: What happened to each item, if the queue keeps events.
    events: Events
    #: What happened in each minute, hour and day, if the queue keeps history.
    history: History
    #: How many items may be leased at once and in a time, of the queue and of its groups.
    limits: Limits
    #: The results of completed items.
    results: Results
    #: The flow runs whose home this queue is: list, find, cancel, retry or delete them.
    flow_runs: FlowRuns
    #: What is added repeatedly: at intervals, or by the clock.
    schedules: Schedules
    #: The items and the dead letters by their tags: list, count, find, cancel or requeue them.
    tags: Tags
    #: The unfinished items by their groups: list, count, find, purge, cancel or move those of one.
    groups: Groups
    #: The queues over which its items are spread; without `shards`, it itself.
    shards: tuple[AsyncWorkQueue, ...]
    #: The queue that it is a shard of; if it is none, it itself.
    whole: AsyncWorkQueue

    #: What is made of it with `shards`; `leasequeue.queue.shards` sets it.
    _spread: ClassVar[type[AsyncWorkQueue]]

    def __new__(cls, *_: Any, shards: int | None = None, **__: Any) -> Self:
        """Make a queue, or with `shards` one whose items are spread over these."""
        if shards is not None and cls not in {AsyncWorkQueue, cls._spread}:
            raise InvalidArgument("shards", shards, f"None for {cls.__name__}, or an AsyncWorkQueue itself")
        return super().__new__(cls if shards is None else cast("type[Self]", cls._spread))

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        name: str,
        redis: Client,
        *,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
        replicas: int = 0,
        shards: int | None = None,  # noqa: ARG002 - see `__new__`
        shard_by: Literal["id", "group"] = "id",
        codec: Codecs = None,
    ) -> None:
        if shard_by != "id":
            raise InvalidArgument("shard_by", shard_by, "'id' without `shards`")
        self.shards, self.whole = (self,), self
        self._engines = Engines(
            name,
            redis,
            return_to=return_to,
            reply_timeout=reply_timeout,
            clock=clock,
            replicas=replicas,
            codec=codec,
        )
        self._name = self._engines.name
        engine = self._engine = self._engines.here
        self.admin = QueueAdmin(self)
        self.dead_letters = DeadLetters(engine)
        self.events = Events(engine)
        self.history = History(engine, self._name)
        self.limits = Limits(engine, self._name)
        self.results = Results(engine)
        self.flow_runs = FlowRuns(self._name, engine, self.results)
        self.schedules = Schedules(engine, self._name)
        self.tags = Tags(engine)
        self.groups = Groups(engine, partial(_name_beside, self))

    # ----------------------------------------------------- opening and closing

    @classmethod
    def from_url(  # noqa: PLR0913 - all but two by name
        cls,
        url: str,
        name: str,
        *,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
        replicas: int = 0,
        cluster: bool = False,
        shards: int | None = None,
        shard_by: Literal["id", "group"] = "id",
        codec: Codecs = None,
    ) -> Self:
        """Make a queue on the server at a URL: `redis://`, `rediss://` or `unix://`.

        Args:
            url: Where the server is.
            name: The queue's name.
            return_to: See the class.
            reply_timeout: See the class.
            clock: See the class.
            replicas: See the class.
            cluster: Whether the URL names nodes of a cluster, one or more, as in
                `redis://HOST:PORT,HOST:PORT`; the other nodes are found through them.
            shards: See the class.
            shard_by: See the class.
            codec: See the class.

        Raises:
            InvalidArgument: If the URL or another argument cannot be used.
        """
        client = client_for(url, name, cluster=cluster)
        return cls(
            name,
            client,
            return_to=return_to,
            reply_timeout=reply_timeout,
            clock=clock,
            replicas=replicas,
            shards=shards,
            shard_by=shard_by,
            codec=codec,
        )

    @classmethod
    @asynccontextmanager
    async def embedded(
        cls,
        name: str,
        *,
        dir: str | Path | None = None,  # noqa: A002 - the server's word for it
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> AsyncIterator[Self]:
        """Start a server for a queue. The server ends with this process, even if that is killed.

            async with AsyncWorkQueue.embedded("emails") as queue:
                print(queue.url)      # where other processes can join

        If the environment variable REDIS_URL is set, use that server and start none.

        Args:
            name: The queue's name.
            dir: Where the server keeps its data across restarts; None: the data is lost when it ends.
            return_to: See the class.
            reply_timeout: See the class.
            clock: See the class.

        Raises:
            EmbeddedServerError: If no server program is found, or it does not start.
        """
        from leasequeue.embedded import open_server  # most programs start none

        async with (
            await open_server(dir=dir) as server,
            cls.from_url(
                server.url, name, return_to=return_to, reply_timeout=reply_timeout, clock=clock
            ) as queue,
        ):
            yield queue

    @property
    def name(self) -> str:
        """The queue's name: the prefix of its keys."""
        return self._name

    @property
    def session(self) -> str:
        """The session of the running event loop: the value of the lease keys of what is leased in it.

        All queue objects share it that were made from one client, or from equal URLs, with the same
        `reply_timeout`. Each event loop and process has its own. It is `lh:<host>/<pid>/<16 hex digits>`.

        Raises:
            RuntimeError: If no event loop is running.
        """
        return self._engine().session.id

    @property
    def url(self) -> str | None:
        """Where the server is, for other processes to join; None on a cluster or under Sentinel."""
        return self._engines.url

    def shard_of(self, item_id: str, *, group: str | None = None) -> AsyncWorkQueue:  # noqa: ARG002 - it has one
        """Return the shard that an item of this id and group is in; without `shards`, this queue."""
        return self

    async def close(self) -> None:
        """Send what was called, then disconnect. Items under lease stay leased.

        This is done in all event loops that used the object; other queues of its client stay open. Callers
        that wait in `lease` get QueueClosed. Closing twice is fine. Where an event loop ends, its connections
        are closed without this call.
        """
        await self._engines.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------ adding

    async def add_item(
        self,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[AddOptions],
    ) -> bool:
        """Add an item, unless the queue holds an unfinished one with its id.

        An item is unfinished while it is waiting, leased or delayed. Adding again after an error is safe: the
        answer is False if the first try was applied. Its priority, group and expiry are kept when it is
        retried, reclaimed or released, and when a dead letter is requeued.

            await queue.add_item(item, priority=5, group="tenant-7", expires_in=60)

        Args:
            item: The item to add.
            delay: Seconds before it can be leased; 0 is none.
            at: Or the time from which it can be leased: a `datetime` with a time zone. One in the past means
                at once.
            priority: The item's level, -9 to 9: items of a higher level are leased first. 0 is the default.
            group: The item's group, 1 to 256 bytes of UTF-8 without NUL; None: it has none. Groups take
                turns within a level, and a group can have its own limits: see `limits`.
            tags: At most 20 texts, each as a group's name, by which `queue.tags` finds it while it is
                unfinished, and if it dies.
            weight: As how many items it counts for each rate of `limits`, 1 to 1,000,000, but at most as the
                rate's burst. For a concurrency each item is one.
            expires_in: Seconds after which the item is discarded, unless a worker has begun with it; None:
                never.
            dedupe_for: Seconds for which the id stays taken, even if the item is completed sooner; None: only
                while the item is unfinished.
            unique_until_start: A key, 1 to 512 bytes of UTF-8: the item is not added while another one that
                was added with this key waits or is delayed, and was not started: leased, other than by a
                worker that has released it. None: no other item matters.
            replace: Whether to replace an item with this id that is waiting or delayed: its data, delay and
                options. It keeps its place in the queue: a new priority or group counts once it is reached
                there. One that is leased stays as it is.

        Returns:
            True if it was added, or has replaced one. False if its id, or its key, is taken.
        """
        row = self._row(item, delay, at, adding(**options) if options else CHECKED)
        return bool(await self._engine().one("add_items", row, size=_added_size(row)) == 1)

    async def add_or_find(
        self,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[AddOptions],
    ) -> tuple[str, bool]:
        """Add an item as `add_item` does; return an id, and whether it was added.

        The id is that of `item`, or of the one that waits with the same `unique_until_start`.
        """
        row = self._row(item, delay, at, adding(**options))
        answer = await self._engine().one("add_items", row, size=_added_size(row))
        return answer.decode(errors="surrogateescape") if isinstance(answer, bytes) else item.id, answer == 1

    async def add_unique_item(
        self,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[UniqueOptions],
    ) -> None:
        """Add an item whose id you promise to be new; the server does not check.

        If an item with this id is there, its data is replaced and it is a new incarnation: earlier holders
        can no longer complete it. If it is waiting, it keeps its place; deep in a long queue, it may be
        counted twice for a while. The arguments are those of `add_item`.
        """
        row = self._row(item, delay, at, adding_unique(**options))
        await self._engine().one("add_items", row, size=_added_size(row))

    async def add_items(
        self,
        items: Iterable[Item],
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[AddOptions],
    ) -> list[bool]:
        """Add many items, each as `add_item` would with the same options, in few trips.

        Each trip (up to 250 items, 100 if they are delayed or have options, or 1 MiB) is one step; between
        trips other clients may act. All items are checked before the first is sent.

        Returns:
            For each item, whether it was added.
        """
        how = adding(**options)
        rows = [self._row(item, delay, at, how) for item in check_list("items", items, "items")]
        return await self._send_and_check("add_items", rows, [_added_size(row) for row in rows])

    def add_item_to_pipeline(
        self,
        pipeline: Pipeline,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[AddOptions],
    ) -> None:
        """Put an `add_item` into your own pipeline. Its result there is `[1]` if added, `[0]` if not.

        With `pipeline(transaction=True)` the item is added if and only if your other commands are executed.
        """
        self._put(pipeline, self._row(item, delay, at, adding(**options)))

    def add_unique_item_to_pipeline(
        self,
        pipeline: Pipeline,
        item: Item,
        *,
        delay: Duration = 0,
        at: datetime | None = None,
        **options: Unpack[UniqueOptions],
    ) -> None:
        """Put an `add_unique_item` into your own pipeline."""
        self._put(pipeline, self._row(item, delay, at, adding_unique(**options)))

    # ----------------------------------------------------------------- leasing

    @overload
    async def lease(
        self, lease_time: Duration, *, block: Literal[True] = ..., timeout: None = ...
    ) -> Lease: ...

    @overload
    async def lease(
        self, lease_time: Duration, *, block: bool = ..., timeout: Duration | None = ...
    ) -> Lease | None: ...

    async def lease(
        self, lease_time: Duration, *, block: bool = True, timeout: Duration | None = None
    ) -> Lease | None:
        """Lease the next item.

        Expired leases are reclaimed here, without a cleaner: a waiting caller gets such an item within
        milliseconds. Callers that wait in one process are served in the order of their calls.

        Args:
            lease_time: How long the item is leased, in seconds; 0.001 or more.
            block: Whether to wait while the queue is empty.
            timeout: How long to wait, in seconds; None waits without limit. 0 is refused, as some libraries
                mean "without limit" by it and others "not at all". With `block=False` it is not used, also 0.

        Returns:
            The lease, or None if there was no item (in time). With `block` and without `timeout`, never None.

        Raises:
            QueueClosed: If this object is closed, also while waiting.
            ServerError: If the server cannot be reached, or answers with an error. An item that was leased by
                a lost call returns to the queue when its lease expires.
            UnreadablePayload: If the item was encoded by a codec or a key that this object has not. It is
                released for others with a delay of 10 s, which is no attempt.
        """
        lease_ms = to_ms("lease_time", lease_time)
        wait = waiting_time(timeout, block=block)
        items = await self._engine().leasing.lease(1, lease_ms, blocks=block, timeout=wait)
        return next(iter(read_leases(self, items)), None)

    async def lease_many(
        self, count: int, lease_time: Duration, *, block: bool = True, timeout: Duration | None = None
    ) -> list[Lease]:
        """Lease up to `count` items: those that wait, or, if the queue is empty, the first that arrive.

        Args:
            count: The maximum number of items, 1 to 1,000. 250 are one step: between two, other clients may
                act. It returns fewer if the payloads of a step reach 8 MiB, or if a later step fails.
            lease_time: How long each is leased, in seconds.
            block: Whether to wait while the queue is empty.
            timeout: How long to wait, in seconds, as in `lease`.

        Returns:
            The leases in queue order; empty if there was no item (in time).

        Raises:
            UnreadablePayload: As in `lease`, if no item can be read; otherwise those are left out.
        """
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        lease_ms = to_ms("lease_time", lease_time)
        wait = waiting_time(timeout, block=block)
        items = await self._engine().leasing.lease(count, lease_ms, blocks=block, timeout=wait)
        return read_leases(self, items)

    def _in_turn(self) -> Sequence[AsyncWorkQueue]:
        """Return its shards, in the order in which the next call leases from them."""
        return self.shards

    async def complete(
        self,
        lease: Lease,
        *,
        fenced: bool = False,
        result: bytes | None = None,
        keep_result: Duration | None = 3600,
    ) -> bool:
        """Finish an item: the server removes it.

        The server accepts the first holder of this incarnation of the item, even if its lease has expired and
        another holder works on it. It rejects every holder of an earlier incarnation (completed, then added
        again). Repeating is safe.

        Args:
            lease: The lease of the item.
            fenced: Whether only the current holder is accepted.
            result: What to keep for `results.get`; written only by the accepted completion. If events are
                published, it is in the event.
            keep_result: How long to keep it, in seconds. None: only publish it.

        Returns:
            True for exactly one holder of each incarnation. False: another holder has completed it, or the
            lease is of an earlier incarnation, or, with `fenced`, it is not the current one.
        """
        result = self._encoded(lease, result)
        row = self._claim(lease, completion(fenced=fenced, result=result, keep_result=keep_result))
        return bool(await self._engine().one("complete_many", row, size=len(row[2]) + ROW_BYTES) == 1)

    async def complete_many(
        self,
        leases: Sequence[Lease],
        *,
        fenced: bool = False,
        results: Sequence[bytes | None] | None = None,
        keep_result: Duration | None = 3600,
    ) -> list[bool]:
        """Finish many items, each as `complete` would, with the result at its place in `results`."""
        leases = check_list("leases", leases, "leases")
        if results is None:
            flag = completion(fenced=fenced, result=None, keep_result=keep_result)
            return await self._send_and_check("complete_many", [self._claim(lease, flag) for lease in leases])
        results = check_list("results", results, "bytes or None")
        if len(results) != len(leases):
            raise InvalidArgument("results", results, f"as many as there are leases, {len(leases)}")
        results = [self._encoded(lease, result) for lease, result in zip(leases, results, strict=True)]
        values = completions(results, fenced=fenced, keep_result=keep_result)
        rows = [self._claim(lease, value) for lease, value in zip(leases, values, strict=True)]
        return await self._send_and_check("complete_many", rows, [len(row[2]) + ROW_BYTES for row in rows])

    async def renew(self, lease: Lease, lease_time: Duration) -> bool:
        """Let a lease end `lease_time` from now.

        Return False if the item is no longer yours: completed, reclaimed, or leased to another holder. Stop
        working on it then.
        """
        return (await self.renew_many([lease], lease_time))[0]

    async def renew_many(self, leases: Sequence[Lease], lease_time: Duration) -> list[bool]:
        """Renew many leases, each as `renew` would."""
        lease_ms = to_ms("lease_time", lease_time)
        asked_at = time.monotonic()
        leases = check_list("leases", leases, "leases")
        rows = [self._claim(lease, b"%d" % lease_ms) for lease in leases]
        ends = await self._send("renew_many", rows)
        for lease, ends_ms in zip(leases, ends, strict=True):
            if ends_ms > 0:
                lease._renewed(asked_at, lease_ms, ends_ms)  # noqa: SLF001 - only its queue renews a lease
            elif ends_ms == CANCELLED:
                lease._cancel()  # noqa: SLF001 - as above
        return [ends_ms > 0 for ends_ms in ends]

    async def progress(self, lease: Lease, value: Any) -> bool:
        """Report how far the work on an item is, and wait until that is kept. See `Lease.progress`.

        Args:
            lease: The lease of the item. Only the current holder is accepted.
            value: Any value that can be written as JSON of at most 1,000 bytes.

        Returns:
            False if the item is no longer yours.
        """
        row = self._claim(lease, progress_text(value))
        return bool(await self._engine().one("progress", row, size=len(row[2]) + ROW_BYTES) == 1)

    async def _write_logs(self, rows: Iterable[tuple[Lease, bytes, int, float]]) -> None:
        """Keep chunks of logs: lease, chunk, how many bytes of the item, for how long after its end (s)."""
        sent = [
            self._claim(lease, b"logged", b"%d" % to_ms("keep", keep), b"%d" % limit, chunk)
            for lease, chunk, limit, keep in rows
        ]
        for start, stop in trips([row_size(len(row[-1])) for row in sent]):
            await self._engine().run("emit_chunks", [value for row in sent[start:stop] for value in row])

    def _report(self, lease: Lease, value: Any) -> None:
        self._engines.report(self._claim(lease), progress_text(value))

    async def emit(
        self,
        lease: Lease,
        chunk: bytes,
        *,
        keep: Duration = KEEP_STREAM_SECONDS,
        max_bytes: int = MAX_STREAM_BYTES,
    ) -> bool:
        """Add a chunk to the stream of an item, for those who read `queue.results.stream`.

        The first chunk of an item removes the stream of an earlier item with its id. If the reply is lost,
        the chunk may have been added.

        Args:
            lease: The lease of the item. Only the current holder is accepted.
            chunk: At most 65,536 bytes. Empty: nothing is added, but an earlier item's stream is removed.
            keep: How long the stream is kept after the item has ended, in seconds.
            max_bytes: How many bytes the stream may have, 1,000 to 64 MiB; each chunk counts 32 more than it
                has. Chunks of earlier runs make room for those of this one.

        Returns:
            False if the item is no longer yours.

        Raises:
            StreamFull: If this run has emitted as much as fits.
        """
        *how, chunk = chunk_row(chunk, keep, max_bytes)
        row = self._claim(lease, *how, self._encoded(lease, chunk) if chunk else chunk)
        answer = await self._engine().one("emit_chunks", row, size=len(row[-1]) + ROW_BYTES)
        if answer == NO_ROOM:
            raise StreamFull(lease.id, max_bytes)
        return bool(answer == 1)

    async def release(self, lease: Lease, *, delay: Duration = 0, front: bool = True) -> bool:
        """Release an item before its lease expires. The lease does not count as an attempt.

        Args:
            lease: The lease of the item.
            delay: Seconds before it can be leased again; 0 is none.
            front: Whether it returns to the front of the queue or to the end. With a `delay` it goes to the
                end when it falls due.

        Returns:
            False if the item was no longer yours.
        """
        row = self._claim(lease, *_place(delay, front=front))
        return bool(await self._engine().one("release_many", row, size=row_size(slow=row[2] != b"0")))

    async def release_many(
        self, leases: Sequence[Lease], *, delay: Duration = 0, front: bool = True
    ) -> list[bool]:
        """Release many items, each as `release` would. At the front they keep their order."""
        tail = _place(delay, front=front)
        rows = [self._claim(lease, *tail) for lease in check_list("leases", leases, "leases")]
        sizes = [row_size(slow=tail[0] != b"0")] * len(rows)
        return await self._send_and_check("release_many", rows, sizes, last_first=front)

    async def fail(
        self, lease: Lease, error: str | BaseException, *, retry_in: Duration | None = None
    ) -> bool:
        """Report that the work on an item failed: it is retried, or becomes a dead letter.

        Args:
            lease: The lease of the item. Only the current holder is accepted.
            error: What went wrong; of an exception, the traceback. A dead letter keeps up to 16 KiB, a longer
                one without its middle; an item that is retried keeps the end, 1,000 bytes: `ItemView.error`.
            retry_in: Seconds before it can be leased again; 0 puts it to the end of the queue at once. None
                makes it a dead letter: see `dead_letters`.

        Returns:
            False if the item was no longer yours.
        """
        return (await self.fail_many([Failure(lease, error, retry_in)]))[0]

    async def fail_many(self, failures: Sequence[Failure]) -> list[bool]:
        """Report many failures, each as `fail` would."""
        failures = check_list("failures", failures, "failures")
        if wrong := [one for one in failures if not isinstance(one, Failure)]:
            raise InvalidArgument("failures", wrong[0], "a Failure")
        rows = [self._claim(one.lease, *failing(one.error, one.retry_in)) for one in failures]
        sizes = [
            row_size(len(row[3]) + (len(failure[0].data) if row[2] == b"-1" else 0), slow=row[2] != b"0")
            for row, failure in zip(rows, failures, strict=True)
        ]
        answers = await self._send("fail_many", rows, sizes)
        if WRONG_TYPE in answers:
            wrong_id = failures[answers.index(WRONG_TYPE)].lease.id
            raise WrongKeyType(
                f"the data of item {wrong_id!r} is no string, so it cannot become a dead letter; this "
                "failure was not applied, the others were"
            )
        return [answer == 1 for answer in answers]

    # -------------------------------------------------------------- cancelling

    async def cancel(self, item_id: str, *, keep: Duration = KEEP_SECONDS) -> bool:
        """Cancel an item, whether it waits, is scheduled or leased: it is not leased again, nor completed.

        A worker of Leasequeue that runs it is notified at once: it cancels an async handler, kills the
        process of a handler, and sets `current_run().cancelled` for a thread. The outcome of the run is
        discarded. A client of another library finds nothing to complete. Callers that wait for the result get
        JobCancelled.

        Of a cancellation and completions of one incarnation, exactly one is True. Repeating is safe.

        Args:
            item_id: The item's id.
            keep: For how many seconds callers that ask for the result later get JobCancelled, unless the id
                is added again; 0: they get JobUnknown.

        Returns:
            False if there is no unfinished item with this id.
        """
        return bool(await self._engine().one("cancel_many", cancel_row(item_id, keep)) == 1)

    async def cancel_many(self, item_ids: Iterable[str], *, keep: Duration = KEEP_SECONDS) -> list[bool]:
        """Cancel many items, each as `cancel` would."""
        rows = cancel_rows(item_ids, keep)
        return await self._send_and_check("cancel_many", rows, [row_size(slow=True)] * len(rows))

    async def cancel_data(
        self, data: bytes | str, *, limit: int | None = None, keep: Duration = KEEP_SECONDS
    ) -> list[str]:
        """Cancel all items whose data is equal to this, each as `cancel` would; return their ids.

        It looks at all waiting, leased and scheduled items, 500 in each step; between two steps, other
        clients may act. An item that is in one state all the time is found; one that moves to another may be
        missed.

        Args:
            data: The data. No two calls of a task have the same data: cancel them by their ids.
            limit: The maximum number of items to cancel, 1 to 1,000,000; None: no limit but that.
            keep: As in `cancel`.
        """
        return await cancel_data(self._engine(), data, limit=limit, keep=keep)

    async def promote(self, item_id: str) -> bool:
        """End the delay of a scheduled item, also of one that is to be retried: it waits from now on.

        It is leased next, before all that wait of its level and group. Its attempts and its last error stay.
        Pauses and limits hold for it as for others. Repeating is safe.

        Args:
            item_id: The item's id.

        Returns:
            False if no item with this id is scheduled.

        Raises:
            QueueDeleted: If the queue is being deleted.
        """
        return bool(await self._engine().run("promote", item=encoded_id(item_id)))

    async def set_priority(self, item_id: str, priority: int) -> bool:
        """Change the level of an item that waits or is scheduled; its group and all else stay.

        It waits behind all others of its new level and group; one that has the level already keeps its place.
        One step: no worker sees the item in both places, or in none. Repeating is safe.

        Args:
            item_id: The item's id.
            priority: The new level, -9 to 9.

        Returns:
            False if no item with this id waits or is scheduled: it is leased, or gone.

        Raises:
            QueueDeleted: If the queue is being deleted.
        """
        level = check_int("priority", priority, minimum=-MAX_LEVEL, maximum=MAX_LEVEL)
        return bool(await self._engine().run("set_priority", item=encoded_id(item_id), new_level=level))

    # ----------------------------------------------------------------- pausing

    async def pause(
        self,
        *,
        reason: str = "",
        until: datetime | None = None,
        for_: Duration | None = None,
        group: str | None = None,
    ) -> Pause:
        """Pause the queue or a group: no item of it is leased until it is resumed, or the time has come.

        Items can be added, and what is leased can be renewed, released and completed. The last call counts.
        Clients of other libraries obey no pause. Repeating is safe.

        Args:
            reason: Why, at most 1,000 bytes of UTF-8; `limits.get` and an event show it.
            until: When it is to end by itself: a `datetime` with a time zone.
            for_: Or for how many seconds. Neither: until `resume` is called.
            group: A group; None: the whole queue.

        Raises:
            InvalidArgument: If an argument cannot be used, or `until` has passed by the server's clock.
        """
        return await pause(self._engine(), reason=reason, until=until, for_=for_, group=group)

    async def resume(self, *, group: str | None = None) -> bool:
        """End the pause of the queue, or of a group; each has its own.

        Repeating is safe. Return whether it was paused.
        """
        return await resume(self._engine(), group)

    # -------------------------------------------------------------- inspecting

    async def counts(self) -> Counts:
        """Return how many items are waiting, leased, scheduled and dead, at one instant."""
        return Counts(*await self._engine().run("counts"))

    async def stats(self, *, horizon: Duration | None = None, note: bool = True) -> QueueStats:
        """Return the counts of the queue, for how long its items wait, its limits and its workers.

        When an item began to wait is not stored, so `oldest_age` is known within an error, from the ids that
        earlier calls saw: call this every few seconds, as `leasequeue stats` does, from any number of them.
        What they note, at most 128 ids, is kept for an hour after the last call. Repeating is safe.

        Args:
            horizon: How far to look ahead: `due_soon` says how many scheduled items fall due within it. None:
                not at all.
            note: Whether to note what waits now, for the next call. False changes nothing on the server.
        """
        horizon_ms = None if horizon is None else to_ms("horizon", horizon, zero=True)
        check_bool("note", note)
        return await read_stats(self._engine(), self.name, horizon_ms=horizon_ms, note=note)

    async def queue_len(self) -> int:
        """Return how many items are waiting; items under lease are not counted."""
        return (await self.counts()).waiting

    async def processing(self) -> int:
        """Return how many items are under lease, including expired leases that are not reclaimed yet.

        Leases of clients of other libraries are counted once a clean or a lease has found them.
        """
        return (await self.counts()).leased

    async def inspect(
        self, state: State = "waiting", *, start: int = 0, count: int = 100, data: bool = True
    ) -> list[ItemView]:
        """Look at items of one state without changing them.

        Args:
            state: `"waiting"`, `"leased"` or `"scheduled"`.
            start: Where to begin: 0 is the next to be leased, or the first to fall due; -1 is the last.
            count: The maximum number of items, 1 to 1,000. 250 are one step: between two, other clients may
                act.
            data: Whether to fetch the payloads (8 MiB of them at most).
        """
        check_bool("data", data)
        if state not in ITEM_STATES:
            raise InvalidArgument("state", state, ", ".join(ITEM_STATES))
        check_int("start", start, minimum=-(2**53), maximum=2**53)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        room = MAX_REPLY_BYTES if data else -1
        views: list[ItemView] = []
        seen: set[str] = set()  # an item that has moved between two steps is returned once
        for at, size in pages(start, count, TRIP_ROWS):
            reply = await self._engine().run(
                "inspect", state=state.encode(), start=at, count=size, max_bytes=room
            )
            page = read_inspection(state, reply, self._engine().payloads, with_data=data)
            views += [view for view in page if view.id not in seen]
            if len(page) < size and at >= 0:  # from the end on, the first pages may be before the list
                break
            seen.update(view.id for view in page)
            room -= fetched(page)
        return views

    async def find(self, item_id: str, *, data: bool = True) -> ItemView | None:
        """Look at one item by its id without changing it.

        Args:
            item_id: The item's id.
            data: Whether to fetch the payload, however large it is.

        Returns:
            The item; None if there is no unfinished one with this id. One that is neither scheduled nor
            leased is shown as waiting.
        """
        check_bool("data", data)
        reply = await self._engine().run(
            "find_many",
            [encoded_id(item_id)],
            which=b"living",
            max_bytes=MAX_DATA_BYTES if data else -1,
        )
        return read_found(reply, self._engine().payloads, with_data=data)

    async def peek(self, count: int = 1, *, data: bool = True) -> list[ItemView]:
        """Look at the items that are leased next, in their order, without leasing them.

        Ids that `lease` would drop are left out. Another client may lease the items a moment later. Groups
        of one level take turns when items are leased; here the items of a group stand together. Pauses and
        limits are not looked at, and an item that has expired is shown until it is discarded.

        Args:
            count: The maximum number of items, 1 to 1,000, among the first 1,000 ids.
            data: Whether to fetch the payloads (8 MiB of them at most).
        """
        check_bool("data", data)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        return await operations.peek(self._engine(), count, with_data=data)

    # ---------------------------------------------------------------- cleaning

    async def light_clean(self) -> CleanReport:
        """Reclaim what foreign workers dropped, and drop entries of finished items: one walk over the leases.

        Items of Leasequeue's own clients need no cleaner. Run it about as often as the shortest lease that
        clients of other libraries take. It works in steps of 500 entries; any number of cleaners may run at
        once. It also takes one step of `admin.fsck` in each key, 100 entries, where the last light clean
        stopped.
        """
        return await light_clean(self._engine())

    async def deep_clean(self) -> CleanReport:
        """Do a light clean, then find items that are in no list at all, and requeue them.

        A client of another library that dies between its commands leaves such orphans. Deep cleaning scans
        the keys of the database in steps, without blocking the server, and holds the ids of the waiting items
        in memory. It also checks all keys as `fsck` does, but keys of a wrong type are reported, not renamed.
        Run it rarely.
        """
        return await deep_clean(self._engine())

    # ----------------------------------------------------------------- sending

    def _put(self, pipeline: Pipeline, row: Sequence[bytes]) -> None:
        if not callable(getattr(pipeline, "execute_command", None)):
            raise InvalidArgument("pipeline", pipeline, "a pipeline of redis-py")
        if telemetry.active is not None:
            row = traced_row(telemetry.active, self.whole.name, row)
        # The name of the command as a text: the pipelines of clusters look it up.
        pipeline.execute_command("EVAL", *self._engine().command("add_items", row)[1:])

    def _row(self, item: Item, delay: Duration, at: datetime | None, how: bytes) -> tuple[bytes, ...]:
        item_id, data, *rest = item_row(item, delay, at, how)
        return (item_id, self._engines.payloads.encode(data, item.id), *rest)

    def _encoded(self, lease: Lease, data: T) -> T | bytes:
        """Return a result or a chunk as the server is to have it; what is none, as it is: it is refused."""
        if isinstance(data, bytes) and isinstance(lease, Lease):
            return self._engines.payloads.encode(data, lease.id)
        return data

    def _claim(self, lease: Lease, *tail: bytes) -> tuple[bytes, ...]:
        """Return the row that identifies a lease to a script, with further values."""
        if not isinstance(lease, Lease) or lease.queue_name != self._name:
            raise InvalidArgument("lease", lease, f"a lease of the queue {self._name!r}")
        # `encoded`, and without the properties, since this is done for each item.
        return (lease._id.encode(errors="surrogateescape"), b"%d" % lease._token, *tail)  # noqa: SLF001

    async def _send_and_check(
        self, name: str, rows: Rows, sizes: Sequence[int] | None = None, *, last_first: bool = False
    ) -> list[bool]:
        return [answer == 1 for answer in await self._send(name, rows, sizes, last_first=last_first)]

    async def _send(
        self, name: str, rows: Rows, sizes: Sequence[int] | None = None, *, last_first: bool = False
    ) -> list[int]:
        """Send rows in as few trips as their sizes allow."""
        sizes = [row_size()] * len(rows) if sizes is None else sizes
        if telemetry.active is not None:
            send = partial(self._send_rows, name, sizes, last_first)
            return await observed(telemetry.active, self.whole.name, name, rows, send)
        return await self._send_rows(name, sizes, last_first, rows)

    async def _send_rows(self, name: str, sizes: Sequence[int], last_first: bool, rows: Rows) -> list[int]:  # noqa: FBT001 - `partial` gives no names
        parts = [(rows[start:stop], sum(sizes[start:stop])) for start, stop in trips(sizes)]
        # All trips of this call go the same way, so that they are applied in order.
        large = any(size > LARGE_BYTES for _, size in parts)
        calls = [self._engine().many(name, part, size=size, large=large) for part, size in parts]
        return await all_trips(calls, last_first=last_first)


def _place(delay: Duration, *, front: bool) -> tuple[bytes, bytes]:
    """Return the values of a row of `release_many` that say when and where the item waits again."""
    return b"%d" % to_ms("delay", delay, zero=True), b"1" if check_bool("front", front) else b"0"


def _added_size(row: Sequence[bytes]) -> int:
    return row_size(len(row[1]), slow=row[2] != b"0" or len(row[3]) > 1)


def waiting_time(timeout: Duration | None, *, block: bool) -> float | None:
    """Check how to wait, and return the timeout in seconds; None: it waits without limit, or not."""
    check_bool("block", block)
    if timeout is None:
        return None
    try:
        given = seconds("timeout", timeout, zero=not block)
    except InvalidArgument as error:
        raise InvalidArgument("timeout", timeout, _TIMEOUT_ALLOWED) from error
    return given if block else None


class QueueAdmin:
    """What concerns a whole queue, or the work of others in it: `queue.admin`.

    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
    """

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self._queue = queue

    async def recover(self, count: int, elapsed: Duration, lease_time: Duration) -> list[Lease]:
        """Lease again, for this caller, items that were last leased at least `elapsed` seconds ago.

        Use it if only you know when a holder is dead. Items come in the order in which they were leased, each
        once, with a new token and one attempt more. Their holders before are rejected when they renew,
        release or fail; if one completes its item first, it is accepted, and your `complete` is False. A
        renewal does not count as a lease: let `elapsed` be longer than the longest work.

        All leases are looked at, in steps of 250. Those of clients of other libraries are left alone.

        Args:
            count: The maximum number of items, 1 to 1,000.
            elapsed: Seconds since they were leased last; 0: all items under lease.
            lease_time: How long each is leased, in seconds.
        """
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        elapsed_ms = to_ms("elapsed", elapsed, zero=True)
        lease_ms = to_ms("lease_time", lease_time)
        items = await operations.recover(engine_of(self._queue), count, elapsed_ms, lease_ms)
        return read_leases(self._queue, items, refuse=False)

    async def clear_leases(self, *, elapsed: Duration = 0, count: int | None = None) -> list[str]:
        """End leases now, as if they had expired: the items return to the front, the first leased first.

        Their attempts count. A holder that completes its item first is accepted; when it renews, it is
        rejected. With `elapsed=0`, leases of clients of other libraries are ended, too. Leases that begin
        while this runs stay.

        Args:
            elapsed: End only leases that began at least so many seconds ago.
            count: The maximum number of leases to end, those that began first; None: all.

        Returns:
            The ids of the items.
        """
        elapsed_ms = to_ms("elapsed", elapsed, zero=True)
        if count is not None:
            check_int("count", count, minimum=1, maximum=2**53)
        return await operations.clear_leases(engine_of(self._queue), elapsed_ms, count)

    async def move(
        self,
        other: AsyncWorkQueue | str,
        *,
        count: int | None = None,
        ids: Iterable[str] | None = None,
    ) -> list[str]:
        """Move items that wait to the end of another queue on the same server, in their order.

        Each keeps its data, options, attempts and last error, and is a new incarnation there: no earlier
        holder can complete it. One whose id the other queue has stays here. 100 items are one step, which is
        applied as a whole; no other client sees an item in both queues or in none. Callers that wait for the
        result of an item wait in vain: let them wait in the other queue. Repeating is safe with `ids`.

        Args:
            other: The other queue, or its name; on a cluster it has the same hash tag. It has no shards.
            count: How many, in the order of `AsyncWorkQueue.peek`; None: all that wait now.
            ids: Instead: the ids of the items, which wait or are scheduled. Those that are leased stay.

        Returns:
            The ids of the items that were moved.

        Raises:
            InvalidArgument: If an argument cannot be used, or the other queue has shards, or is in another
                slot or on another server; nothing was moved.
            QueueDeleted: If the other queue is being deleted.
        """
        if count is not None:
            check_int("count", count, minimum=1, maximum=2**53)
        chosen = None if ids is None else [encoded_id(one) for one in check_list("ids", ids, "ids")]
        if count is not None and chosen is not None:
            raise InvalidArgument("count", count, "a count or ids, not both")
        name = await _name_beside(self._queue, other)
        return await operations.move(engine_of(self._queue), name, count, chosen)

    async def purge(self, *, scheduled: bool = False, dead: bool = False) -> int:
        """Remove all items that wait now; those under lease stay.

        It works in steps of 250 items. Items that are added during it stay, and others may be leased before
        they are reached. Callers that wait for the result of a removed item get JobCancelled.

        Args:
            scheduled: Whether to remove the scheduled items, too.
            dead: Whether to remove the dead letters, too.

        Returns:
            How many items and dead letters were removed.
        """
        places = operations.WAITING_PLACES + ("scheduled",) * check_bool("scheduled", scheduled)
        with_dead = check_bool("dead", dead)
        removed = await operations.purge(engine_of(self._queue), places)
        if with_dead:
            removed += await self._queue.dead_letters.drop_all()
        # Which removes nothing more, and emits the event `purged`.
        await engine_of(self._queue).run(
            "purge_queue", source=b"queue", of_group=b"", count=0, purged=removed
        )
        return removed

    async def delete(self) -> int:
        """Delete the queue: its items, dead letters, results, schedules, events, limits and leases.

        From the first step on nothing waits, `add_item` raises QueueDeleted, and nothing is leased; holders
        are notified to cancel their runs, and can no longer complete. Then all keys of the server are
        scanned, in steps, and those of the queue removed. In flow runs of other queues, stages that had an
        item here have failed. When this returns, the name can be used again. If it is interrupted, the queue
        stays closed until another `delete` finishes.

        The last token is kept, in the key `<name>:fence`, so that tokens only grow, also in a queue of this
        name that is made later. Processes that wait for items remain registered. Clients of other libraries
        do not see that the queue is closed: what they add before this returns is removed, too. Repeating is
        safe.

        Returns:
            How many unfinished items were removed.
        """
        return await operations.delete(engine_of(self._queue))

    async def fsck(self) -> CleanReport:
        """Check every key of the queue against the others, repair what does not agree, report each repair.

        After that, whatever was lost or changed, each item whose data exists is waiting, leased or scheduled,
        in exactly one place, and no bookkeeping is left without its item. Workers do the same in small parts,
        but for two steps: a key of a wrong type is renamed to `<queue>:lost:<rest of the key's name>`, and
        ids that do not wait are dropped from the middle of the queue. It works in steps of 100 entries, while
        other clients work; any number may run at once. If it
        fails, what was repaired before stays.

        Returns:
            The repairs, and what is left to you, in `findings`.
        """
        return await fsck(engine_of(self._queue)) + await self._queue.flow_runs.check()


async def _name_beside(queue: AsyncWorkQueue, other: AsyncWorkQueue | str) -> str:
    """Return the name of another queue, to which items of this one can be moved.

    A queue with shards leases nothing from the keys of its own name.
    """
    if isinstance(other, AsyncWorkQueue):
        name = engines_of(queue).neighbour(other.name)
        if other.url != queue.url:
            raise InvalidArgument("other", other.url, f"a queue on the same server, {queue.url}")
        has_shards = other.shards != (other,)
    else:
        name = engines_of(queue).neighbour(other)
        has_shards = "{" not in name and "}" not in name and await _is_noted(queue, name)
    if has_shards:
        raise InvalidArgument("other", name, "a queue without shards")
    return name


async def _is_noted(queue: AsyncWorkQueue, name: str) -> bool:
    """Return whether shards of a name are noted on the server. Who may not read that cannot use them."""
    [noted] = await engine_of(queue).runner.ask((b"GET", f"{{{name}}}:shards".encode()))
    if isinstance(noted, Exception) and not isinstance(noted, (AccessDenied, WrongKeyType)):
        raise noted
    return isinstance(noted, bytes)


def engines_of(queue: AsyncWorkQueue) -> Engines:
    """Return the engines of a queue object. Internal: for the rooms above this one, as `engine_of`."""
    return queue._engines  # noqa: SLF001 - the one door to what is private, beside `engine_of`


def engine_of(queue: AsyncWorkQueue) -> Engine:
    """Return the engine of an open queue object in the running event loop; the first call makes it."""
    return queue._engines.here()  # noqa: SLF001 - as above


def read_leases(queue: AsyncWorkQueue, items: Iterable[LeasedItem], *, refuse: bool = True) -> list[Lease]:
    """Return the leases of what was leased; release with a delay what cannot be decoded here.

    With `refuse`, raise UnreadablePayload if that is all.
    """
    payloads, leases = engines_of(queue).payloads, [Lease(queue, *item) for item in items]
    unreadable: dict[Lease, UnreadablePayload] = {}
    for lease in leases:
        if payloads.only or lease.data.startswith(MAGIC):
            try:
                lease.data = payloads.leased(lease.data, lease.id)
            except UnreadablePayload as error:
                unreadable[lease] = error
    for lease, why in unreadable.items():
        payloads.warn(why)
        engine_of(queue).soon(queue.release(lease, delay=UNREADABLE_SECONDS, front=False))
        leases.remove(lease)
        if refuse and not leases:
            raise why
    return leases


async def lease_level(
    queue: AsyncWorkQueue, count: int, lease_ms: int, *, whole: bool = False, refuse: bool = False
) -> tuple[list[Lease], float | None]:
    """Lease what waits; from a shard, items of one level, so that those of a higher one in others are first.

    Return also the level of what is leased next, if more is left; None: there may be more after `count`.
    `whole`: see `LeaseDispatcher.lease`. `refuse` is that of `read_leases`.
    """
    leasing = engine_of(queue).leasing
    by_level = queue.whole is not queue
    items = await leasing.lease(count, lease_ms, blocks=False, timeout=None, by_level=by_level, whole=whole)
    return read_leases(queue, items, refuse=refuse), leasing.next_level if by_level else None


def next_level_of(queue: AsyncWorkQueue) -> float:
    """Return the level of what is leased next from a shard, as far as the last reply has said it."""
    engine = engines_of(queue).running
    return UNKNOWN if engine is None else engine.leasing.next_level or 0
