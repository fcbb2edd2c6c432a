"""A driver that adds a table in bulk, for tests with faults.

    python write_program.py '{"url": …, "queue": …, "rows": …, "place": …, "fault": …}'

`faults` says what the first attempt of each task does after some batches: "" nothing, "wait" waits until the
file `place/go` is there, "fail" waits and fails, "slow" takes its time. Its last line is its report.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from leasequeue.spark import add
from tests.spark.quick import quick_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

#: Rows in a batch, and batches before the fault.
BATCH_ROWS, BATCHES_BEFORE = 500, 6


def main(asked: dict[str, Any]) -> None:
    """Add the table, and print the report."""
    place, fault = Path(asked["place"]), asked["fault"]

    def with_fault(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == BATCHES_BEFORE and task.attemptNumber() == 0 and fault in ("wait", "fail"):
                while not (place / "go").exists():
                    time.sleep(0.01)
                if fault == "fail":
                    raise RuntimeError("as the test wants")
            if fault == "slow":
                time.sleep(0.6)
            yield batch

    spark = quick_session(place, "local[2,3]")  # a task has three attempts
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH_ROWS)
    ids = spark.range(0, asked["rows"], 1, 2).selectExpr("concat('i', id) as id", "repeat('x', 200) as data")
    table = ids.mapInArrow(with_fault, "id string, data string")
    # The fault is for the tasks that add; the check of all rows would meet it first.
    report = add(table, asked["queue"], check=False, url=asked["url"], **asked.get("options", {}))
    sys.stdout.write(f"{json.dumps(asdict(report))}\n")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
