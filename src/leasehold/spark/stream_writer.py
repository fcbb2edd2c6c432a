"""The sink of streams, `df.writeStream.format("leasehold")`: what a micro-batch adds, it adds once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from leasehold.errors import InvalidArgument
from leasehold.spark.add_rows import PartitionReport, add_batches
from leasehold.spark.bulk_writer import RETRY_TIMEOUT
from leasehold.spark.columns import OPTIONS, Columns
from leasehold.spark.options import Options
from leasehold.spark.portal import check_server, open_queue, persistently

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Of a micro-batch each task is told: the query's id, which is in its checkpoint, and the batch's number.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: For how long after its end a batch's tasks that outlive it add nothing (ms): an hour, as batches are many.
KEEP_ENDED_MS = 3600 * 1000


@dataclass(frozen=True)
class BatchReport(WriterCommitMessage):
    """What a task tells of its partition."""

    query: str
    added: PartitionReport


class StreamWriter(DataSourceStreamArrowWriter):
    """Adds the rows of each micro-batch to a queue: those whose id is not there yet.

    Each row is added at most once by its batch, even if the batch is repeated after a crash and items were
    completed in between. What a batch has added is known until the next one is committed, for a week at most.
    It goes by the query's id, which is kept in the checkpoint: with a new checkpoint it is another query.

    Raises:
        InvalidArgument: If an option or a column cannot be used.
        ServerError: If the server does not answer.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            allowed = (
                "append or update: a queue holds work that others do, and what is done is not there any more"
            )
            raise InvalidArgument("outputMode", "complete", allowed)
        options = Options(given, (*OPTIONS, "retryTimeout"))
        self.target = options.target()
        self.columns = Columns.chosen(options, schema)
        self.retry_timeout = options.seconds("retryTimeout", RETRY_TIMEOUT)
        check_server(self.target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition of a batch; in the executor."""
        task = TaskContext.get()
        query, batch = (task.getLocalProperty(name) if task else None for name in (_QUERY, _BATCH))
        if not query or batch is None:
            raise InvalidArgument("batch", batch, "a batch of a stream, of which Spark says query and number")
        added = add_batches(iterator, self.columns, self.target, _run(query, int(batch)), self.retry_timeout)
        return BatchReport(query, added)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """End the batch before: Spark has it in its log. This one may still be repeated."""
        query = next((message.query for message in messages if isinstance(message, BatchReport)), None)
        if query and batchId > 0:
            run = _run(query, batchId - 1).encode()
            with open_queue(self.target) as portal:
                end = partial(portal.bulk.end_run, run, ended_ms=KEEP_ENDED_MS)
                portal.call(persistently, end, self.retry_timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Leave all as it is: the batch will be repeated."""


def _run(query: str, batch: int) -> str:
    return f"{query}:{batch}"
