"""A snapshot of a queue: `spark.read.format("leasehold")`. It takes nothing and holds up nobody."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from leasehold.queue.bulk import MAX_ROWS
from leasehold.queue.internals import bulk
from leasehold.spark.lookup import ItemFilter, look
from leasehold.spark.options import Options
from leasehold.spark.portal import check_queue, check_server, open_queue, persistently
from leasehold.spark.schema import ITEMS, batch_of, check_columns, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from leasehold.queue import AsyncWorkQueue
    from leasehold.spark.lookup import Row
    from leasehold.spark.portal import QueuePortal

#: How many ids make one more partition, and how many partitions there are at most, if nobody says.
IDS_PER_PARTITION, MAX_PARTITIONS = 50_000, 16
#: How many looks are under way at once.
MAX_IN_FLIGHT = 3
#: How long a trip is repeated while the server is away, without the option `retryTimeout` (s).
RETRY_TIMEOUT = 60.0

#: What is listed for each state, one after the other, so that what moves on meanwhile is met where it goes:
#: the delayed fall due, those that wait are leased, leases end.
_WALKS = (
    ("dead", "dead"),
    ("scheduled", "scheduled"),
    ("leased", "leased"),
    ("leased", "processing"),
    ("waiting", "waiting"),
    ("leased", "leased"),
    ("dead", "dead"),
)


@dataclass
class Ids(InputPartition):
    """One partition: the items that one task looks at."""

    value: list[bytes] = field(repr=False)


class SnapshotReader(DataSourceReader):
    """Reads the items of a queue as rows.

    The driver lists ids, executors look at them. Each row is as the item stood at one instant, and none
    comes twice; an id that was added again after it died is two rows, of the same instant: a dead letter
    and an item. What stays in its state is there for certain; what comes, goes or moves meanwhile may be.

    Raises:
        InvalidArgument: If an option or a column of the schema cannot be used.
        ServerError: If the server does not answer.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = Options(given, ("from", "partitions", "mayBeMissing", "retryTimeout"))
        self.target = options.target()
        check_columns(schema, ITEMS)
        self.schema = schema
        self.wanted = ItemFilter()
        self.count = options.check_int("partitions", 0, minimum=0, maximum=10_000)
        self.may_be_missing = options.flag("mayBeMissing", default=False)
        self.retry_timeout = options.seconds("retryTimeout", RETRY_TIMEOUT)

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Take those on state, id and age; give back the others."""
        others = []
        for condition in filters:
            narrowed = self.wanted.with_condition(condition)
            if narrowed is None:
                others.append(condition)
            else:
                self.wanted = narrowed
        return others

    def partitions(self) -> list[InputPartition]:
        """List the ids, and deal them out; on the driver.

        Raises:
            InvalidArgument: If there is no such queue.
            ServerError: If the server does not answer.
        """
        if self.may_be_missing:
            check_server(self.target)
        else:
            check_queue(self.target, "an empty snapshot of any")
        with open_queue(self.target) as portal:
            if self.wanted.ids is None:
                ids = portal.call(_list_ids, portal.queue, self.wanted.states)
            else:
                ids = [item_id.encode() for item_id in self.wanted.ids if item_id]
        count = self.count or min(MAX_PARTITIONS, -(-len(ids) // IDS_PER_PARTITION)) or 1
        size = -(-len(ids) // count) or 1
        return [Ids(ids[at : at + size]) for at in range(0, len(ids), size)] or [Ids([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Look at the items of a partition; in the executor."""
        ids: list[bytes] = partition.value
        if not ids:
            return
        in_flight: deque[Future[list[Row]]] = deque()
        with open_queue(self.target) as portal:
            try:
                for at in range(0, len(ids), MAX_ROWS):
                    in_flight.append(self._look(portal, ids[at : at + MAX_ROWS]))
                    if len(in_flight) == MAX_IN_FLIGHT:
                        yield from self._batches(in_flight.popleft().result())
                while in_flight:
                    yield from self._batches(in_flight.popleft().result())
            finally:
                for one in in_flight:
                    one.cancel()

    def _look(self, portal: QueuePortal, ids: list[bytes]) -> Future[list[Row]]:
        step = partial(look, portal.bulk, ids, self.wanted, data="data" in self.schema.fieldNames())
        return portal.start(persistently, step, self.retry_timeout)

    def _batches(self, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        if rows:
            columns: dict[str, Any] = dict(zip(ITEMS.fieldNames(), zip(*rows, strict=True), strict=True))
            columns["id"] = [readable(item_id) for item_id in columns["id"]]
            yield batch_of(columns, self.schema)


async def _list_ids(queue: AsyncWorkQueue, states: frozenset[str]) -> list[bytes]:
    """The ids of all items of some states, each once."""
    met: dict[bytes, None] = {}
    for state, walk in _WALKS:
        if state in states:
            ids, _ = await bulk(queue).ids_of(walk)
            met.update(dict.fromkeys(ids))
    return list(met)
