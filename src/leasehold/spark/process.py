"""Draining a queue on a cluster: items are completed when what a handler made of them is durable."""

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
from leasehold.spark.source import LeaseholdSource, register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pandas as pd
    import pyarrow as pa

    Batch = TypeVar("Batch", pa.RecordBatch, pd.DataFrame)

#: What Spark knows the running query by: its id is kept in the checkpoint.
QUERY = "sql.streaming.queryId"
#: The most tasks of a batch.
MAX_PARTS = 10_000
_SOURCE = "a session with a queue's name, or a stream of leases as it was loaded: every row has to come"
_SCHEMA = "columns and their types, as 'id string, size long'"


class ArrowHandler(Protocol):
    """Works on items as Arrow batches."""

    def __call__(self, batches: Iterator[pa.RecordBatch], /) -> Iterable[pa.RecordBatch]:
        """Give the rows of the output."""


class PandasHandler(Protocol):
    """Works on items as pandas data frames."""

    def __call__(self, batches: Iterator[pd.DataFrame], /) -> Iterable[pd.DataFrame]:
        """Give the rows of the output."""


@dataclass(frozen=True)
class Processed:
    """What a run of `process` has done.

    Attributes:
        items: How many items were worked on and completed.
        batches: In how many micro-batches.
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
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Processed:
    """Work on all items that wait in a queue, on the executors, and write what comes of them as Parquet.

        def count(batches):
            for batch in batches:
                sizes = pa.array([len(data.as_py()) for data in batch["data"]])
                yield pa.record_batch({"id": batch["id"], "bytes": sizes})

        done = process(spark, count, queue="files", output="counts", schema="id string, bytes long")

        items = spark.readStream.format("leasehold").option("queue", "files").load()
        done = process(items, count, output="counts", schema="id string, bytes long")  # the same

    Items are leased in batches, renewed while their batch is worked on, and completed when its output is
    written and in Spark's commit log. A batch that runs again, after a crash, replaces its output: so each
    item that is completed is in the output once, though the handler may have seen it more than once. It ends
    when nothing waits any more; run it again, with the same folder, for what has come since.

    An exception of the handler ends the run, and nothing of that batch is completed. Its items stay leased to
    this checkpoint for the lease time: the next run begins with them, or they expire and others get them.
    So a handler should catch what concerns one item, and write it into the output. A handler that leaves some
    of its batches unread ends the run, too: their items would be completed though nobody has seen them.

    Args:
        source: The session, with `queue`; or a stream of leases, as `spark.readStream.format("leasehold")`
            and options make it.
        handler: What works on items, as for `DataFrame.mapInArrow` or `mapInPandas`: takes an iterator of
            batches with the columns of the stream (`id`, `data`, …), yields batches of the output.
        queue: The queue's name; None with a stream, which has it.
        output: A folder, on any file system that Spark knows. It gets a folder for each batch and reads as
            one table: `spark.read.parquet(output)`, with the column `batch` in addition.
        schema: The columns that the handler yields, as a DDL string or a type.
        checkpoint: Where the run keeps how far it is. None: the folder `_checkpoint` in `output`.
        batch: The most items of a batch; None: 10,000, or what the stream says.
        kind: Whether the handler takes and yields Arrow batches or pandas data frames.
        tell: Is called with a line of text after each batch.
        **options: Options of the stream, such as `url`, `leaseTime` in seconds, `partitions`, by default as
            many as the session's cores. Not with a stream, which has its own.

    Raises:
        InvalidArgument: If an argument cannot be used, there is no such queue, or `output` was written with
            another checkpoint or from another queue.
        ServerError: If the server does not answer when a new checkpoint is begun.
        pyspark.errors.StreamingQueryException: If the handler, the server or the file system fails, or
            another run takes over.
    """
    if kind not in ("arrow", "pandas"):
        raise InvalidArgument("kind", kind, "'arrow' or 'pandas'")
    columns = _columns(schema)
    stream = _stream(source, {"queue": queue, "maxRows": batch} | options)
    reader = LeasesReader(_options(stream), stream.schema)
    folder, place = (
        OutputFolder(stream.sparkSession, output),
        checkpoint or f"{output.rstrip('/')}/_checkpoint",
    )
    if (theirs := folder.offset(place).get("queue", reader.queue)) != reader.queue:
        name, given = ("checkpoint", checkpoint) if checkpoint else ("output", output)
        allowed = f"a new folder, or one of the queue {reader.queue!r}; this is of {theirs!r}"
        raise InvalidArgument(name, given, allowed)
    if not folder.check_checkpoint(place):
        reader.check_queue()
    began, counted = time.monotonic(), _Counted()

    def write(df: DataFrame, number: int) -> None:
        items = Observation()
        seen = df.observe(items, sql.count(sql.lit(1)).alias("items"))
        run: Any = seen.mapInPandas if kind == "pandas" else seen.mapInArrow
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY)
        folder.write(run(partial(_all_of, handler), columns), number, str(query))
        counted.add(items.get["items"])
        if tell is not None:
            tell(f"batch {number}: {counted.items:,} items so far")

    query = (
        stream.writeStream.option("checkpointLocation", place)
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    wait(query)
    return Processed(counted.items, counted.batches, time.monotonic() - began)


def _stream(source: SparkSession | DataFrame, given: dict[str, Any]) -> DataFrame:
    """The stream of leases that is meant."""
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
        given["partitions"] = min(source.sparkContext.defaultParallelism, MAX_PARTS)
    return source.readStream.format(LeaseholdSource.name()).options(**given).load()


def _options(stream: DataFrame) -> dict[str, str]:
    """The options of a stream of leases.

    Raises:
        InvalidArgument: If it is another table, or is more than the stream: a filter would hide items, which
            would be completed all the same.
    """
    frame: Any = getattr(stream, "_jdf", None)  # there is no other way to see what a table is
    plan = frame and frame.queryExecution().analyzed()
    if plan and plan.nodeName() == "StreamingRelationV2" and plan.sourceName() == LeaseholdSource.name():
        given = {name.lower(): value for name, value in plan.extraOptions().asCaseSensitiveMap().items()}
        if given.get("from", "items").lower() == "items":
            return given
    raise InvalidArgument("source", stream, _SOURCE)


def _all_of(
    handler: Callable[[Iterator[Batch]], Iterable[Batch]], batches: Iterator[Batch]
) -> Iterator[Batch]:
    """What a handler makes of its batches; on an executor. It has to read all of them."""
    yield from handler(batches)
    if unread := sum(map(len, batches)):
        allowed = f"one that reads all its batches: it left {unread} items, which would be completed unseen"
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


def wait(query: Any) -> None:
    """Wait for the end of a query, and stop it if that is interrupted."""
    try:
        query.awaitTermination()
    finally:
        query.stop()


class _Counted:
    """What the batches of a run add up to."""

    def __init__(self) -> None:
        self.items = self.batches = 0

    def add(self, items: int) -> None:
        self.items += items
        self.batches += 1 if items else 0
