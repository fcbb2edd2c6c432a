"""Tables for the tests, and writers of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F  # noqa: N812 - its usual name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter

    from leasequeue import AsyncWorkQueue


def numbered(spark: SparkSession, count: int, *, partitions: int = 2, size: int = 20) -> DataFrame:
    """Make a table of ids i0, i1, … with `size` bytes of data each."""
    data = F.rpad(F.concat(F.lit("data of "), F.col("id")), size, ".").cast("binary")
    return spark.range(0, count, 1, partitions).select(
        F.concat(F.lit("i"), F.col("id")).alias("id"), data.alias("data")
    )


def names(count: int) -> set[str]:
    """Return the ids of `numbered`."""
    return {f"i{number}" for number in range(count)}


def writer(df: DataFrame, queue: AsyncWorkQueue, /, **options: Any) -> DataFrameWriter:
    """Return a writer into a queue."""
    given = {"url": queue.url, "queue": queue.name, **options}
    return df.write.format("leasequeue").options(**given).mode("append")


async def waiting(queue: AsyncWorkQueue) -> dict[str, bytes]:
    """Return the data of all waiting items by id."""
    found: dict[str, bytes] = {}
    for shard in queue.shards:
        start = 0
        while views := await shard.inspect("waiting", start=start, count=1000):
            start += len(views)
            found |= {view.id: view.data or b"" for view in views}
    return found
