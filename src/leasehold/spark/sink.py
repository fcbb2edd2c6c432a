"""The sink of streams, `df.writeStream.format("leasehold")`: what a micro-batch adds, it adds once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from leasehold.errors import InvalidArgument
from leasehold.spark.adding import Added, add_batches
from leasehold.spark.columns import OPTIONS, Columns
from leasehold.spark.connect import check_server, connected, persistently
from leasehold.spark.options import Options
from leasehold.spark.write import MOST_JOB_BYTES, PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Of a micro-batch each task is told: the query's id, which is in its checkpoint, and the batch's number.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass(frozen=True)
class Told(WriterCommitMessage):
    """What a task tells of its partition."""

    query: str
    added: Added


class Sink(DataSourceStreamArrowWriter):
    """Adds the rows of each micro-batch to a queue: those whose id is not there yet.

    Each row is added at most once by its batch, even if the batch is repeated after a crash and items were
    completed in between. What a batch has added is known until the next one is committed, for a week at most.
    It goes by the query's id, which is kept in the checkpoint, or by the option `query`: give that if a
    new checkpoint is to go on where another one was.

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
        options = Options(given, (*OPTIONS, "query", "patience"))
        self.target = options.target()
        self.columns = Columns.chosen(options, schema)
        self.patience = options.seconds("patience", PATIENCE)
        self.query = options.text("query")
        if len(_job(self.query, 2**63)) > MOST_JOB_BYTES:
            raise InvalidArgument(
                "query", self.query, f"a text of at most {MOST_JOB_BYTES - 20} bytes in UTF-8"
            )
        check_server(self.target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition of a batch; in the executor."""
        task = TaskContext.get()
        told = {name: task.getLocalProperty(name) if task else None for name in (_QUERY, _BATCH)}
        query, batch = self.query or told[_QUERY], told[_BATCH]
        if not query or batch is None:
            raise InvalidArgument("query", query, "a batch of a stream, of which Spark says the number")
        job = _job(query, int(batch)).decode()
        return Told(query, add_batches(iterator, self.columns, self.target, job, self.patience))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Forget the batch before: Spark has it in its log. This one may still be repeated."""
        query = next((message.query for message in messages if isinstance(message, Told)), self.query)
        if query and batchId > 0:
            with connected(self.target) as there:
                end = partial(there.queue.bulk.end_job, _job(query, batchId - 1))
                there.call(persistently, end, self.patience)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Leave all as it is: the batch will be repeated."""


def _job(query: str, batch: int) -> bytes:
    return f"{query}:{batch}".encode()
