"""Drain a queue on a cluster: items are completed when the output of their handler is durable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.observation import Observation
from pyspark.sql.types import StructType

from leasehold.errors import InvalidArgument
from leasehold.spark.leases import LeasesReader
from leasehold.spark.output import OutputFolder
from leasehold.spark.sessions import check_classic
from leasehold.spark.source import LeaseholdSource, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pandas as pd
    import pyarrow as pa

    Batch = TypeVar("Batch", pa.RecordBatch, pd.DataFrame)

#: The local property that holds the id of the running query, which is kept in the checkpoint.
QUERY = "sql.streaming.queryId"
#: The maximum of tasks of a batch.
MAX_PARTITIONS = 10_000
_SOURCE = "a session, with `queue`, or a lease stream as it was loaded, so that no row is hidden"
_SCHEMA = "columns and their types, such as 'id string, size long'"


class ArrowHandler(Protocol):
    """Processes items as Arrow batches."""

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterable[pa.RecordBatch]:
        """Return the rows of the output."""


class PandasHandler(Protocol):
    """Processes items as pandas data frames."""

    def __call__(self, batches: Iterator[pd.DataFrame], /) -> Iterable[pd.DataFrame]:
        """Return the rows of the output."""


@dataclass(frozen=True)
class Processed:
    """The result of a run of `process`.

    Attributes:
        items: How many items were processed and completed.
        batches: How many micro-batches they came in.
        seconds: How long the run took.
    """

    items: int
    batches: int
    seconds: float


def process(  # noqa: PLR0913 - all but the first two are options
    source: SparkSession | DataFrame,
    handler: ArrowHandler | PandasHandler,
    *,
    queue: str | None = None,
    output: str,
    schema: StructType | str,
    checkpoint: str | None = None,
    batch: int | None = None,
    kind: Literal["arrow", "pandas"] = "arrow",
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Processed:
    """Process all waiting items of a queue on the executors, and write the handler's output as Parquet.

        def count(batches):
            for batch in batches:
                sizes = pa.array([len(data.as_py()) for data in batch["data"]])
                yield pa.record_batch({"id": batch["id"], "bytes": sizes})

        done = process(spark, count, queue="files", output="counts", schema="id string, bytes long")

        items = spark.readStream.format("leasehold").option("queue", "files").load()
        done = process(items, count, output="counts", schema="id string, bytes long")  # the same

    Items are leased in batches, renewed while their batch runs, and completed when its output is written and
    in Spark's commit log. A batch that runs again after a crash replaces its output: so each completed item
    is in the output once, even if the handler processed it more than once. The run ends when no item waits;
    run it again with the same folder for items added since.

    An exception of the handler ends the run, and no item of that batch is completed. Its items stay leased to
    this checkpoint for the lease time: the next run starts with them, or their leases expire and other
    workers get them. So a handler should catch errors that concern one item, and write them into the output.
    A handler that leaves batches unread also ends the run: their items would be completed unprocessed.

    Args:
        source: The session, with `queue`; or a lease stream, from `spark.readStream.format("leasehold")`
            with options.
        handler: The function that processes items, as for `DataFrame.mapInArrow` or `mapInPandas`: takes an
            iterator of batches with the stream's columns (`id`, `data`, …), yields batches of the output.
        queue: The queue's name; None if `source` is a stream.
        output: A folder on any file system that Spark supports. It gets a folder for each batch and reads as
            one table: `spark.read.parquet(output)`, with the additional column `batch`.
        schema: The columns that the handler yields, as a DDL string or a type.
        checkpoint: The folder where the run stores its position. None: the folder `_checkpoint` in `output`.
        batch: The maximum of items in a batch; None: 10,000, or the stream's `maxRows`.
        kind: Whether the handler takes and yields Arrow batches or pandas data frames.
        progress: Called with a line of text after each batch.
        **options: Options of the stream, such as `url`, `leaseTime` in seconds, and `partitions`, by default
            the number of the session's cores. None are allowed if `source` is a stream.

    Raises:
        InvalidArgument: If an argument cannot be used, the session is one of Spark Connect, the queue does
            not exist, or `output` was written with another checkpoint or from another queue.
        ServerError: If the server does not answer when a new checkpoint is created.
        pyspark.errors.StreamingQueryException: If the handler, the server or the file system fails, or
            another run takes over.
    """
    check_classic(source, "process")
    if kind not in ("arrow", "pandas"):
        raise InvalidArgument("kind", kind, "'arrow' or 'pandas'")
    columns = _columns(schema)
    stream = _stream(source, {"queue": queue, "maxRows": batch} | options)
    reader = LeasesReader(_options(stream), stream.schema)
    folder = OutputFolder(stream.sparkSession, output)
    location = checkpoint or folder.default_checkpoint
    if (other := folder.offset(location).get("queue", reader.queue)) != reader.queue:
        name, given = ("checkpoint", checkpoint) if checkpoint else ("output", output)
        allowed = f"a new folder, or one of the queue {reader.queue!r}; this is one of {other!r}"
        raise InvalidArgument(name, given, allowed)
    if not folder.check_checkpoint(location):
        reader.check_queue()
    began, items, batches = time.monotonic(), 0, 0

    def write(df: DataFrame, number: int) -> None:
        nonlocal items, batches
        observed = Observation()
        counted = df.observe(observed, sql.count(sql.lit(1)).alias("items"))
        run: Any = counted.mapInPandas if kind == "pandas" else counted.mapInArrow
        folder.write(run(partial(_read_all, handler), columns), number, query_id(df))
        if count := observed.get["items"]:
            items, batches = items + count, batches + 1
        if progress is not None:
            progress(f"batch {number}: {items:,} items so far")

    drain(stream, location, write)
    return Processed(items, batches, time.monotonic() - began)


def _stream(source: SparkSession | DataFrame, given: dict[str, Any]) -> DataFrame:
    """Return the lease stream to process."""
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
    return source.readStream.format(LeaseholdSource.name()).options(**given).load()


def _options(stream: DataFrame) -> dict[str, str]:
    """Return the options of a lease stream.

    Raises:
        InvalidArgument: If it is another table, or more than the stream: a filter would hide items, which
            would be completed unprocessed.
    """
    frame: Any = getattr(stream, "_jdf", None)  # only the plan shows what a table is
    plan = frame and frame.queryExecution().analyzed()
    if plan and plan.nodeName() == "StreamingRelationV2" and plan.sourceName() == LeaseholdSource.name():
        given = {name.lower(): value for name, value in plan.extraOptions().asCaseSensitiveMap().items()}
        if given.get("from", "items").lower() == "items":
            return given
    raise InvalidArgument("source", stream, _SOURCE)


def _read_all(
    handler: Callable[[Iterator[Batch]], Iterable[Batch]], batches: Iterator[Batch]
) -> Iterator[Batch]:
    """Run a handler and check that it reads all its batches; runs on an executor."""
    yield from handler(batches)
    if unread := sum(map(len, batches)):
        allowed = f"one that reads all its batches: {unread} items left unread would be completed unprocessed"
        raise InvalidArgument("handler", handler, allowed)


def _columns(schema: StructType | str) -> StructType:
    if isinstance(schema, StructType):
        return schema
    try:
        columns = StructType.fromDDL(schema)
    except PySparkException as error:
        raise InvalidArgument("schema", schema, _SCHEMA) from error
    if not isinstance(columns, StructType):
        raise InvalidArgument("schema", schema, _SCHEMA)
    return columns


def drain(stream: DataFrame, checkpoint: str, write: Callable[[DataFrame, int], None]) -> None:
    """Call `write` with each micro-batch of a stream until no input is left; stop it when interrupted."""
    writer = stream.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query = writer.foreachBatch(write).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def query_id(batch: DataFrame) -> str:
    """Return the id of the query that a micro-batch belongs to."""
    return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY))
