"""Draining a queue on a cluster: items are completed when what a handler made of them is durable."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import functions as sql
from pyspark.sql.observation import Observation
from pyspark.sql.types import StructType

from leasehold.errors import InvalidArgument
from leasehold.spark.durable import Folder
from leasehold.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

#: What Spark knows the running query by: its id is kept in the checkpoint.
QUERY = "sql.streaming.queryId"
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


def process(  # noqa: PLR0913 - all but the first three are options
    spark: SparkSession,
    handler: ArrowHandler | PandasHandler,
    *,
    queue: str,
    output: str,
    schema: StructType | str,
    checkpoint: str | None = None,
    batch: int = 10_000,
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

    Items are leased in batches, renewed while their batch is worked on, and completed when its output is
    written and in Spark's commit log. A batch that runs again, after a crash, replaces its output: so each
    item that is completed is in the output once, though the handler may have seen it more than once. It ends
    when nothing waits any more; run it again, with the same folder, for what has come since.

    An exception of the handler ends the run, and nothing of that batch is completed. Its items stay leased to
    this checkpoint for the lease time: the next run begins with them, or they lapse and others get them.
    So a handler should catch what concerns one item, and write it into the output.

    Args:
        spark: The session.
        handler: What works on items, as for `DataFrame.mapInArrow` or `mapInPandas`: takes an iterator of
            batches with the columns of the stream (`id`, `data`, …), yields batches of the output.
        queue: The queue's name.
        output: A folder, on any file system that Spark knows. It gets a folder for each batch and reads as
            one table: `spark.read.parquet(output)`, with the column `batch` in addition.
        schema: The columns that the handler yields, as a DDL string or a type.
        checkpoint: Where the run keeps how far it is. None: the folder `_checkpoint` in `output`.
        batch: The most items of a batch.
        kind: Whether the handler takes and yields Arrow batches or pandas data frames.
        tell: Is called with a line of text after each batch.
        **options: Options of the stream, such as `url`, `leaseTime` in seconds, `partitions`.

    Raises:
        InvalidArgument: If an argument cannot be used, or `output` was written with another checkpoint.
        pyspark.errors.StreamingQueryException: If the handler, the server or the file system fails.
    """
    if kind not in ("arrow", "pandas"):
        raise InvalidArgument("kind", kind, "'arrow' or 'pandas'")
    columns = _columns(schema)
    register(spark)
    folder, place = Folder(spark, output), checkpoint or f"{output.rstrip('/')}/_checkpoint"
    folder.check_checkpoint(place)
    began, counted = time.monotonic(), _Counted()

    def write(df: DataFrame, number: int) -> None:
        items = Observation()
        seen = df.observe(items, sql.count(sql.lit(1)).alias("items"))
        run: Any = seen.mapInPandas if kind == "pandas" else seen.mapInArrow
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY)
        folder.write(run(handler, columns), number, str(query))
        counted.add(items.get["items"])
        if tell is not None:
            tell(f"batch {number}: {counted.items:,} items so far")

    stream = spark.readStream.format("leasehold").options(queue=queue, maxRows=batch, **options).load()
    query = (
        stream.writeStream.option("checkpointLocation", place)
        .trigger(availableNow=True)
        .foreachBatch(write)
        .start()
    )
    wait(query)
    return Processed(counted.items, counted.batches, time.monotonic() - began)


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
