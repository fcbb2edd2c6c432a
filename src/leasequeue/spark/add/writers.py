"""The writers of the format, of a bulk add and of a stream: each adds the rows of partitions once."""

from __future__ import annotations

import json
import uuid
from collections import deque
from concurrent.futures import wait
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from leasequeue.errors import InvalidArgument, LeasequeueError, ServerError
from leasequeue.errors.log import Log
from leasequeue.queue.bulk import MAX_ROWS
from leasequeue.queue.encoding import ROW_BYTES, trips
from leasequeue.queue.queue import engine_of
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.spark.add.columns import OPTIONS, Columns
from leasequeue.spark.options import FormatOptions
from leasequeue.spark.portal import call_with_retries, check_server, open_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leasequeue.queue import AsyncWorkQueue
    from leasequeue.spark.options import QueueTarget
    from leasequeue.spark.portal import QueuePortal

_log = Log(__name__)
#: How many requests are in flight at once: enough to keep the server and this process busy at the same time.
MAX_IN_FLIGHT = 4


@dataclass(frozen=True)
class PartitionReport(WriterCommitMessage):
    """How many rows of one partition were added, by the task attempt that Spark accepted."""

    partition: int
    rows: int = 0
    #: Added by this task attempt.
    added: int = 0
    #: Added by the job before: by an earlier task attempt, or from another row with the same id.
    repeated: int = 0
    #: Not added: another client had already added the id.
    already_there: int = 0

    def __add__(self, answers: Sequence[int]) -> PartitionReport:
        """Count the answers of one more request."""
        return replace(
            self,
            rows=self.rows + len(answers),
            added=self.added + answers.count(1),
            repeated=self.repeated + answers.count(2),
            already_there=self.already_there + answers.count(0),
        )


def add_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, target: QueueTarget, run: str, retry_timeout: float
) -> PartitionReport:
    """Add all rows of a partition, each once per run of the job, even if several tasks add them.

    A batch is checked as a whole before any of its rows is sent. Each shard knows what was added to it.
    """
    task = TaskContext.get()
    report = PartitionReport(task.partitionId() if task else 0)
    with open_queue(target) as portal:
        if isinstance(portal.queue, ShardedQueue):
            portal.call(call_with_retries, portal.queue.check_shards, retry_timeout)
        in_flight: deque[Future[list[int]]] = deque()
        try:
            for shard, rows in _requests(batches, columns, report.partition, portal):
                if len(in_flight) == MAX_IN_FLIGHT:
                    report += in_flight.popleft().result()
                add = partial(portal.bulks[shard].add_once, run.encode(), rows)
                in_flight.append(portal.start(call_with_retries, add, retry_timeout))
            while in_flight:
                report += in_flight.popleft().result()
        except InvalidArgument:
            wait(in_flight)  # the batches before this one are valid: add them whole
            raise
        finally:
            for request in in_flight:
                request.cancel()
    return report


def _requests(
    batches: Iterable[pa.RecordBatch], columns: Columns, partition: int, portal: QueuePortal
) -> Iterator[tuple[AsyncWorkQueue, list[bytes]]]:
    """Encode the rows as flat lists for `add_once` of their shards, split at its limits."""
    before = 0
    for batch in batches:

        def where(at: int, before: int = before) -> str:
            return f"row {before + at + 1:,} of partition {partition}"

        of_shards: dict[AsyncWorkQueue, list[tuple[bytes, ...]]] = {}
        rows = zip(*columns.rows(batch, where), strict=True)
        for (key, data, *how), group in zip(rows, columns.groups(batch), strict=True):
            item_id = key.decode()
            row = (key, portal.payloads.encode(data, item_id), *how)
            of_shards.setdefault(portal.queue.shard_of(item_id, group=group), []).append(row)
        for shard, some in of_shards.items():
            for start, stop in trips([ROW_BYTES + len(data) for _, data, *_ in some], maximum=MAX_ROWS):
                yield shard, [*chain.from_iterable(some[start:stop])]
        before += batch.num_rows


