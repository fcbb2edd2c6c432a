"""The job `archive`: the kept events of a queue as Parquet, each once, going on where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from leasehold.spark.jobs.command import main
from leasehold.spark.jobs.load import Queue  # noqa: TC001 - the annotations are read
from leasehold.spark.jobs.session import Cluster, Tell, Url, place, silent
from leasehold.spark.output import OutputFolder
from leasehold.spark.process import QUERY, wait

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def archive(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    queue: Queue,
    output: Annotated[str, "The folder of the archive, on any file system that Spark knows."],
    *,
    checkpoint: Annotated[str | None, "Where it keeps how far it is; else in the archive."] = None,
    batch: Annotated[int, "The most events that are written at once."] = 100_000,
    allow_loss: Annotated[bool, "Go on if events were dropped before they were archived."] = False,
    url: Url = None,
    cluster: Cluster = False,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Write the kept events of a queue into an archive: those that are there, and that it does not have yet.

    The archive is Parquet with a folder for each batch and, in that, for each date in UTC. It reads as one
    table: `spark.read.parquet(output)`, with `batch` and `date` as columns. Each event is in it once,
    whatever crashes: a batch that is repeated replaces what it wrote.

    Returns:
        `events`: how many this run has added; `batches`; `first` and `last`: their numbers.

    Raises:
        InvalidArgument: If the archive was written with another checkpoint, or from another queue.
        pyspark.errors.StreamingQueryException: If the queue keeps no events, or not those that are next.
    """
    folder, kept = OutputFolder(spark, output), checkpoint or f"{output.rstrip('/')}/_checkpoint"
    folder.check_checkpoint(kept)
    done: dict[str, Any] = {"queue": queue, "events": 0, "batches": 0, "first": None, "last": None}

    def write(events: DataFrame, number: int) -> None:
        events.persist()
        try:
            count, first, last = events.agg(
                sql.count("number"), sql.min("number"), sql.max("number")
            ).collect()[0]
            query = str(events.sparkSession.sparkContext.getLocalProperty(QUERY))
            # Not `to_date`, which goes by the session's time zone.
            day = sql.date_from_unix_date(sql.floor(sql.unix_seconds("at") / 86_400).cast("int"))
            folder.write(events.withColumn("date", day), number, query, "date")
        finally:
            events.unpersist()
        if count:
            done.update(events=done["events"] + count, batches=done["batches"] + 1, last=last)
            done["first"] = first if done["first"] is None else done["first"]
            tell(f"{done['events']:,} events, up to number {last}")

    tell(f"reading the events of {queue}")
    with place(url, cluster=cluster) as where:
        events = (
            spark.readStream.format("leasehold")
            .options(**where, queue=queue, maxRows=batch, failOnLoss=not allow_loss)
            .option("from", "events")
            .load()
        )
        wait(
            events.writeStream.option("checkpointLocation", kept)
            .trigger(availableNow=True)
            .foreachBatch(write)
            .start()
        )
    return done


if __name__ == "__main__":
    main(archive)
