"""A lease stream on the server: numbered sets of leased items that are renewed, read and completed.

This module does not use Spark. Set numbers only grow. After a crash a set is found again by its number, with
the items that are still leased for it and those that no other client has leased since.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.queue.encoding import row_size, trips
from leasequeue.spark.errors import StreamTakenOver
from leasequeue.spark.portal import call_with_retries
from leasequeue.spark.schema import readable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasequeue.queue.bulk import Bulk

T = TypeVar("T")


@dataclass(frozen=True)
class SetId:
    """What an executor needs to read a set, and the driver to record its failures."""

    stream: str
    reader: str
    number: int
    lease_ms: int

    @property
    def name(self) -> bytes:
        """Return the set's name on the server."""
        return f"{self.stream}:{self.number}".encode()

    @property
    def holder(self) -> str:
        """Return the holder of its leases."""
        return f"lh:{self.stream}"


#: How many failures one call records or returns: with the longest errors 1.6 MiB.
PAGE = 100
#: How long failures are kept (ms): a week longer than any lease; `stream_hold` prolongs that with the set.
KEEP_FAILURES_MS = 14 * 24 * 3600 * 1000
#: The delay of an item that becomes a dead letter.
DIES = -1

_log = Log(__name__)


class ItemFailure(NamedTuple):
    """What to do with an item that was not completed."""

    #: The id, as in the column `id`.
    id: str
    #: When it can be leased again (ms); DIES: it becomes a dead letter.
    delay_ms: int
    #: The size of its data.
    size: int
    error: str
    #: The group, which may decide its shard.
    group: str | None = None


def key_of(set_name: bytes) -> bytes:
    """Return the name under which the failures of a set are kept, as if they were a set."""
    return set_name + b":failures"


async def record(
    bulk: Bulk, set_id: SetId, failures: Sequence[ItemFailure], *, forget: bool, retry_timeout: float
) -> None:
    """Record failures of a set, at most PAGE; `forget` those of an earlier run of the batch first."""
    rows = [
        text.encode() for one in failures for text in (one.id, f"{one.delay_ms:d} {one.size:d} {one.error}")
    ]
    more: dict[str, bytes | int] = {"anew": int(forget), "keep_ms": set_id.lease_ms + KEEP_FAILURES_MS}
    call = partial(bulk.run, "set_failures_put", rows, **_names(set_id), **more)
    if not await call_with_retries(call, retry_timeout):
        raise StreamTakenOver(set_id.stream)


async def recorded(bulk: Bulk, set_id: SetId, retry_timeout: float) -> dict[str, ItemFailure]:
    """Return the failures of a set by id."""
    found: dict[str, ItemFailure] = {}
    cursor = b""
    while cursor != b"0":
        call = partial(bulk.run, "set_failures", (), **_names(set_id), cursor=cursor or b"0", count=PAGE)
        mine, cursor, *flat = await call_with_retries(call, retry_timeout)
        if not mine:
            raise StreamTakenOver(set_id.stream)
        for item_id, value in zip(flat[::2], flat[1::2], strict=True):
            delay_ms, size, error = value.decode().split(" ", 2)
            found[item_id.decode()] = ItemFailure(item_id.decode(), int(delay_ms), int(size), error)
    return found


async def fail(
    bulk: Bulk,
    entries: Sequence[tuple[bytes, bytes]],
    failures: Mapping[str, ItemFailure],
    retry_timeout: float,
) -> None:
    """Fail items as a worker does: schedule each for its next attempt, or make it a dead letter.

    An item whose lease has expired and that has left the set's holder is left alone, as by `fail_many`: it
    gets another attempt anyway.
    """
    of_entry = [failures[readable(item_id)] for item_id, _ in entries]
    sizes = [
        row_size(len(one.error.encode()) + (one.size if one.delay_ms == DIES else 0), slow=one.delay_ms != 0)
        for one in of_entry
    ]
    rows = [
        (item_id, token, b"%d" % one.delay_ms, one.error.encode())
        for (item_id, token), one in zip(entries, of_entry, strict=True)
    ]

    async def send(start: int, stop: int) -> list[int]:
        values = [value for row in rows[start:stop] for value in row]
        answers: list[int] = await call_with_retries(partial(bulk.run, "fail_many", values), retry_timeout)
        return answers

    answers = await asyncio.gather(*(send(*trip) for trip in trips(sizes)))
    if rejected := sum(answer != 1 for trip in answers for answer in trip):
        _log.warning(
            "%d of %d failed items were left alone: their leases had expired, or they were failed before",
            *(rejected, len(rows)),
        )


