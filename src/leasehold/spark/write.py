"""Bulk adds: `df.write.format("leasehold")`, and `add`, which says what came of it."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter

from leasehold.errors import InvalidArgument, ServerError
from leasehold.spark.adding import Added, add_batches
from leasehold.spark.columns import OPTIONS, Columns
from leasehold.spark.connect import check_server, connected, persistently
from leasehold.spark.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from leasehold.spark.options import Target

#: For how long the report of a job is kept (ms): a day.
KEEP_REPORT_MS = 24 * 3600 * 1000
#: The longest name of a job, in bytes of UTF-8.
MOST_JOB_BYTES = 200
#: For how long a trip is tried again while the server is away, if the option `patience` does not say (s).
PATIENCE = 60.0


@dataclass(frozen=True)
class Report:
    """What a bulk add has done.

    Attributes:
        job: Its name.
        rows: How many rows there were.
        added: How many items it has added, however often its tasks ran. Of a job with a name of its own,
            what its aborted runs have added counts as well.
        partitions: The counts of each partition, in the run of its task that counts.
    """

    job: str
    rows: int
    added: int
    partitions: tuple[Added, ...]

    @property
    def already_there(self) -> int:
        """How many rows added nothing: their id was taken, or came twice."""
        return self.rows - self.added

    @classmethod
    def read(cls, job: str, result: bytes) -> Report:
        """Read the result that a job has left."""
        added, _, told = result.decode().partition(" ")
        partitions = tuple(Added(**one) for one in json.loads(told)["partitions"])
        return cls(job, sum(one.rows for one in partitions), int(added), partitions)


class BulkWriter(DataSourceArrowWriter):
    """Adds the rows of a table to a queue: those whose id is not there yet.

    Each row is added at most once by a job, even if tasks run twice, side by side or after each other, and
    items are completed in between. A job that is aborted leaves what it has added; run it again to add the
    rest, under the same name (option `job`) if what was completed meanwhile is not to be added again.

    Raises:
        InvalidArgument: If an option or a column cannot be used.
        ServerError: If the server does not answer.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            allowed = "append: a queue holds work that others do; drop what is in it by other means"
            raise InvalidArgument("mode", "overwrite", allowed)
        options = Options(given, (*OPTIONS, "job", "patience"))
        self.target = options.target()
        self.columns = Columns.chosen(options, schema)
        self.patience = options.seconds("patience", PATIENCE)
        self.job = options.text("job") or f"job:{uuid.uuid4().hex}"
        if len(self.job.encode()) > MOST_JOB_BYTES:
            raise InvalidArgument("job", self.job, f"a text of at most {MOST_JOB_BYTES} bytes in UTF-8")
        check_server(self.target)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition; in the executor."""
        return add_batches(iterator, self.columns, self.target, self.job, self.patience)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the job, and keep its report as the result of its name."""
        counted = [asdict(message) for message in messages if isinstance(message, Added)]
        # Unlike any other, so that the server knows it when it comes twice.
        told = json.dumps({"partitions": counted, "run": uuid.uuid4().hex})
        _end(self.target, self.job, told.encode(), self.patience)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave all as it is: tasks may still run, and what the job has added is known for a week."""


def _end(target: Target, job: str, told: bytes, patience: float) -> None:
    with connected(target) as there:
        end = partial(there.queue.bulk.end_job, job.encode(), report=told, keep_ms=KEEP_REPORT_MS)
        there.call(persistently, end, patience)


def add(df: DataFrame, queue: str, **options: Any) -> Report:
    """Add the rows of a table to a queue, and say what came of it.

        report = leasehold.spark.add(df, "emails", url="redis://localhost", idColumn="address")
        print(report.added, report.already_there)

    The same as `df.write.format("leasehold").options(…).mode("append").save()`. Its report is kept for a day,
    as the result of the job's name: `await queue.results.get(job)`.

    Args:
        df: The rows.
        queue: The queue's name.
        **options: The options of the format, such as `url`, `idColumn`, `dataColumn`, `delayColumn`.

    Raises:
        InvalidArgument: If an option cannot be used; what concerns the columns comes as Spark's error.
        ServerError: If the report cannot be read; the rows have been added.
        pyspark.errors.PySparkException: If the job fails.
    """
    from leasehold.spark.source import register

    job = options.setdefault("job", f"job:{uuid.uuid4().hex}")
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    texts["queue"] = queue
    options_read = Options(texts, (*OPTIONS, "job", "patience"))
    target, patience = options_read.target(), options_read.seconds("patience", PATIENCE)
    register(df.sparkSession)
    df.write.format("leasehold").options(**texts).mode("append").save()
    with connected(target) as there:
        result = there.call(persistently, partial(there.queue.results.get, str(job)), patience)
    if result is None:
        raise ServerError(f"the report of the job {job!r} is gone")
    return Report.read(str(job), result)
