"""Bulk adds: `df.write.format("leasehold")`, and `add`, which says what came of it."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.utils import is_remote

from leasehold.errors import InvalidArgument, ServerError
from leasehold.spark.add_rows import PartitionReport, add_batches
from leasehold.spark.checking import check_rows
from leasehold.spark.columns import OPTIONS, Columns
from leasehold.spark.options import WHERE, Options, handed_on
from leasehold.spark.portal import active, check_server, open_queue, persistently

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from leasehold.spark.options import Target

#: What bulk adds understand.
WRITE_OPTIONS = (*OPTIONS, "job", "retryTimeout")
#: For how long the report of a job is kept (ms): a day.
KEEP_REPORT_MS = 24 * 3600 * 1000
#: For how long after its end a job's tasks that outlive it add nothing (ms): a day.
KEEP_ENDED_MS = 24 * 3600 * 1000
#: The longest name of a job, in bytes of UTF-8.
MAX_JOB_BYTES = 200
#: How long a trip is repeated while the server is away, without the option `retryTimeout` (s).
RETRY_TIMEOUT = 60.0


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
    partitions: tuple[PartitionReport, ...]

    @property
    def already_there(self) -> int:
        """How many rows added nothing, as their id was taken by others or came twice.

        Those that an earlier attempt, or an aborted run of the job, has added are not counted.
        """
        return max(sum(one.there for one in self.partitions), self.rows - self.added)

    @classmethod
    def read(cls, job: str, result: bytes) -> Report:
        """Read the result that a job has left."""
        added, _, told = result.decode().partition(" ")
        partitions = tuple(PartitionReport(**one) for one in json.loads(told)["partitions"])
        return cls(job, sum(one.rows for one in partitions), int(added), partitions)


class BulkWriter(DataSourceArrowWriter):
    """Adds the rows of a table to a queue: those whose id is not there yet.

    Each row is added at most once by a job, even if tasks run twice, side by side or after each other, or
    outlive it, and items are completed in between. A job that is aborted leaves what it has added; run it
    again to add the rest, under the same name (option `job`) if what was completed meanwhile is not to be
    added again. When a job has ended, its name is free for another.

    Raises:
        InvalidArgument: If an option or a column cannot be used.
        ServerError: If the server does not answer.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            allowed = "append: a queue holds work that others do; drop what is in it by other means"
            raise InvalidArgument("mode", "overwrite", allowed)
        options = Options(given, WRITE_OPTIONS)
        self.target = options.target()
        self.columns = Columns.chosen(options, schema)
        self.retry_timeout = options.seconds("retryTimeout", RETRY_TIMEOUT)
        name = _job_of(options)
        # What tasks go by: a name may be used again while tasks of the job that had it still run.
        self.run = uuid.uuid4().hex
        self.job = name or f"job:{self.run}"
        check_server(self.target)
        if name:
            with open_queue(self.target) as portal:
                open_run = portal.bulk.open_run
                self.run = portal.call(open_run, name.encode(), self.run.encode()).decode()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition; in the executor."""
        return add_batches(iterator, self.columns, self.target, self.run, self.retry_timeout)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the job, and keep its report as the result of its name.

        Raises:
            ServerError: If another job of the same name, at the same time, has ended it already.
        """
        counted = [asdict(message) for message in messages if isinstance(message, PartitionReport)]
        # Unlike any other, so that the server knows it when it comes twice.
        told = json.dumps({"partitions": counted, "commit": uuid.uuid4().hex})
        with open_queue(self.target) as portal:
            end = partial(
                portal.bulk.end_run,
                self.run.encode(),
                ended_ms=KEEP_ENDED_MS,
                job=self.job.encode(),
                report=told.encode(),
                keep_ms=KEEP_REPORT_MS,
            )
            if portal.call(persistently, end, self.retry_timeout) < 0:
                raise ServerError(
                    f"another job named {self.job!r} ran at the same time and has ended it: "
                    "rows that came later were not added; run it again"
                )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave all as it is: tasks may still run, and what the job has added is known for a week."""


def _job_of(options: Options) -> str:
    """The name that was given to the job; empty: none was."""
    job = options.text("job")
    try:
        fits = len(job.encode()) <= MAX_JOB_BYTES
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidArgument("job", job, f"a text of at most {MAX_JOB_BYTES} bytes in UTF-8")
    return job


def add(df: DataFrame, queue: str, *, check: bool = True, **options: Any) -> Report:
    """Add the rows of a table to a queue, and say what came of it.

        report = leasehold.spark.add(df, "emails", url="redis://localhost", idColumn="address")
        print(report.added, report.already_there)

    The same as `df.write.format("leasehold").options(…).mode("append").save()`, from any thread, and with a
    look at all rows before: if one can be no item, nothing is added. The report is kept for a day, as the
    result of the job's name: `await queue.results.get(job)`.

    Args:
        df: The rows. They are read twice, see `check`: persist them if that is costly, or if they are not
            the same each time.
        queue: The queue's name.
        check: Whether all rows are looked at before the first is added. False: rows are added until one can
            be no item.
        **options: The options of the format, such as `url`, `idColumn`, `dataColumn`, `delayColumn`.

    Raises:
        InvalidArgument: If an option or a column cannot be used, or a row can be no item; nothing was added.
        ServerError: If the server does not answer; or the report cannot be read, after the rows were added.
        pyspark.errors.PySparkException: If the job fails.
    """
    from leasehold.spark.source import register

    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    read = Options({**texts, "queue": queue}, WRITE_OPTIONS)
    target, retry_timeout = read.target(), read.seconds("retryTimeout", RETRY_TIMEOUT)
    job = _job_of(read) or f"job:{uuid.uuid4().hex}"
    check_server(target)
    with active(df.sparkSession), _settled(texts, target) as settled:
        register(df.sparkSession)
        if check:
            check_rows(df, Columns.chosen(read, df.schema))
        writer = df.write.format("leasehold").options(**settled, queue=queue, job=job)
        writer.mode("append").save()
    with open_queue(target) as portal:
        result = portal.call(persistently, partial(portal.queue.results.get, job), retry_timeout)
    if result is None:
        raise ServerError(f"the report of the job {job!r} is gone")
    return Report.read(job, result)


@contextmanager
def _settled(texts: dict[str, str], target: Target) -> Iterator[dict[str, str]]:
    """The options, with the server that we mean: Spark's workers have the environment that it began with."""
    rest = {name: text for name, text in texts.items() if name.lower() not in ("job", "queue")}
    if is_remote():  # they are on another machine, and read its files and environment
        yield rest
        return
    rest = {name: text for name, text in rest.items() if name.lower() not in WHERE}
    with handed_on(target.url, cluster=target.cluster) as where:
        yield rest | where
