"""A query that drains a queue into Parquet, batch by batch: `drain_program URL QUEUE FOLDER ROWS`.

What a batch writes replaces what it wrote before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.programs.faults import FaultySource, inject, place
from tests.spark.quick import quick_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def session(folder: str) -> SparkSession:
    """Start Spark, and note the process ids of the driver and its JVM."""
    spark = quick_session(Path(folder), "local[2,4]")  # a task has four attempts
    note("driver", os.getpid())
    note("jvm", spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]  # it runs
    return spark


def main(url: str, queue: str, folder: str, rows: str) -> None:
    spark = session(folder)
    spark.dataSource.register(FaultySource)

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/out/batch={batch_id}")
        # The source counts from one, Spark from zero.
        inject("after_write", batch_id + 1)

    stream = (
        spark.readStream.format("leasequeue").options(url=url, queue=queue, maxItemsPerTrigger=rows).load()
    )
    query = (
        stream.select("id", "data", "token")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def note(victim: str, pid: int) -> None:
    """Note a process id, in one step."""
    draft = place() / f"pid-{victim}.draft"
    draft.write_text(str(pid))
    draft.rename(Path(place() / f"pid-{victim}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
