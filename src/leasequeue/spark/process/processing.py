"""Drain a queue on a cluster: items are completed when the output of their handler is durable."""

from __future__ import annotations

import inspect
import secrets
import time
import traceback
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.observation import Observation
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str

from leasequeue.errors import InvalidArgument, LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.spark.errors import HandlerFailed, QueryStopped, reason_of
from leasequeue.spark.portal import call_with_retries, open_queue
from leasequeue.spark.process.handlers import KINDS, MARKER, MAX_REASON, NEEDED, HandlerTask
from leasequeue.spark.process.output import FAILURES, OutputFolder
from leasequeue.spark.process.output_columns import OutputColumns
from leasequeue.spark.read.lease_sets import DIES, PAGE, ItemFailure, record
from leasequeue.spark.read.leases import READER, LeasesReader
from leasequeue.spark.schema import ITEMS
from leasequeue.spark.sessions import check_classic
from leasequeue.spark.source import LeasequeueSource, register
from leasequeue.worker.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.query import StreamingQuery

    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.portal import QueuePortal
    from leasequeue.spark.read.lease_sets import SetId

    #: Functions that process items as Arrow batches, as pandas data frames, or one by one.
    ArrowHandler = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]
    PandasHandler = Callable[[Iterator[pd.DataFrame]], Iterable[pd.DataFrame]]
    ItemHandler = Callable[[Row], Mapping[str, Any] | Iterable[Mapping[str, Any]] | None]

#: The local property that holds the id of the running query, which is kept in the checkpoint.
QUERY = "sql.streaming.queryId"
#: The maximum of tasks of a batch.
MAX_PARTITIONS = 10_000
#: The errors of Java by which Spark knows that a stop has interrupted a batch, in a text that begins so.
_INTERRUPTED = (
    *("java.lang.InterruptedException", "java.io.InterruptedIOException"),
    "java.nio.channels.ClosedByInterruptException",
)
_PROXY_ERROR = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_log = Log(__name__)
_SOURCE = "a session, with `queue`, or a lease stream as it was loaded, so that no row is hidden"


@dataclass(frozen=True)
class Processed:
    """The result of a run of `process`.

    Attributes:
        items: How many items were processed: completed, retried or made dead letters.
        rows: How many rows of the output were written.
        retried: How many items are to be tried again.
        dead: How many items became dead letters.
        without_output: How many items were completed without a row in the output; None: not known, as the
            output has no column of ids.
        batches: How many micro-batches they came in.
        seconds: How long the run took.
        leased: How many items of the queue are leased after the run: by workers, or by an earlier run, with
            another checkpoint, that has failed.
        leased_until: When the last of these leases expires, if it is not renewed; None: there is none.
    """

    items: int = 0
    rows: int = 0
    retried: int = 0
    dead: int = 0
    without_output: int | None = 0
    batches: int = 0
    seconds: float = 0.0
    leased: int = 0
    leased_until: datetime | None = None

    @property
    def failed(self) -> int:
        """How many items failed: those retried and the dead."""
        return self.retried + self.dead

    @property
    def completed(self) -> int:
        """How many items were completed."""
        return self.items - self.failed


