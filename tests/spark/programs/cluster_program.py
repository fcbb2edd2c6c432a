"""A program for a cluster that fills, reads and drains a queue: `cluster_program QUEUE FOLDER`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

import leasequeue
from leasequeue.spark import add, process, register

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(queue: str, folder: str) -> None:
    """Run it, and print the results as a line of JSON."""
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    rows = spark.range(2_000).select(sql.col("id").cast("string").alias("id"), sql.lit("x").alias("data"))
    report = add(rows.repartition(4), queue)
    waiting = spark.read.format("leasequeue").option("queue", queue).load().where("state = 'waiting'").count()

    def handle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            files = pa.array([leasequeue.__file__] * batch.num_rows)
            yield pa.record_batch({"id": batch.column("id"), "file": files})

    schema = "id string, file string"
    done = process(spark, handle, queue=queue, output=f"{folder}/output", schema=schema, batch=500)
    output = spark.read.parquet(f"{folder}/output")
    files = [row["file"] for row in output.select("file").distinct().collect()]
    result = {
        "added": report.added,
        "waiting": waiting,
        "items": done.items,
        "ids": output.select("id").distinct().count(),
        "rows": output.count(),
        "files": files,
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }
    spark.stop()
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
