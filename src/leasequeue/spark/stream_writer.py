"""The stream writer, `df.writeStream.format("leasequeue")`: each micro-batch adds its rows exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from leasequeue.errors import InvalidArgument
from leasequeue.spark.add_rows import PartitionReport, add_batches
from leasequeue.spark.columns import OPTIONS, Columns
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import call_with_retries, check_server, open_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Local properties of a task: the query's id, which is kept in the checkpoint, and the batch's number.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: How long after the end of a batch its late tasks are kept from adding items (ms): an hour, as there are
#: many batches.
KEEP_ENDED_MS = 3600 * 1000


@dataclass(frozen=True)
class BatchMessage(WriterCommitMessage):
    """The message of a task to the driver about its partition."""

    query: str
    report: PartitionReport


class StreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of each micro-batch to a queue, except those whose id is already there.

    A batch adds each row at most once, even if it is repeated after a crash and workers completed items in
    between. The server remembers the ids that a batch added until the next batch is committed, for a week at
    most. It identifies a batch by the query's id, which is kept in the checkpoint: a new checkpoint makes
    a new query.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            allowed = "append or update: completed items leave the queue, so it cannot mirror a whole table"
            raise InvalidArgument("outputMode", "complete", allowed)
        options = FormatOptions(given, (*OPTIONS, "retryTimeout"))
        self.target = options.target()
        self.columns = Columns.chosen(options, schema)
        self.retry_timeout = options.retry_timeout()
        check_server(self.target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition of a batch; runs in the executor."""
        task = TaskContext.get()
        query, batch = (task.getLocalProperty(name) if task else None for name in (_QUERY, _BATCH))
        if not query or batch is None:
            raise InvalidArgument("batch", batch, "a micro-batch of a stream, with a query id and a number")
        report = add_batches(iterator, self.columns, self.target, _run(query, int(batch)), self.retry_timeout)
        return BatchMessage(query, report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """End the previous batch, which is in Spark's commit log. The current one may still be repeated."""
        query = next((message.query for message in messages if isinstance(message, BatchMessage)), None)
        if query and batchId > 0:
            run = _run(query, batchId - 1).encode()
            with open_queue(self.target) as portal:
                end_run = partial(portal.bulk.end_run, run, ended_ms=KEEP_ENDED_MS)
                portal.call(call_with_retries, end_run, self.retry_timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Do nothing: Spark will repeat the batch."""


def _run(query: str, batch: int) -> str:
    return f"{query}:{batch}"
