"""Bulk adds: `df.write.format("leasequeue")`."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter

from leasequeue.errors import InvalidArgument, ServerError
from leasequeue.spark.add_rows import PartitionReport, add_batches
from leasequeue.spark.columns import OPTIONS, Columns
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import call_with_retries, check_server, open_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

#: The options of bulk adds.
WRITE_OPTIONS = (*OPTIONS, "job", "retryTimeout")
#: How long the report of a job is kept (ms): a day.
KEEP_REPORT_MS = 24 * 3600 * 1000
#: How long after the end of a job its late tasks are kept from adding items (ms): a day.
KEEP_ENDED_MS = 24 * 3600 * 1000
#: The longest name of a job, in bytes of UTF-8.
MAX_JOB_BYTES = 200


@dataclass(frozen=True)
class Report:
    """The result of a bulk add.

    Attributes:
        job: The job's name.
        rows: How many rows the table had.
        added: How many items the job added, however often its tasks ran. A job with a name chosen by the
            caller includes the items that its aborted runs added.
        partitions: The counts of each partition, from the task attempt that Spark accepted.
    """

    job: str
    rows: int
    added: int
    partitions: tuple[PartitionReport, ...]

    @property
    def already_there(self) -> int:
        """How many rows added nothing because another client had added the id, or the table repeats it.

        Rows that an earlier task attempt or an aborted run of the job added are not counted.
        """
        return max(sum(one.already_there for one in self.partitions), self.rows - self.added)

    @classmethod
    def read(cls, job: str, result: bytes) -> Report:
        """Parse the result that `BulkWriter.commit` stored."""
        added, _, stored = result.decode().partition(" ")
        partitions = tuple(PartitionReport(**one) for one in json.loads(stored)["partitions"])
        return cls(job, sum(one.rows for one in partitions), int(added), partitions)


class BulkWriter(DataSourceArrowWriter):
    """Adds the rows of a table to a queue, except those whose id is already there.

    A job adds each row at most once, even if its tasks run twice, run in parallel or outlive the job, and
    even if workers complete items in between. An aborted job leaves the items that it added. Run it again
    to add the rest; with the same name (option `job`), items completed since are not added again. When a
    job has ended, its name can be used for another.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            allowed = "append: other clients use the items of a queue; remove them with the queue's methods"
            raise InvalidArgument("mode", "overwrite", allowed)
        options = FormatOptions(given, WRITE_OPTIONS)
        self.target = options.target()
        self.columns = Columns.chosen(options, schema)
        self.retry_timeout = options.retry_timeout()
        name = job_name(options)
        # Tasks know the run, not the name: a name may be reused while late tasks of its last job still run.
        self.run = uuid.uuid4().hex
        self.job = name or f"job:{self.run}"
        check_server(self.target)
        if name:
            with open_queue(self.target) as portal:
                open_run = portal.bulk.open_run
                self.run = portal.call(open_run, name.encode(), self.run.encode()).decode()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition; runs in the executor."""
        return add_batches(iterator, self.columns, self.target, self.run, self.retry_timeout)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the job, and store its report as the result of its name.

        Raises:
            ServerError: If another job with the same name ran at the same time and ended first.
        """
        partitions = [asdict(message) for message in messages if isinstance(message, PartitionReport)]
        # The unique `commit` lets the server recognise a repeated call.
        report = json.dumps({"partitions": partitions, "commit": uuid.uuid4().hex})
        with open_queue(self.target) as portal:
            end_run = partial(
                portal.bulk.end_run,
                self.run.encode(),
                ended_ms=KEEP_ENDED_MS,
                job=self.job.encode(),
                report=report.encode(),
                keep_ms=KEEP_REPORT_MS,
            )
            if portal.call(call_with_retries, end_run, self.retry_timeout) < 0:
                raise ServerError(
                    f"another job named {self.job!r} ran at the same time and ended first: "
                    "rows sent after that were not added; run this job again"
                )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: tasks may still run, and the server remembers the added ids for a week."""


def job_name(options: FormatOptions) -> str:
    """Return the option `job`; empty if it is not set."""
    job = options.text("job")
    try:
        fits = len(job.encode()) <= MAX_JOB_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidArgument("job", job, f"a text of at most {MAX_JOB_BYTES} bytes in UTF-8")
    return job
