"""How far a stream is behind its queue, as Spark's listeners see it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from leasequeue import Item
from leasequeue.spark import StreamBacklog, backlogs
from tests.eventually import eventually
from tests.spark.read.test_leases import fill
from tests.spark.streaming import drained, stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

    from leasequeue import AsyncWorkQueue


class Watch(StreamingQueryListener):
    """Collects the reports of all queries."""

    def __init__(self) -> None:
        self.reports: list[StreamingQueryProgress] = []

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self.reports.append(event.progress)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - as above
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - as above
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - as above
        """Do nothing."""


async def test_a_listener_sees_what_is_left_after_each_batch(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    await fill(queue, 25)
    await queue.add_item(Item(b"", id="later"), delay=3600)
    watch = Watch()
    spark.streams.addListener(watch)
    try:
        await asyncio.to_thread(drained, stream(spark, queue, maxItemsPerTrigger=10), tmp_path / "items")
        await eventually("each batch is reported", lambda: len(watch.reports) == 3)
        events = stream(spark, queue, maxEventsPerTrigger=60, **{"from": "events"})
        await asyncio.to_thread(drained, events, tmp_path / "events")
        await eventually("each batch is reported", lambda: len(watch.reports) == 5)
    finally:
        spark.streams.removeListener(watch)
    found = [backlog for report in watch.reports for backlog in backlogs(report)]
    assert [one.queue for one in found] == [queue.name] * 5
    assert [(one.rows, one.behind, one.leased) for one in found] == [
        *((10, 15, 10), (10, 5, 10), (5, 0, 5)),
        *((60, 16, None), (16, 0, None)),  # added, leased and completed, and the delayed one
    ]
    assert [(one.scheduled, one.dead) for one in found] == [(1, 0)] * 3 + [(None, None)] * 2
    assert all(one.processed_rows_per_second > 0 for one in found)
    assert found[1].seconds == 5 / found[1].processed_rows_per_second
    assert (found[2].seconds, StreamBacklog("q", 5, 0, 0, 0).seconds) == (0, None)
    assert [source.metrics for report in watch.reports for source in report.sources] == [{}] * 5


def test_spark_takes_no_metrics_from_sources_in_python(spark: SparkSession) -> None:
    """If this fails, a newer Spark does: then report the counts as metrics, too."""
    jvm: Any = spark._jvm

    def java(name: str) -> Any:
        return jvm.org.apache.spark.util.Utils.classForName(f"org.apache.spark.sql.{name}", True, False)

    python = "execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow"
    assert java("connector.read.streaming.SupportsAdmissionControl").isAssignableFrom(java(python))
    assert not java("connector.read.streaming.ReportsSourceMetrics").isAssignableFrom(java(python))
