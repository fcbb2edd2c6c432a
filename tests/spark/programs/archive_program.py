"""The job `archive`, which kills a process at a step of a batch: `archive_program URL QUEUE FOLDER ROWS`.

The environment names the process and the step, as in `faults`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from leasequeue.spark.jobs import archive as job
from leasequeue.spark.process.output import OutputFolder
from leasequeue.spark.read.events import EventRange, EventsReader
from leasequeue.spark.source import LeasequeueSource
from tests.spark.programs.drain_program import session
from tests.spark.programs.faults import inject, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

#: The steps of a batch in their order, with Spark's number of it: planned, not yet in the log; read; counted;
#: the file with the query's id begun, in the first batch; draft written; earlier output removed; renamed, not
#: yet in the log; in the log.
STEPS = ("planned", "read", "counted", "begun", "beside", "dropped", "placed", "committed")


class FaultySource(LeasequeueSource):
    """The data source, with faults in its stream of events."""

    def streamReader(self, schema: StructType) -> EventsReader:  # noqa: N802 - Spark's name
        return FaultyReader(self.options, schema)


class FaultyReader(EventsReader):
    """Numbers batches as Spark does, as all have equally many events."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - as above
        inject("committed", self._batch_of(start["number"]))
        end = super().latestOffset(start, limit)
        if end != start:
            inject("planned", self._batch_of(end["number"]))
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        for rows in super().read(partition):
            yield rows
            # Other tasks run in parallel and have more to read.
            if (partition.after - before()) % self._max_rows == 0:
                inject("read", self._batch_of(partition.last))

    def _batch_of(self, last: int) -> int:
        return (last - before() - 1) // self._max_rows


def before() -> int:
    return int((place() / "before").read_text())


class FaultyFolder(OutputFolder):
    """Injects faults while it writes a batch."""

    _number = -1

    def write(self, df: DataFrame, batch: int, query: str, *partition_by: str) -> None:
        self._number = batch
        inject("counted", batch)
        super().write(df, batch, query, *partition_by)
        inject("placed", batch)

    def drop(self, name: str) -> None:
        inject("beside", self._number)
        super().drop(name)
        inject("dropped", self._number)

    def put(self, name: str, content: str | bytes) -> None:
        if self._number < 0:  # before the first batch
            super().put(name, content)
            return
        self._files.create(self._at(name), True).close()
        inject("begun", self._number)
        super().put(name, content)


def main(url: str, queue: str, folder: str, rows: str) -> None:
    spark = session(folder)
    # The job registers the format itself, and offers no other hook.
    vars(job).update(
        register=lambda spark: spark.dataSource.register(FaultySource), OutputFolder=FaultyFolder
    )
    result = job.archive(spark, queue, f"{folder}/archive", batch=int(rows), url=url)
    print(result)  # noqa: T201 - for the log
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
