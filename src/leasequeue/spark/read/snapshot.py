"""A snapshot of a queue: `spark.read.format("leasequeue")`. It changes nothing and blocks no client."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from pyspark.sql.datasource import DataSourceReader, InputPartition

from leasequeue.errors import InvalidArgument
from leasequeue.item import MAX_DATA_BYTES
from leasequeue.queue.bulk import MAX_ROWS
from leasequeue.queue.views import read_options
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import call_with_retries, check_queue, check_server, open_queue
from leasequeue.spark.schema import ITEMS, batch_of, check_columns, expires_us, readable
from leasequeue.states import STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leasequeue.codecs import Payloads
    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.portal import QueuePortal

#: Options that only a snapshot has, and all that it has beside the common ones.
SELECTIONS = ("states", "ids", "minAge", "maxAge")
OPTIONS = ("from", "partitions", "mayBeMissing", "retryTimeout", *SELECTIONS)
#: The maximum of data in one reply; what does not fit is requested again.
REPLY_BYTES = 8 << 20
#: Values per item in the reply of `find_many`.
_FIELDS = 12

#: One item: the columns of `schema.ITEMS` in their order, with the id as bytes; times in µs since 1970.
Row = tuple[Any, ...]
ID, STATE, _DATA, _AGE, ERROR = 0, 1, 2, 8, 9


@dataclass(frozen=True)
class ItemFilter:
    """Which items the server and the executors select.

    It comes from options. Filters of a query cannot be pushed down: Spark plans a table in Python once, and
    every other query of the same DataFrame, and both sides of a union or a join, would get the filters of
    whichever was planned last.

    Attributes:
        states: The states to select.
        ids: The ids to select; None: all.
        min_age: The minimum of the age, in seconds.
        max_age: What the age is less than.
    """

    states: frozenset[str] = frozenset(STATES)
    ids: frozenset[str] | None = None
    min_age: float = 0.0
    max_age: float = math.inf

    @classmethod
    def of(cls, options: FormatOptions) -> ItemFilter:
        """Return the filter that the options of a snapshot ask for."""
        states = frozenset(options.names("states"))
        if not states <= {*STATES} or (options.given("states") and not states):
            raise InvalidArgument("states", options.text("states"), f"some of {', '.join(STATES)}")
        ids = frozenset(options.names("ids"))
        if options.given("ids") and not ids:
            raise InvalidArgument("ids", options.text("ids"), "ids with commas between them")
        ages = {
            name: options.seconds(option, 0)
            for name, option in (("min_age", "minAge"), ("max_age", "maxAge"))
            if options.given(option)
        }
        return cls(states or frozenset(STATES), ids or None, **ages)

    @property
    def by_age(self) -> bool:
        """Return whether the age matters."""
        return self.min_age > 0 or self.max_age < math.inf

    @property
    def which(self) -> str:
        """Whether items, dead letters or both are looked up, as an argument of `Bulk.find`."""
        if "dead" not in self.states:
            return "living"
        return "dead" if len(self.states) == 1 else "all"

    def select(self, rows: list[Row]) -> list[Row]:
        """Return the rows whose state and age match. Only matching ids are looked up."""
        if len(self.states) < len(STATES):
            rows = [row for row in rows if row[STATE] in self.states]
        if self.by_age:
            low, high = self.min_age, self.max_age
            rows = [row for row in rows if row[_AGE] is not None and low <= row[_AGE] < high]
        return rows


async def look_up(bulk: Bulk, ids: Sequence[bytes], condition: ItemFilter, *, data: bool) -> list[Row]:
    """Return the rows of up to 500 ids, without items that are gone or do not match.

    An id that was added again after it died is two rows: a dead letter, and an item.
    """
    if data and condition.by_age:
        # Most items are too young or too old: select first, without their data.
        # One request returns both rows of an id that is live and dead.
        ids = [*dict.fromkeys(row[ID] for row in await _fetch(bulk, ids, condition, data=False))]
    return await _fetch(bulk, ids, condition, data=data)


async def _fetch(bulk: Bulk, ids: Sequence[bytes], condition: ItemFilter, *, data: bool) -> list[Row]:
    if not data:
        return condition.select(await _request(bulk, ids, condition, -1))
    found: list[Row] = []
    while ids:
        rows = await _request(bulk, ids, condition, REPLY_BYTES)
        # Both rows of an id that is live and dead must be from one reply: a second one shows a later moment.
        ids = [*dict.fromkeys(row[ID] for row in rows if row[_DATA] is None)]
        cut = {*ids}
        whole = [row for row in rows if row[ID] not in cut]
        found += whole
        if ids and not whole:
            # The first item is larger than a whole reply: request it alone.
            found += await _request(bulk, ids[:1], condition, 2 * MAX_DATA_BYTES)
            del ids[0]
    return condition.select(found)


async def _request(bulk: Bulk, ids: Sequence[bytes], condition: ItemFilter, max_bytes: int) -> list[Row]:
    """Send one request. Both rows of an id that is live and dead are of the same moment."""
    now_ms, *values = await bulk.find(ids, which=condition.which, max_bytes=max_bytes)
    rows: list[Row] = []
    for at in range(0, len(values), _FIELDS):
        state, item_id, size, data, due_ms, holder, token, attempt, since_ms, error, stored, _ = values[
            at : at + _FIELDS
        ]
        options = read_options(stored)
        rows.append(
            (
                item_id,
                state.decode(),
                data,
                size,
                attempt,
                token or None,
                _text(holder),
                None if due_ms < 0 else due_ms * 1000,
                max(0, now_ms - since_ms) / 1000 if since_ms else None,
                _text(error),
                options.priority,
                options.group,
                expires_us(options),
            )
        )
    return rows


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


#: How many items a partition has, and the maximum number of partitions, without the option `partitions`. A
#: partition costs a listing of all ids, and memory for its own.
ITEMS_PER_PARTITION, MAX_PARTITIONS = 100_000, 16
#: How many requests of a task are in flight at once.
MAX_IN_FLIGHT = 3

#: The states to list, each with its listing. An item that moves once during the listing is met before or
#: after its move: for each pair of states, there is a listing of the first one before one of the second.
#: `processing` also has what other clients lease without a deadline.
LISTINGS = (
    ("dead", "dead"),
    ("scheduled", "scheduled"),
    ("leased", "leased"),
    ("leased", "processing"),
    ("waiting", "waiting"),
    ("leased", "processing"),
    ("leased", "leased"),
    ("scheduled", "scheduled"),
    ("dead", "dead"),
)


@dataclass(frozen=True)
class Share(InputPartition):
    """The ids of a shard, or of a queue without shards, that one task lists and looks up: a share of all.

    Two tasks never have an id in common, whatever happens to its item between their listings.
    """

    number: int
    count: int
    queue: str = ""

    def of(self, ids: list[bytes]) -> list[bytes]:
        """Return those of some ids that are in this partition."""
        number, count = self.number, self.count
        return ids if count == 1 else [one for one in ids if crc32(one) % count == number]


@dataclass
class IdPartition(InputPartition):
    """The ids that one task looks up in a shard, of a query that names them."""

    value: list[bytes] = field(repr=False)
    queue: str = ""


class SnapshotReader(DataSourceReader):
    """Reads the items of a queue as rows.

    Each task lists the ids, keeps those of its share, and looks them up; the driver only counts them. Each
    row shows its item at one instant, and no row comes twice; an id that was added again after it died is
    two rows of the same instant: a dead letter and an item.

    An item that stays in its state while a task lists the ids is always included, and so is one that moves to
    another state once. One that is leased and returns to the queue in between may be missing, and so may one
    that is added or leaves the queue.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = FormatOptions(given, OPTIONS)
        self.target = options.target()
        check_columns(schema, ITEMS)
        self.schema = schema
        self.filter = ItemFilter.of(options)
        #: The number of tasks; 0: by the number of items.
        self.count = 0
        if options.text("partitions"):
            self.count = options.check_int("partitions", 0, minimum=1, maximum=10_000)
        self.may_be_missing = options.flag("mayBeMissing", default=False)
        self.retry_timeout = options.retry_timeout()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks; runs on the driver, which lists no ids."""
        if self.may_be_missing:
            target, counts = check_server(self.target)
        else:
            target, counts = check_queue(self.target, "an empty snapshot of any")
        with open_queue(target) as portal:
            names = [shard.name for shard in portal.queue.shards]
            ids = [item_id.encode() for item_id in sorted(self.filter.ids or ()) if item_id]
            of_shards = portal.with_ids(ids)
        if self.filter.ids is not None:
            size = -(-len(ids) // self._count(len(ids))) or 1
            return [
                IdPartition(some[at : at + size], shard.name)
                for shard, some in of_shards.items()
                for at in range(0, len(some), size)
            ] or [IdPartition([])]
        count = self._count(sum(getattr(counts, state) for state in self.filter.states))
        each = -(-count // len(names))
        return [Share(number, each, name) for name in names for number in range(each)]

    def _count(self, items: int) -> int:
        return self.count or min(MAX_PARTITIONS, -(-items // ITEMS_PER_PARTITION)) or 1

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Look up the items of a partition; runs in the executor."""
        in_flight: deque[Future[list[Row]]] = deque()
        data = "data" in self.schema.fieldNames()
        assert isinstance(partition, (Share, IdPartition)), partition  # noqa: S101 - `partitions` makes these
        with open_queue(self.target.shard(partition.queue)) as portal:
            ids = self._ids(portal, partition)
            try:
                for at in range(0, len(ids), MAX_ROWS):
                    some = ids[at : at + MAX_ROWS]
                    request = partial(look_up, portal.bulk, some, self.filter, data=data)
                    in_flight.append(portal.start(call_with_retries, request, self.retry_timeout))
                    if len(in_flight) == MAX_IN_FLIGHT:
                        yield from self._batches(portal.payloads, in_flight.popleft().result())
                while in_flight:
                    yield from self._batches(portal.payloads, in_flight.popleft().result())
            finally:
                for one in in_flight:
                    one.cancel()

    def _ids(self, portal: QueuePortal, partition: InputPartition) -> list[bytes]:
        if not isinstance(partition, Share):
            ids: list[bytes] = partition.value
            return ids
        listing = partial(list_ids, portal.bulk, partition, self.filter.states)
        return portal.call(call_with_retries, listing, self.retry_timeout)

    def _batches(self, payloads: Payloads, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        if rows:
            columns: dict[str, Any] = dict(zip(ITEMS.fieldNames(), zip(*rows, strict=True), strict=True))
            columns["data"] = [*map(payloads.shown, columns["data"], columns["id"])]
            columns["id"] = [readable(item_id) for item_id in columns["id"]]
            yield batch_of(columns, self.schema)


async def list_ids(bulk: Bulk, share: Share, states: frozenset[str]) -> list[bytes]:
    """List the ids of a share that are in these states, each once."""
    met: dict[bytes, None] = {}
    for state, listing in LISTINGS:
        if state in states:
            async for page in bulk.pages(listing):
                met.update(dict.fromkeys(share.of(page)))
    return list(met)
