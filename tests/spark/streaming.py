"""Open and run streams in tests, and open queues in code that Spark calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.spark.options import QueueTarget
from leasequeue.spark.portal import open_queue

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from leasequeue import AsyncWorkQueue
    from leasequeue.spark.portal import QueuePortal

#: The rows of a batch, by the batch's number.
Batches = list[tuple[int, "list[Row]"]]


def stream(spark: SparkSession, queue: AsyncWorkQueue, /, **options: Any) -> DataFrame:
    """Open the stream of a queue."""
    given = {"url": queue.url, "queue": queue.name, **options}
    return spark.readStream.format("leasequeue").options(**given).load()


def drained(
    rows: DataFrame,
    checkpoint: Path,
    *,
    after_batch: Callable[[int], object] = lambda _: None,
    **trigger: Any,
) -> Batches:
    """Run a query until it ends, and return its batches."""
    batches: Batches = []

    def take(batch: DataFrame, number: int) -> None:
        batches.append((number, batch.collect()))
        after_batch(number)

    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    writer.trigger(**trigger or {"availableNow": True}).start().awaitTermination()
    return batches


def running(rows: DataFrame, checkpoint: Path, take: Callable[[DataFrame, int], None]) -> StreamingQuery:
    """Start a query that runs until it is stopped."""
    return rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()


def elsewhere(queue: AsyncWorkQueue) -> AbstractContextManager[QueuePortal]:
    """Open a queue for code that is not in the test's event loop."""
    assert queue.url is not None
    return open_queue(QueueTarget(queue.name, queue.url))


def ids(batches: Batches) -> list[str]:
    """Return the ids of all rows, sorted."""
    return sorted(row["id"] for _, rows in batches for row in rows)
