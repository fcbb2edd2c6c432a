"""The job `redrive`: requeue the dead letters that match a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from leasequeue.spark.jobs.session import no_progress
from leasequeue.spark.options import FormatOptions, server_options
from leasequeue.spark.portal import check_server, open_queue
from leasequeue.spark.schema import ITEMS
from leasequeue.spark.source import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.jobs.session import Progress
    from leasequeue.spark.options import QueueTarget

#: The columns of the snapshot, with the data as text, which are read only if the condition uses them.
_COLUMNS = StructType(
    [
        StructField("data", StringType()) if one.name == "data" else one
        for one in ITEMS
        if one.name not in ("holder", "due")
    ]
)
#: The counts of a task.
_COUNTS = "chosen long, requeued long, already_there long"


def redrive(
    spark: SparkSession,
    queue: str,
    *,
    where: str | None = None,
    dry_run: bool = False,
    url: str | None = None,
    cluster: bool = False,
    codec: str | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Requeue dead letters at the end of the queue, where they are tried again.

    A dead letter whose id has been added again since it died cannot be requeued: it stays, and the new item
    is left alone.

    Args:
        spark: The session.
        queue: The queue's name.
        where: Which dead letters: a condition in SQL over id, data, size, attempt, token, age (in
            seconds), error, priority and group; None: all.
        dry_run: Whether only to count them.
        url: The server's URL; None: that of the environment, or this machine's default port.
        cluster: Whether the server is a node of a cluster.
        codec: Where executors import the codec of the queue from, `module:name`; None: it has none.
        progress: Called with a few words about each step.

    Returns:
        `chosen`, `requeued`, `stayed` (chosen but not requeued), and `already_there`: those that stayed
        because an item with their id is in the queue. Another client dropped or requeued the others in
        between. If a task ran twice, those that its first run requeued are counted in `stayed`. After a dry
        run only `chosen` and `dry_run`.

    Raises:
        pyspark.errors.AnalysisException: If the condition is invalid; nothing was requeued.
        pyspark.errors.PySparkException: If the server fails; dead letters requeued before stay requeued.
    """
    register(spark)
    with server_options(url, cluster=cluster, codec=codec) as server:
        given = {"queue": queue, **server}
        target, _ = check_server(FormatOptions(given, ()).target())
        with_data = where is not None and "data" in where.lower()
        columns = StructType([one for one in _COLUMNS if with_data or one.name != "data"])
        dead = spark.read.format("leasequeue").options(**given, states="dead").schema(columns).load()
        chosen = dead.where(where) if where else dead
        progress(f"looking for dead letters of {queue}")
        if dry_run:
            return {"queue": queue, "chosen": chosen.count(), "dry_run": True}
        counts = chosen.select("id", "group").mapInArrow(_requeue(target), _COUNTS)
        sums = counts.agg(*(sql.coalesce(sql.sum(name), sql.lit(0)) for name in counts.columns)).collect()
        total, requeued, already_there = sums[0]
    return {
        "queue": queue,
        "chosen": total,
        "requeued": requeued,
        "stayed": total - requeued,
        "already_there": already_there,
    }


def _requeue(target: QueueTarget) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def requeue(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open_queue(target) as portal:
            for batch in batches:
                of_shards: dict[Bulk, list[bytes]] = {}
                for item_id, group in zip(*batch.to_pydict().values(), strict=True):
                    of_shards.setdefault(portal.bulk_of(item_id, group), []).append(item_id.encode())
                answers = [one for bulk, ids in of_shards.items() for one in portal.call(bulk.requeue, ids)]
                counts = {
                    "chosen": batch.num_rows,
                    "requeued": answers.count(1),
                    "already_there": answers.count(-1),
                }
                yield pa.record_batch({name: pa.array([count]) for name, count in counts.items()})

    return requeue
