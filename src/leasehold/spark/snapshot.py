"""A snapshot of a queue: `spark.read.format("leasehold")`. It changes nothing and blocks no client."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from leasehold.queue.bulk import MAX_ROWS
from leasehold.queue.internals import bulk
from leasehold.spark.lookup import ItemFilter, look_up
from leasehold.spark.options import Options
from leasehold.spark.portal import call_with_retries, check_queue, check_server, open_queue
from leasehold.spark.schema import ITEMS, batch_of, check_columns, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from leasehold.queue import AsyncWorkQueue
    from leasehold.spark.lookup import Row

#: How many ids a partition has, and the maximum number of partitions, without the option `partitions`.
IDS_PER_PARTITION, MAX_PARTITIONS = 50_000, 16
#: How many requests of a task are in flight at once.
MAX_IN_FLIGHT = 3

#: The states to list, each with its listing. The order follows an item's way, so that an item that moves
#: during the listing is met again: scheduled items fall due, waiting items are leased, leases expire.
_LISTINGS = (
    ("dead", "dead"),
    ("scheduled", "scheduled"),
    ("leased", "leased"),
    ("leased", "processing"),
    ("waiting", "waiting"),
    ("leased", "leased"),
    ("dead", "dead"),
)


@dataclass
class IdPartition(InputPartition):
    """The ids that one task looks up."""

    value: list[bytes] = field(repr=False)


class SnapshotReader(DataSourceReader):
    """Reads the items of a queue as rows.

    The driver lists ids, executors look them up. Each row shows its item at one instant, and no row comes
    twice; an id that was added again after it died is two rows of the same instant: a dead letter and an
    item. Items that stay in their state are always included; items that are added, removed or moved during
    the snapshot may be.

    Raises:
        InvalidArgument: If an option or a column of the schema cannot be used.
        ServerError: If the server does not answer.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, ("from", "partitions", "mayBeMissing", "retryTimeout"))
        self.target = options.target()
        check_columns(schema, ITEMS)
        self.schema = schema
        self.filter = ItemFilter()
        self.count = options.check_int("partitions", 0, minimum=0, maximum=10_000)
        self.may_be_missing = options.flag("mayBeMissing", default=False)
        self.retry_timeout = options.retry_timeout()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Accept filters on state, id and age; return the others to Spark."""
        others = []
        for condition in filters:
            narrowed = self.filter.with_condition(condition)
            if narrowed is None:
                others.append(condition)
            else:
                self.filter = narrowed
        return others

    def partitions(self) -> list[InputPartition]:
        """List the ids and divide them into partitions; runs on the driver.

        Raises:
            InvalidArgument: If the queue does not exist.
            ServerError: If the server does not answer.
        """
        if self.may_be_missing:
            check_server(self.target)
        else:
            check_queue(self.target, "an empty snapshot of any")
        with open_queue(self.target) as portal:
            if self.filter.ids is None:
                ids = portal.call(_list_ids, portal.queue, self.filter.states)
            else:
                ids = [item_id.encode() for item_id in self.filter.ids if item_id]
        count = self.count or min(MAX_PARTITIONS, -(-len(ids) // IDS_PER_PARTITION)) or 1
        size = -(-len(ids) // count) or 1
        return [IdPartition(ids[at : at + size]) for at in range(0, len(ids), size)] or [IdPartition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Look up the items of a partition; runs in the executor."""
        ids: list[bytes] = partition.value
        if not ids:
            return
        in_flight: deque[Future[list[Row]]] = deque()
        data = "data" in self.schema.fieldNames()
        with open_queue(self.target) as portal:
            try:
                for at in range(0, len(ids), MAX_ROWS):
                    some = ids[at : at + MAX_ROWS]
                    request = partial(look_up, portal.bulk, some, self.filter, data=data)
                    in_flight.append(portal.start(call_with_retries, request, self.retry_timeout))
                    if len(in_flight) == MAX_IN_FLIGHT:
                        yield from self._batches(in_flight.popleft().result())
                while in_flight:
                    yield from self._batches(in_flight.popleft().result())
            finally:
                for one in in_flight:
                    one.cancel()

    def _batches(self, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        if rows:
            columns: dict[str, Any] = dict(zip(ITEMS.fieldNames(), zip(*rows, strict=True), strict=True))
            columns["id"] = [readable(item_id) for item_id in columns["id"]]
            yield batch_of(columns, self.schema)


async def _list_ids(queue: AsyncWorkQueue, states: frozenset[str]) -> list[bytes]:
    """List the ids of all items in these states, each once."""
    met: dict[bytes, None] = {}
    for state, listing in _LISTINGS:
        if state in states:
            ids, _ = await bulk(queue).ids_of(listing)
            met.update(dict.fromkeys(ids))
    return list(met)
