"""A snapshot of several queues: those of a list, or all whose names match a pattern."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from leasequeue.errors import InvalidArgument
from leasequeue.queue.shards.opening import find_whole_queues
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import check_server
from leasequeue.spark.read.snapshot import OPTIONS, SnapshotReader
from leasequeue.spark.schema import ITEMS, check_columns
from leasequeue.wire.endpoints import client_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The columns of a snapshot of several queues.
QUEUED_ITEMS = StructType([StructField("queue", StringType(), nullable=False), *ITEMS.fields])
#: The options that name them.
SEVERAL = ("queues", "queuePattern")


@dataclass(frozen=True)
class QueuePartition(InputPartition):
    """A partition of the snapshot of one of the queues."""

    queue: str
    reader: SnapshotReader
    value: InputPartition


class SnapshotsReader(DataSourceReader):
    """Reads the snapshots of several queues, and names the queue in a column. Each has its own moment."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = FormatOptions(given, (*OPTIONS, *SEVERAL))
        named = [name for name in ("queue", *SEVERAL) if options.given(name)]
        if len(named) > 1:
            raise InvalidArgument("option", " and ".join(named), "one of queue, queues and queuePattern")
        check_columns(schema, QUEUED_ITEMS)
        self.schema = schema
        fields = [field for field in schema if field.name != "queue"]
        # A batch needs a column to have rows.
        self.items = StructType(fields or [ITEMS["id"]])
        several = {name.lower() for name in SEVERAL}
        self.given = {name: value for name, value in given.items() if name.lower() not in several}
        self.pattern = options.text("queuePattern")
        self.names = [*dict.fromkeys(options.names("queues"))]
        if not (self.pattern or self.names):
            allowed = "names of queues, with commas between them, or a pattern with * and ?"
            raise InvalidArgument(named[0], options.text(named[0]), allowed)
        self.may_be_missing = options.flag("mayBeMissing", default=False)
        for name in self.names or ["any"]:
            self._reader(name)  # refuses what it cannot use

    def _reader(self, queue: str) -> SnapshotReader:
        return SnapshotReader(self.given | {"queue": queue}, self.items)

    def partitions(self) -> list[InputPartition]:
        """Find the queues and plan the tasks of each; runs on the driver."""
        planned: list[InputPartition] = []
        for name in self.names or self._matching():
            reader = self._reader(name)
            planned += [QueuePartition(name, reader, one) for one in reader.partitions()]
        return planned

    def _matching(self) -> list[str]:
        """Return the names of the queues that match the pattern."""
        target = self._reader("any").target
        if not target.cluster:
            check_server(target)  # refuses a node of a cluster, which knows only its own queues
        client = client_for(target.url, target.queue, cluster=target.cluster)
        found = asyncio.run(find_whole_queues(client))
        names = [name for name in found.names if fnmatchcase(name, self.pattern)]
        if not (names or self.may_be_missing):
            allowed = "a pattern with * and ? that the name of a queue matches"
            raise InvalidArgument("queuePattern", self.pattern, allowed)
        return names

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Look up the items of a partition; runs in the executor."""
        if not isinstance(partition, QueuePartition):
            return  # Spark's own, as no queue matches
        arrow = to_arrow_schema(self.schema, timezone="UTC")
        for batch in partition.reader.read(partition.value):
            queue = pa.array([partition.queue] * batch.num_rows, pa.string())
            columns = [queue if name == "queue" else batch[name] for name in arrow.names]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)
