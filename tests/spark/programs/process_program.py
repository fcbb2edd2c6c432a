"""A slow run of `process`: `process_program URL QUEUE FOLDER ROWS`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from leasehold.spark import process
from tests.spark.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator


def main(url: str, queue: str, folder: str, rows: str) -> None:
    """Drain the queue."""
    spark = quick_session(Path(folder), "local[2]")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # it runs
    Path(folder, "jvm").write_text(str(jvm))

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(0.3)  # time to kill it
            lengths = [len(data.as_py()) for data in batch.column("data")]
            yield pa.record_batch({"id": batch.column("id"), "length": pa.array(lengths, pa.int64())})

    output, schema = f"{folder}/output", "id string, length long"
    process(spark, measure, output=output, schema=schema, queue=queue, url=url, batch=int(rows))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
