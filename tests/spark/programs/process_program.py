"""A slow run of `process`: `process_program URL QUEUE FOLDER ROWS`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from leasequeue.spark import process
from tests.spark.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator


#: The outcomes of items by the last digit of their ids.
OUTCOMES = {"3": "retry", "7": "reject"}


def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the length of the data of most items."""
    for batch in batches:
        outcomes = [OUTCOMES.get(item_id[-1]) for item_id in batch["id"].to_pylist()]
        lengths = [len(data.as_py()) for data in batch["data"]]
        columns = {"id": batch["id"], "length": lengths, "_outcome": outcomes}
        yield pa.record_batch(columns | {"_delay": [3600.0] * batch.num_rows})


def main(url: str, queue: str, folder: str, rows: str) -> None:
    """Drain the queue."""
    spark = quick_session(Path(folder), "local[2]")
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # it runs
    Path(folder, "jvm").write_text(str(jvm))

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in measure(batches):
            time.sleep(0.3)  # time to kill it
            yield batch

    output, schema = f"{folder}/output", "id string, length long"
    process(spark, slow, output=output, schema=schema, queue=queue, url=url, batch=int(rows))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