def process(  # noqa: PLR0913 - all but the first two are options
    source: SparkSession | DataFrame,
    handler: ArrowHandler | PandasHandler | ItemHandler,
    *,
    queue: str | None = None,
    output: str,
    schema: StructType | str,
    checkpoint: str | None = None,
    batch: int | None = None,
    kind: Literal["arrow", "pandas", "item"] = "arrow",
    retry: RetryPolicy | None = None,
    without_output: Literal["allow", "refuse"] = "allow",
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Processed:
    """Process all waiting items of a queue on the executors, and write the handler's output as Parquet.

        def count(item):
            if not item.data:
                raise Reject("no data")        # a dead letter; any other error: another attempt
            return {"id": item.id, "bytes": len(item.data)}

        columns = "id string, bytes long"
        done = process(spark, count, kind="item", queue="files", output="counts", schema=columns)

        def count(batches):
            for batch in batches:
                sizes = pa.array([len(data.as_py()) for data in batch["data"]])
                yield pa.record_batch({"id": batch["id"], "bytes": sizes})

        items = spark.readStream.format("leasequeue").option("queue", "files").load()
        done = process(items, count, output="counts", schema=columns)

    Items are leased in batches, renewed while their batch runs, and completed when its output is written and
    in Spark's commit log. A batch that runs again after a crash replaces its output: so each completed item
    is in the output once, even if the handler processed it more than once. The run ends when no item waits;
    run it again with the same folder for items added since.

    With `kind="item"`, an exception concerns one item: as in a worker, `Retry` and other errors lead to
    another attempt as `retry` says, `Reject` and the last attempt to a dead letter with the error.
    A handler of batches yields columns beside those of the schema instead: `_outcome` (null or "complete",
    "retry", "reject") and, optionally, `_error` (a text) and `_delay` (seconds before the next attempt).
    The row of a failed item names it in the column `id`, or `_id`, and is not written. Failed items are
    retried or become dead letters when the others of their batch are completed.

    An exception of a handler of batches ends the run, and no item of that batch is completed. Its items stay
    leased to this checkpoint for the lease time: the next run starts with them, or their leases expire and
    other workers get them. So do columns that are not those of the schema, and items left unread.

    Args:
        source: The session, with `queue`; or a lease stream, from `spark.readStream.format("leasequeue")`
            with options.
        handler: The function that processes items: takes an iterator of batches with the stream's columns
            (`id`, `data`, …), and yields batches of the output; with `kind="item"`, takes a Row of the
            stream's columns and returns a dict, an iterable of dicts, or None.
        queue: The queue's name; None if `source` is a stream.
        output: A folder on any file system that Spark supports. It gets a folder for each batch and reads as
            one table: `spark.read.parquet(output)`, with the additional column `batch`.
        schema: The columns that the handler yields, by name, as a DDL string or a type.
        checkpoint: The folder where the run stores its position. None: the folder `_checkpoint` in `output`.
        batch: The maximum of items in a batch; None: 10,000, or the stream's `maxItemsPerTrigger`.
        kind: Whether the handler takes and yields Arrow batches or pandas data frames, or takes single items.
        retry: When failed items are tried again; None: as a worker does by default.
        without_output: Whether an item may be completed without a row in the output. "refuse" ends the
            run; the output must then have a column of ids, `id` or `_id`.
        progress: Called with a line of text after each batch.
        **options: Options of the stream, such as `url`, `leaseTime` in seconds, and `partitions`, by default
            the number of the session's cores. None are allowed if `source` is a stream.

    Raises:
        InvalidArgument: If an argument cannot be used, the session is one of Spark Connect, the queue does
            not exist, or `output` was written with another checkpoint or from another queue.
        ServerError: If the server does not answer when a new checkpoint is created.
        OutputTakenOver: If another run, started later, writes into the output.
        StreamTakenOver: If another query, started later, reads the stream. If the stream notices that first,
            it is part of a StreamingQueryException.
        QueryStopped: If the query was stopped.
        HandlerFailed: If a handler of batches raises an error, or a handler yields what cannot be written.
        pyspark.errors.StreamingQueryException: If the server or the file system fails.
    """
    check_classic(source, "process")
    if kind not in KINDS:
        raise InvalidArgument("kind", kind, "'arrow', 'pandas' or 'item'")
    _check_handler(handler)
    if without_output not in ("allow", "refuse"):
        raise InvalidArgument("without_output", without_output, "'allow' or 'refuse'")
    if not isinstance(retry, (RetryPolicy, type(None))):
        raise InvalidArgument("retry", retry, "a RetryPolicy, or None")
    stream = _stream(source, {"queue": queue, "maxItemsPerTrigger": batch} | options)
    columns = OutputColumns.of(schema, str(stream.sparkSession.conf.get("spark.sql.session.timeZone")))
    given = _options(stream) | {READER: secrets.token_hex(8)}
    reader = LeasesReader(given, stream.schema)
    folder = OutputFolder(stream.sparkSession, output)
    location = checkpoint or folder.default_checkpoint
    if (other := folder.offset(location).get("queue", reader.target.queue)) != reader.target.queue:
        name, value = ("checkpoint", checkpoint) if checkpoint else ("output", output)
        allowed = f"a new folder, or one of the queue {reader.target.queue!r}; this is one of {other!r}"
        raise InvalidArgument(name, value, allowed)
    if not folder.check_checkpoint(location):
        reader.check_queue()
    task = HandlerTask(
        handler, kind, tuple(stream.columns), columns, retry or RetryPolicy(), without_output == "refuse"
    )
    began = time.monotonic()
    with open_queue(reader.target, reader.retry_timeout) as portal:
        run = _Run(task, folder, location, reader, portal, progress)
        drain(_with_needed(stream, given), location, run.write, folder)
        done = _with_leases(run.done, portal, reader)
    return replace(done, seconds=time.monotonic() - began)


def _with_leases(done: Processed, portal: QueuePortal, reader: LeasesReader) -> Processed:
    """Say of the result of a run what is leased after it; of one that found nothing, in the log, too."""
    counts = portal.call(call_with_retries, portal.queue.counts, reader.retry_timeout)
    if not counts.leased:
        return done
    ends = []
    for shard in portal.queue.shards:
        last = partial(shard.inspect, "leased", start=-1, count=1, data=False)
        ends += [one.due for one in portal.call(call_with_retries, last, reader.retry_timeout) if one.due]
    until = datetime.fromtimestamp(max(ends), UTC) if ends else None
    if not done.items:
        _log.warning(
            "no item of %s waited, but %d are leased, the last until %s: by workers, or by a run that has "
            "failed, with another checkpoint; continue it with its folders, or run again after that time",
            *(reader.target.queue, counts.leased, until and until.isoformat(" ", "seconds")),
        )
    return replace(done, leased=counts.leased, leased_until=until)


@dataclass
class _Run:
    """A run of `process`: writes the output of its batches, and records the failures."""

    task: HandlerTask
    folder: OutputFolder
    checkpoint: str
    reader: LeasesReader
    portal: QueuePortal
    progress: Callable[[str], None] | None
    done: Processed = Processed()

    def write(self, df: DataFrame, number: int) -> None:
        """Process a batch: write its output, and then record which of its items have failed.

        The counts and failures are those of the tasks whose output was written: Spark observes them in the
        same job.
        """
        observed = Observation()
        marker = sql.col(MARKER)
        rows = df.mapInArrow(self.task.run, self.task.schema).observe(
            observed,
            sql.count_if(marker.isNull()).alias("rows"),
            sql.sum(f"{MARKER}.items").alias("items"),
            sql.sum(f"{MARKER}.without").alias("without"),
            sql.min(f"{MARKER}.without").alias("known"),
            sql.collect_list(sql.when(sql.col(f"{MARKER}.id").isNotNull(), marker)).alias("failures"),
        )
        rows = rows.where(marker.isNull()).drop(MARKER)
        self.folder.write(rows, number, query_id(df))
        found = observed.get
        failures = [ItemFailure(*(one[name] for name in ItemFailure._fields)) for one in found["failures"]]
        if set_id := self.reader.set_at(self.folder.offset(self.checkpoint, number)):
            self._record(set_id, failures)
        if found["items"]:
            self._count(found, failures)
        if self.progress is not None:
            failed = f", {self.done.retried:,} retried, {self.done.dead:,} dead" * (self.done.failed > 0)
            self.progress(f"batch {number}: {self.done.items:,} items so far{failed}")

    def _record(self, set_id: SetId, failures: Sequence[ItemFailure]) -> None:
        """Record failures; if there are none, forget those of an earlier run of the batch."""
        of_shards: dict[Bulk, list[ItemFailure]] = {bulk: [] for bulk in self.portal.bulks.values()}
        for one in failures:
            of_shards[self.portal.bulk_of(one.id, one.group)].append(one)
        for bulk, some in of_shards.items():
            timed = partial(record, bulk, set_id, retry_timeout=self.reader.retry_timeout)
            for start in range(0, max(1, len(some)), PAGE):
                self.portal.call(partial(timed, some[start : start + PAGE], forget=start == 0))

    def _count(self, found: Mapping[str, Any], failures: Sequence[ItemFailure]) -> None:
        done, dead = self.done, sum(one.delay_ms == DIES for one in failures)
        known = done.without_output is not None and found["known"] >= 0
        self.done = replace(
            done,
            items=done.items + found["items"],
            rows=done.rows + found["rows"],
            retried=done.retried + len(failures) - dead,
            dead=done.dead + dead,
            without_output=(done.without_output or 0) + found["without"] if known else None,
            batches=done.batches + 1,
        )


def _with_needed(stream: DataFrame, given: Mapping[str, str]) -> DataFrame:
    """Return the lease stream with the columns that the run needs, and an option that names its reader."""
    schema = StructType(stream.schema.fields)
    for name in NEEDED:
        if name not in stream.columns:
            schema = schema.add(ITEMS[name])
    return (
        stream.sparkSession.readStream.format(LeasequeueSource.name()).schema(schema).options(**given).load()
    )


def _check_handler(handler: object) -> None:
    """Refuse an async handler, which would fail on an executor, when items are leased."""
    called: Any = handler
    while isinstance(called, partial):
        called = called.func
    called = called if inspect.isroutine(called) else getattr(called, "__call__", None)  # noqa: B004 - its own
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        allowed = "a function without `async`: executors run no event loop; it may call asyncio.run itself"
        raise InvalidArgument("handler", handler, allowed)


def _stream(source: SparkSession | DataFrame, given: dict[str, Any]) -> DataFrame:
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(source, DataFrame):
        if given:
            raise InvalidArgument("options", ", ".join(given), "none with a stream, which has its own")
        return source
    if not isinstance(source, SparkSession):
        raise InvalidArgument("source", source, _SOURCE)
    if not isinstance(given.get("queue"), str):
        raise InvalidArgument("queue", given.get("queue"), "the queue's name")
    register(source)
    if "partitions" not in {name.lower() for name in given}:
        given["partitions"] = min(source.sparkContext.defaultParallelism, MAX_PARTITIONS)
    # `load` would raise an error of Spark.
    LeasesReader({name: to_str(value) or "" for name, value in given.items()}, ITEMS)
    return source.readStream.format(LeasequeueSource.name()).options(**given).load()


def _options(stream: DataFrame) -> dict[str, str]:
    """Return the options of a lease stream.

    Raises:
        InvalidArgument: If it is another table, or more than the stream: a filter would hide items, which
            would be completed unprocessed.
    """
    frame: Any = getattr(stream, "_jdf", None)  # only the plan shows what a table is
    plan = frame and frame.queryExecution().analyzed()
    if plan and plan.nodeName() == "StreamingRelationV2" and plan.sourceName() == LeasequeueSource.name():
        given = {name.lower(): value for name, value in plan.extraOptions().asCaseSensitiveMap().items()}
        if given.get("from", "items").lower() == "items":
            return given
    raise InvalidArgument("source", stream, _SOURCE)


def drain(
    stream: DataFrame, checkpoint: str, write: Callable[[DataFrame, int], None], folder: OutputFolder
) -> None:
    """Call `write` with each micro-batch of a stream until no input is left; stop it when interrupted.

    Raises:
        OutputTakenOver: If another run, which writes into the folder, has stopped the query.
        QueryStopped: If the query was stopped before it had ended.
        LeasequeueError: What `write` raises.
        pyspark.errors.StreamingQueryException: If the query fails in another way.
    """
    errors: list[LeasequeueError] = []

    def guarded(batch: DataFrame, number: int) -> None:
        try:
            write(batch, number)
        except FAILURES as error:
            reason, kind = reason_of(str(error))
            if kind in ("HandlerFailed", "InvalidArgument"):
                errors.append(HandlerFailed(reason))
            if not isinstance(error, PySparkException):
                raise  # Spark gets the exception of Java itself
            # Spark matches the text with a pattern that recurs at each character: a long one, of an error
            # with Java's traceback, ends its thread with a StackOverflowError.
            raise _BatchFailed(_shortened(str(error), reason)) from None
        except LeasequeueError as error:
            errors.append(error)
            text = "".join(traceback.format_exception(error))
            raise _BatchFailed(_shortened(text, f"{type(error).__name__}: {error}")) from None

    writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.foreachBatch(guarded).start()
    try:
        query.awaitTermination()
        if not _has_ended(query):
            folder.check_run()
            raise QueryStopped(query.id)
    except PySparkException as error:
        if errors:
            raise errors[0] from error
        raise
    finally:
        query.stop()


class _BatchFailed(Exception):
    """What Spark gets of an error of a batch: its beginning."""


def _shortened(text: str, reason: str) -> str:
    """Return what Spark has to know of an error: why, or that its thread was interrupted by a stop."""
    found = next((name for name in _INTERRUPTED if name in text), None)
    return f"{_PROXY_ERROR} a batch: {found}" if found else reason[:MAX_REASON]


def _has_ended(query: StreamingQuery) -> bool:
    """Return whether a terminated query had no input left; if it was stopped, it does not know that."""
    execution: Any = query._jsq  # noqa: SLF001 - Spark does not show it in another way
    return bool(execution.streamingQuery().noNewData())


def query_id(batch: DataFrame) -> str:
    """Return the id of the query that a micro-batch belongs to."""
    return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY))
