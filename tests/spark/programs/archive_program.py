"""The job `archive`, made to kill somebody at a step of a batch: `archive_program URL QUEUE FOLDER ROWS`.

What is to be killed when is said as in `harm`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from leasehold.spark.events import EventRange, EventsReader
from leasehold.spark.jobs import archive as job
from leasehold.spark.output import OutputFolder
from leasehold.spark.source import LeaseholdSource, register
from tests.spark.programs.drain_program import session
from tests.spark.programs.harm import harm, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

#: The steps of a batch by Spark's number of it, in their order: it is planned, and not yet in the log; it is
#: read; it is counted; the file that says whose archive this is was begun, with the first batch; it is beside
#: its place; what was in its place has gone; it is in its place, and not yet in the log; it is in the log.
STEPS = ("planned", "read", "counted", "begun", "beside", "dropped", "placed", "committed")


class HarmedSource(LeaseholdSource):
    """The format, with a stream of events that does harm."""

    def streamReader(self, schema: StructType) -> EventsReader:  # noqa: N802 - Spark's name
        return HarmedReader(self.options, schema)


class HarmedReader(EventsReader):
    """Numbers batches as Spark does: all have as many events. A note says what comes before the first."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - as above
        harm("committed", self._batch_of(start["number"]))
        end = super().latestOffset(start, limit)
        if end != start:
            harm("planned", self._batch_of(end["number"]))
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventRange)
        for rows in super().read(partition):
            yield rows
            # Others read at the same time, and have more to do.
            if (partition.after - before()) % self._max_rows == 0:
                harm("read", self._batch_of(partition.last))

    def _batch_of(self, last: int) -> int:
        return (last - before() - 1) // self._max_rows


def before() -> int:
    return int((place() / "before").read_text())


class HarmedFolder(OutputFolder):
    """Does harm while it writes a batch."""

    def write(self, df: DataFrame, batch: int, query: str, *partition_by: str) -> None:
        self._number = batch
        harm("counted", batch)
        super().write(df, batch, query, *partition_by)
        harm("placed", batch)

    def drop(self, name: str) -> None:
        harm("beside", self._number)
        super().drop(name)
        harm("dropped", self._number)

    def put(self, name: str, text: str) -> None:
        self._files.create(self._at(name), True).close()
        harm("begun", self._number)
        super().put(name, text)


def main(url: str, queue: str, folder: str, rows: str) -> None:
    spark = session(folder)
    register(spark)
    spark.dataSource.register(HarmedSource)
    vars(job)["OutputFolder"] = HarmedFolder  # there is no other way to be there when the job writes
    told = job.archive(spark, queue, f"{folder}/archive", batch=int(rows), url=url)
    print(told)  # noqa: T201 - for the log
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
