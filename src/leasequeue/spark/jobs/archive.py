"""The job `archive`: write the kept events of a queue as Parquet, each once; a later run adds new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from leasequeue.spark.jobs.session import no_progress
from leasequeue.spark.options import server_options
from leasequeue.spark.process.output import OutputFolder
from leasequeue.spark.process.processing import drain, query_id
from leasequeue.spark.sessions import check_classic
from leasequeue.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasequeue.spark.jobs.session import Progress


def archive(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    queue: str,
    output: str,
    *,
    checkpoint: str | None = None,
    batch: int = 100_000,
    allow_loss: bool = False,
    url: str | None = None,
    cluster: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the kept events of a queue that an archive does not have yet into the archive.

    The archive is Parquet, with a folder for each batch and, in it, one for each date in UTC. It reads as one
    table: `spark.read.parquet(output)`, with `batch` and `date` as columns. Each event is in it once, also
    after crashes: a repeated batch replaces its earlier output.

    Args:
        spark: The session.
        queue: The queue's name.
        output: The folder of the archive, on any file system that Spark supports.
        checkpoint: The folder where the run stores its position; None: `_checkpoint` in the archive.
        batch: The maximum of events of one batch.
        allow_loss: Whether to continue if events were dropped before they were archived.
        url: The server's URL; None: that of the environment, or this machine's default port.
        cluster: Whether the server is a node of a cluster.
        progress: Called with a few words about each step.

    Returns:
        `events`: how many this run added; `batches`; `first` and `last`: their numbers.

    Raises:
        InvalidArgument: If the session is one of Spark Connect, or the archive was written with another
            checkpoint or from another queue.
        pyspark.errors.StreamingQueryException: If the queue keeps no events, or no longer has the next ones.
    """
    check_classic(spark, "archive")
    register(spark)
    folder = OutputFolder(spark, output)
    location = checkpoint or folder.default_checkpoint
    folder.check_checkpoint(location)
    done: dict[str, Any] = {"queue": queue, "events": 0, "batches": 0, "first": None, "last": None}

    def write(events: DataFrame, number: int) -> None:
        events.persist()
        try:
            count, first, last = events.agg(
                sql.count("number"), sql.min("number"), sql.max("number")
            ).collect()[0]
            # `to_date` would use the session's time zone.
            day = sql.date_from_unix_date(sql.floor(sql.unix_seconds("at") / 86_400).cast("int"))
            folder.write(events.withColumn("date", day), number, query_id(events), "date")
        finally:
            events.unpersist()
        if count:
            done.update(events=done["events"] + count, batches=done["batches"] + 1, last=last)
            done["first"] = first if done["first"] is None else done["first"]
            progress(f"{done['events']:,} events, up to number {last}")

    progress(f"reading the events of {queue}")
    with server_options(url, cluster=cluster) as server:
        events = (
            spark.readStream.format("leasequeue")
            .options(**server, queue=queue, maxEventsPerTrigger=batch, failOnLoss=not allow_loss)
            .option("from", "events")
            .load()
        )
        drain(events, location, write, folder)
    return done