def _names(set_id: SetId) -> dict[str, Any]:
    return {"stream": set_id.stream.encode(), "reader": set_id.reader.encode(), "set": set_id.name}


#: Id and token of an item.
Entry = tuple[bytes, bytes]

#: The maximum of items of one call.
STEP = 250
#: How long sets and readers are remembered after their leases have expired (ms): a week.
KEEP_MS = 7 * 24 * 3600 * 1000
#: Values per item in the reply of `set_read`.
FIELDS = 8
#: The maximum number of calls that reclaim expired and due items; later calls reclaim the rest.
MAX_RECLAIMS = 10_000


@dataclass
class LeaseSet:
    """A set of leased items."""

    #: How many positions it has on the server, including those of abandoned items.
    size: int
    #: Whether the server knew it already.
    found: bool
    #: How many items were leased for it at the last renewal; None: never renewed.
    held: int | None = None


class LeaseSets:
    """The lease sets of one stream. Repeating a call is safe."""

    def __init__(
        self, bulk: Bulk, name: str, *, lease_ms: int, retry_timeout: float, reader: str = ""
    ) -> None:
        self.reader = reader or secrets.token_hex(8)
        self._bulk = bulk
        self._name = name
        self._lease_ms = lease_ms
        self._retry_timeout = retry_timeout
        self._sets: dict[int, LeaseSet] = {}
        self._completed = 0
        #: Held while sets are renewed, and while items of one are failed: those would be leased again.
        self._renewing = asyncio.Lock()

    async def take_over(self) -> None:
        """Become the stream's reader. The previous one gets StreamTakenOver at its next call."""
        await self._hold(take=1)

    async def waiting(self, max_calls: int = MAX_RECLAIMS) -> int:
        """Reclaim expired and due items, and count the waiting items."""
        more, waiting, calls = True, 0, 0
        while more and calls < max_calls:
            _, _, more, waiting = await self._lease(0, known=0, count=0)
            calls += 1
        return waiting

    async def lease(self, number: int, count: int) -> LeaseSet:
        """Lease up to `count` items as the set of that number, or find the set if it exists."""
        known = 0
        while True:
            had, size, more, _ = await self._lease(number, known=known, count=min(count - known, STEP))
            found = known == 0 and had > 0
            if found or size >= count or not more:
                break
            known = size
        leased = LeaseSet(size, found)
        if found:
            await self._renew(number, leased)
        if size:
            self._sets[number] = leased
        return leased

    async def restore(self, number: int) -> LeaseSet:
        """Return the set of that number, also after a crash, and lease its waiting items again.

        Items that other clients have leased or completed since are abandoned when the set is read.
        """
        if number not in self._sets:
            # Renew first: any other call would reclaim the expired items.
            leased = LeaseSet(0, found=True)
            if lost := await self._renew(number, leased):
                _log.warning(
                    "%d items of batch %d are left out: other clients leased them while the query was down",
                    *(lost, number),
                )
            self._sets[number] = leased
            await self._hold()
        return self._sets[number]

    async def complete(self, number: int) -> None:
        """Complete the items of that set except the abandoned ones, and delete the set.

        The items have been read and processed, so they are completed even if their leases have expired. Those
        that are recorded as failures are failed instead.
        """
        if number <= self._completed:
            return
        failures = await recorded(self._bulk, self.set_id(number), self._retry_timeout)
        async with self._renewing:
            entries = await self._entries(number)
            if failures:
                failed = [entry for entry in entries if readable(entry[0]) in failures]
                entries = [entry for entry in entries if readable(entry[0]) not in failures]
                await fail(self._bulk, failed, failures, self._retry_timeout)
                self._sets.pop(number, None)  # not renewed any more
        pages = (entries[at : at + STEP] for at in range(0, len(entries), STEP))
        await asyncio.gather(*map(self._complete, pages))
        await self._hold(drop=number)
        self._sets.pop(number, None)
        self._completed = number

    async def _complete(self, entries: Sequence[Entry]) -> None:
        rows = [value for id_, token in entries for value in (id_, token, b"0")]
        mine, *answers = await self._run("set_complete", rows, stream=self._bytes, reader=self._reader)
        self._check(mine)
        if lost := answers.count(-1):
            _log.warning("%d items were completed by other clients and added again while the batch ran", lost)

    async def keep_renewing(self) -> None:
        """Renew all leases every third of the lease time, until cancelled or taken over."""
        interval = self._lease_ms / 3000
        while True:
            await asyncio.sleep(interval)
            try:
                async with self._renewing:
                    for number, leased in [*self._sets.items()]:
                        await self._renew(number, leased)
                await self._hold()
            except StreamTakenOver:
                return  # the next call raises it
            except LeasequeueError as error:
                _log.warning("leases could not be renewed: %s", error)
            except Exception:  # noqa: BLE001 - the next round may succeed
                # No one awaits this task, and without it all leases would expire.
                _log.exception("leases could not be renewed")

    async def _renew(self, number: int, leased: LeaseSet) -> int:
        """Renew the items of a set and lease its waiting ones again; return how many other clients hold."""
        set_id = self.set_id(number)
        leased.size, held, again, lost = await renew_set(self._bulk, set_id, 0, 0, self._retry_timeout)
        # Backwards: reclaimed items are in order, and those nearest to the queue's end are found fastest.
        for start in reversed(range(0, leased.size, STEP)):
            _, *more = await renew_set(self._bulk, set_id, start, STEP, self._retry_timeout)
            held, again, lost = held + more[0], again + more[1], lost + more[2]
        leased.held = held
        if again:
            _log.info("%d items of batch %d had been reclaimed and were leased again", again, number)
        return lost

    async def _entries(self, number: int) -> list[Entry]:
        at, seen = 0, 1
        entries: list[Entry] = []
        while seen:
            seen, _, flat = await read_set(
                *(self._bulk, self.set_id(number)),
                start=at,
                count=STEP,
                max_bytes=-1,
                retry_timeout=self._retry_timeout,
                peek=True,
            )
            entries += zip(flat[::2], map(b"%d".__mod__, flat[1::2]), strict=True)
            at += seen
        return entries

    async def _lease(self, number: int, *, known: int, count: int) -> tuple[int, int, bool, int]:
        mine, had, size, more, waiting = await self._run(
            "lease_set",
            session=self.set_id(number).holder.encode(),
            stream=self._bytes,
            reader=self._reader,
            set=self.set_id(number).name,
            known=known,
            count=count,
            hold_ms=self._lease_ms,
            keep_ms=self._lease_ms + KEEP_MS,
        )
        self._check(mine)
        return had, size, more == 1, waiting

    async def _hold(self, *, take: int = 0, drop: int | None = None) -> None:
        keep_ms = self._lease_ms + KEEP_MS
        sets = dict.fromkeys(self._sets, b"%d" % keep_ms)
        if drop is not None:
            sets[drop] = b"0"
        names = {number: self.set_id(number).name for number in sets}
        # A set first: its failures must outlive it.
        rows = [
            value
            for number, ms in sets.items()
            for name in (names[number], key_of(names[number]))
            for value in (name, ms)
        ]
        mine, _ = await self._run(
            "stream_hold", rows, stream=self._bytes, reader=self._reader, take=take, keep_ms=keep_ms
        )
        self._check(mine)

    def set_id(self, number: int) -> SetId:
        """Return what an executor needs to read the set of that number."""
        return SetId(self._name, self.reader, number, self._lease_ms)

    @property
    def _bytes(self) -> bytes:
        return self._name.encode()

    @property
    def _reader(self) -> bytes:
        return self.reader.encode()

    def _check(self, mine: int) -> None:
        if not mine:
            raise StreamTakenOver(self._name)

    async def _run(self, script: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        return await call_with_retries(
            partial(self._bulk.run, script, rest, **arguments), self._retry_timeout
        )


@dataclass(frozen=True)
class BatchSets:
    """The sets of one stream over the shards of a queue: a batch is the set of its number in each of them."""

    #: Those of each shard, by its name.
    sets: Mapping[str, LeaseSets]

    async def each(self, call: Callable[[LeaseSets], Awaitable[T]]) -> dict[str, T]:
        """Make a call for each shard; return the answers by its name."""
        return dict(zip(self.sets, await asyncio.gather(*map(call, self.sets.values())), strict=True))

    async def lease(self, number: int, count: int) -> dict[str, LeaseSet]:
        """Lease a batch of up to `count` items, or find what is there of it."""
        if len(self.sets) == 1:
            return await self.each(lambda one: one.lease(number, count))
        batch = await self.each(lambda one: one.lease(number, 0))
        waiting = await self.each(lambda one: one.waiting(1))
        left = max(0, count - sum(leased.size for leased in batch.values()))
        rooms = [0 if batch[name].found else waiting[name] for name in batch]
        parts = zip(self.sets.items(), fair_parts(left, rooms), strict=True)
        some = {name: (one, part) for (name, one), part in parts if part}
        leased = await asyncio.gather(*(one.lease(number, part) for one, part in some.values()))
        return batch | dict(zip(some, leased, strict=True))


def fair_parts(count: int, rooms: Sequence[int]) -> list[int]:
    """Divide a number into parts that are as equal as the room for each allows."""
    parts = [0] * len(rooms)
    for before, at in enumerate(sorted(range(len(rooms)), key=rooms.__getitem__)):
        parts[at] = min(rooms[at], count // (len(rooms) - before))
        count -= parts[at]
    return parts


async def read_set(
    bulk: Bulk,
    set_id: SetId,
    *,
    start: int,
    count: int,
    max_bytes: int,
    retry_timeout: float,
    peek: bool = False,
) -> tuple[int, int, list[Any]]:
    """Read the leased items at some positions of a set, after leasing its reclaimed ones again.

    Items that other clients hold or have completed are abandoned: the set never includes them again.

    Args:
        bulk: The queue.
        set_id: The set.
        start: The first position.
        count: The maximum number of positions, up to 1,000.
        max_bytes: The maximum of data, except for a single larger item; -1: no data.
        retry_timeout: How long a call is repeated while the server is unavailable, in seconds.
        peek: Whether to return only id and token of the items not abandoned, and to abandon none.

    Returns:
        How many positions were read (0: the set ends before), the server's time in ms, and eight values per
        item, in the order of `set_read`.
    """

    async def read(give_up: int) -> list[Any]:
        span = {"start": start, "count": count, "max_bytes": max_bytes}
        return await _run_on_set(
            bulk, "set_read", set_id, retry_timeout, {**span, "peek": int(peek), "give_up": give_up}
        )

    seen, now_ms, *flat = await read(0)
    if seen < 0:
        await renew_set(bulk, set_id, start, count, retry_timeout)
        seen, now_ms, *flat = await read(1)
    return seen, now_ms, flat


async def renew_set(bulk: Bulk, set_id: SetId, start: int, count: int, retry_timeout: float) -> list[int]:
    """Renew the leases at some positions of a set, and lease its waiting items again.

    Returns:
        How many positions the whole set has; of those renewed, how many items are now held; how many of them
        were leased again; how many are lost.
    """
    span = {"start": start, "count": count, "hold_ms": set_id.lease_ms}
    return await _run_on_set(
        bulk, "set_renew", set_id, retry_timeout, {"session": set_id.holder.encode(), **span}
    )


async def _run_on_set(
    bulk: Bulk, script: str, set_id: SetId, retry_timeout: float, more: dict[str, bytes | int]
) -> list[Any]:
    given = {"stream": set_id.stream.encode(), "reader": set_id.reader.encode(), "set": set_id.name} | more
    mine: int
    reply: list[Any]
    mine, *reply = await call_with_retries(partial(bulk.run, script, (), **given), retry_timeout)
    if not mine:
        raise StreamTakenOver(set_id.stream)
    return reply