#: The options of bulk adds.
STREAM_OPTIONS = (*OPTIONS, "shards", "shardBy", "retryTimeout")
WRITE_OPTIONS = (*STREAM_OPTIONS, "job")
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
        """Parse the result that `BulkWriter.commit` stored: it begins with what its shard has."""
        added, _, stored = result.decode().partition(" ")
        report = json.loads(stored)
        partitions = tuple(PartitionReport(**one) for one in report["partitions"])
        return cls(job, sum(one.rows for one in partitions), int(added) + report["elsewhere"], partitions)


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
        self.columns = Columns.chosen(options, schema)
        self.retry_timeout = options.retry_timeout()
        name = job_name(options)
        # Tasks know the run, not the name: a name may be reused while late tasks of its last job still run.
        self.run = uuid.uuid4().hex
        self.job = name or f"job:{self.run}"
        self.target, _ = check_server(options.target())
        if name:
            with open_queue(self.target) as portal:
                open_run = portal.bulk_of(name).open_run
                self.run = portal.call(open_run, name.encode(), self.run.encode()).decode()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition; runs in the executor."""
        return add_batches(iterator, self.columns, self.target, self.run, self.retry_timeout)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End the job, and store its report as the result of its name."""
        partitions = [asdict(message) for message in messages if isinstance(message, PartitionReport)]
        with open_queue(self.target) as portal:
            home = portal.queue.shard_of(self.job)
            others = [shard for shard in portal.queue.shards if shard is not home]
            counts = [partial(_added, shard, self.run) for shard in others]
            added = sum(portal.call(call_with_retries, count, self.retry_timeout) for count in counts)
            # The unique `commit` lets the server recognise a repeated call.
            report = json.dumps({"partitions": partitions, "elsewhere": added, "commit": uuid.uuid4().hex})
            end_run = partial(
                portal.bulks[home].end_run,
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
            # The job has ended. What the other shards have of its run keeps late tasks from adding, too.
            try:
                _end_run(portal, others, self.run, KEEP_ENDED_MS, self.retry_timeout)
            except LeasequeueError as error:
                _log.warning("the ids that the job %r has added are kept for a week: %s", self.job, error)

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


#: Local properties of a task: the query's id, which is kept in the checkpoint, and the batch's number.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: How long after the end of a batch its late tasks are kept from adding items (ms): an hour, as there are
#: many batches.
KEEP_ENDED_BATCH_MS = 3600 * 1000


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
        options = FormatOptions(given, STREAM_OPTIONS)
        self.columns = Columns.chosen(options, schema)
        self.retry_timeout = options.retry_timeout()
        self.target, _ = check_server(options.target())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Add one partition of a batch; runs in the executor."""
        task = TaskContext.get()
        query, batch = (task.getLocalProperty(name) if task else None for name in (_QUERY, _BATCH))
        if not query or batch is None:
            raise InvalidArgument("batch", batch, "a micro-batch of a stream, with a query id and a number")
        report = add_batches(
            iterator, self.columns, self.target, _run_of(query, int(batch)), self.retry_timeout
        )
        return BatchMessage(query, report)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """End the previous batch, which is in Spark's commit log. The current one may still be repeated."""
        query = next((message.query for message in messages if isinstance(message, BatchMessage)), None)
        if query and batchId > 0:
            run = _run_of(query, batchId - 1)
            with open_queue(self.target) as portal:
                _end_run(portal, portal.queue.shards, run, KEEP_ENDED_BATCH_MS, self.retry_timeout)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - as above
        """Do nothing: Spark will repeat the batch."""


async def _added(shard: AsyncWorkQueue, run: str) -> int:
    """Return how many items a run has added to a shard."""
    added: int = await engine_of(shard).read_at(b"SCARD", f"{shard.name}:once:{run}".encode())
    return added


def _end_run(
    portal: QueuePortal, shards: Iterable[AsyncWorkQueue], run: str, ended_ms: int, retry_timeout: float
) -> None:
    """End a run in some shards; repeating it is safe."""
    for shard in shards:
        end_run = partial(portal.bulks[shard].end_run, run.encode(), ended_ms=ended_ms)
        portal.call(call_with_retries, end_run, retry_timeout)


def _run_of(query: str, batch: int) -> str:
    return f"{query}:{batch}"
