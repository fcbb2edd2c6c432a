"""The job `redrive`: dead letters that a condition chooses, back into the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from leasehold.spark.jobs.command import main
from leasehold.spark.jobs.load import Queue  # noqa: TC001 - the annotations are read
from leasehold.spark.jobs.session import Cluster, Tell, Url, place, silent
from leasehold.spark.options import Options
from leasehold.spark.portal import open_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.spark.options import Target

#: What of a snapshot is brought; the data only if the condition looks at it.
_COLUMNS = "id string, state string, size long, attempt int, token long, age double, error string"


def redrive(
    spark: SparkSession,
    queue: Queue,
    *,
    where: Annotated[
        str | None,
        "Which: a condition in SQL over id, data, size, attempt, token, age (seconds) and error.",
    ] = None,
    dry_run: Annotated[bool, "Only count which they are."] = False,
    url: Url = None,
    cluster: Cluster = False,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Put dead letters back to the end of the queue, to be tried anew; without a condition all of them.

    One whose id has been added again since it died cannot go back: it stays a dead letter, and the item
    of its id is left alone.

    Returns:
        `chosen`, `requeued`, `stayed` (chosen, and not requeued) and `already_there`: those of them that stay
        because an item with their id is in the queue. The others were dropped or requeued by somebody else
        meanwhile. If a task ran twice, what its first run requeued is counted among those that stayed.
        After a dry run only `chosen`, and `dry_run`.

    Raises:
        pyspark.errors.AnalysisException: If the condition is none; nothing was requeued.
        pyspark.errors.PySparkException: If the server fails; what went back until then stays there.
    """
    with place(url, cluster=cluster) as server:
        given = {"queue": queue, **server}
        target = Options(given, ()).target()
        columns = _COLUMNS + (", data string" if where and "data" in where.lower() else "")
        snapshot = spark.read.format("leasehold").options(**given).schema(columns).load()
        chosen = snapshot.where("state = 'dead'")
        if where:
            chosen = chosen.where(where)
        tell(f"looking for dead letters of {queue}")
        if dry_run:
            return {"queue": queue, "chosen": chosen.count(), "dry_run": True}
        went = chosen.select("id").mapInArrow(_requeue(target), "chosen long, requeued long, there long")
        sums = went.agg(*(sql.coalesce(sql.sum(name), sql.lit(0)) for name in went.columns)).collect()
        total, requeued, there = sums[0]
    return {
        "queue": queue,
        "chosen": total,
        "requeued": requeued,
        "stayed": total - requeued,
        "already_there": there,
    }


def _requeue(target: Target) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What executors do with the ids."""

    def requeue(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open_queue(target) as portal:
            for batch in batches:
                ids = [item_id.encode() for item_id in batch.column("id").to_pylist()]
                answers = portal.call(portal.bulk.requeue, ids)
                counts = {
                    "chosen": len(ids),
                    "requeued": answers.count(1),
                    "there": answers.count(-1),
                }
                yield pa.record_batch({name: pa.array([count]) for name, count in counts.items()})

    return requeue


if __name__ == "__main__":
    main(redrive)
