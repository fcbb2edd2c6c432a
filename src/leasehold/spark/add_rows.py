"""Adding rows in bulk, each once for a job: what the bulk writer and the sink of streams share."""

from __future__ import annotations

from collections import deque
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from leasehold.errors import InvalidArgument
from leasehold.queue.bulk import MAX_ROWS
from leasehold.queue.encoding import ROW_BYTES, trips
from leasehold.spark.portal import open_queue, persistently

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from leasehold.spark.columns import Columns
    from leasehold.spark.options import Target
    from leasehold.spark.portal import QueuePortal

#: How many trips are under way at once: enough that the server and this process are busy at the same time.
MAX_IN_FLIGHT = 4


@dataclass(frozen=True)
class PartitionReport(WriterCommitMessage):
    """What became of the rows of one partition, in the run of its task that counts."""

    partition: int
    rows: int = 0
    #: PartitionReport by this run.
    added: int = 0
    #: PartitionReport by the job before: by an earlier attempt of the task, or in another row with the same id.
    again: int = 0
    #: Already there, by somebody else.
    there: int = 0

    def __add__(self, answers: Sequence[int]) -> PartitionReport:
        """Count the answers of one trip as well."""
        return replace(
            self,
            rows=self.rows + len(answers),
            added=self.added + answers.count(1),
            again=self.again + answers.count(2),
            there=self.there + answers.count(0),
        )


def add_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, target: Target, run: str, retry_timeout: float
) -> PartitionReport:
    """Add all rows of a partition, each once for the run of the job, whoever else does it.

    A batch is checked as a whole before any of its rows is sent.

    Args:
        batches: The rows.
        columns: Which columns make an item.
        target: The queue.
        run: The run of the job; its end is `Bulk.end_run`.
        retry_timeout: For how long a trip is tried again while the server is away, in seconds.

    Raises:
        InvalidArgument: If a row can be no item; says which. Earlier batches have been added.
        ServerError: If the server stays away, or refuses.
    """
    task = TaskContext.get()
    counted = PartitionReport(task.partitionId() if task else 0)
    in_flight: deque[Future[list[int]]] = deque()
    with open_queue(target) as portal:
        try:
            for rows in _trips(batches, columns, counted.partition):
                if len(in_flight) == MAX_IN_FLIGHT:
                    counted += in_flight.popleft().result()
                in_flight.append(_sent(portal, run, rows, retry_timeout))
            while in_flight:
                counted += in_flight.popleft().result()
        except InvalidArgument:
            wait(in_flight)  # the batches before are whole, and go as a whole
            raise
        finally:
            for one in in_flight:
                one.cancel()
    return counted


def _sent(portal: QueuePortal, run: str, rows: list[bytes], retry_timeout: float) -> Future[list[int]]:
    return portal.start(persistently, partial(portal.bulk.add_once, run.encode(), rows), retry_timeout)


def _trips(batches: Iterable[pa.RecordBatch], columns: Columns, partition: int) -> Iterator[list[bytes]]:
    """The rows for `add_once`, flat, as much of them as go together."""
    before = 0
    for batch in batches:

        def where(at: int, before: int = before) -> str:
            return f"row {before + at + 1:,} of partition {partition}"

        ids, data, waits = columns.rows(batch, where)
        for start, stop in trips([ROW_BYTES + len(one) for one in data], maximum=MAX_ROWS):
            part = slice(start, stop)
            yield [*chain.from_iterable(zip(ids[part], data[part], waits[part], repeat(b"0")))]
        before += batch.num_rows
