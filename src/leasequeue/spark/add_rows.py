"""Add the rows of one partition, each once per job: shared by the bulk writer and the stream writer."""

from __future__ import annotations

from collections import deque
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from leasequeue.errors import InvalidArgument
from leasequeue.queue.bulk import MAX_ROWS
from leasequeue.queue.encoding import ROW_BYTES, trips
from leasequeue.spark.portal import call_with_retries, open_queue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from leasequeue.spark.columns import Columns
    from leasequeue.spark.options import QueueTarget

#: How many requests are in flight at once: enough to keep the server and this process busy at the same time.
MAX_IN_FLIGHT = 4


@dataclass(frozen=True)
class PartitionReport(WriterCommitMessage):
    """How many rows of one partition were added, by the task attempt that Spark accepted."""

    partition: int
    rows: int = 0
    #: Added by this task attempt.
    added: int = 0
    #: Added by the job before: by an earlier task attempt, or from another row with the same id.
    repeated: int = 0
    #: Not added: another client had already added the id.
    already_there: int = 0

    def __add__(self, answers: Sequence[int]) -> PartitionReport:
        """Count the answers of one more request."""
        return replace(
            self,
            rows=self.rows + len(answers),
            added=self.added + answers.count(1),
            repeated=self.repeated + answers.count(2),
            already_there=self.already_there + answers.count(0),
        )


def add_batches(
    batches: Iterable[pa.RecordBatch], columns: Columns, target: QueueTarget, run: str, retry_timeout: float
) -> PartitionReport:
    """Add all rows of a partition, each once per run of the job, even if several tasks add them.

    A batch is checked as a whole before any of its rows is sent.
    """
    task = TaskContext.get()
    report = PartitionReport(task.partitionId() if task else 0)
    with open_queue(target) as portal:
        add_once = portal.bulk.add_once
        in_flight: deque[Future[list[int]]] = deque()
        try:
            for rows in _requests(batches, columns, report.partition):
                if len(in_flight) == MAX_IN_FLIGHT:
                    report += in_flight.popleft().result()
                add = partial(add_once, run.encode(), rows)
                in_flight.append(portal.start(call_with_retries, add, retry_timeout))
            while in_flight:
                report += in_flight.popleft().result()
        except InvalidArgument:
            wait(in_flight)  # the batches before this one are valid: add them whole
            raise
        finally:
            for request in in_flight:
                request.cancel()
    return report


def _requests(batches: Iterable[pa.RecordBatch], columns: Columns, partition: int) -> Iterator[list[bytes]]:
    """Encode the rows as flat lists for `add_once`, split at its limits."""
    before = 0
    for batch in batches:

        def where(at: int, before: int = before) -> str:
            return f"row {before + at + 1:,} of partition {partition}"

        ids, data, delays = columns.rows(batch, where)
        for start, stop in trips([ROW_BYTES + len(one) for one in data], maximum=MAX_ROWS):
            part = slice(start, stop)
            yield [*chain.from_iterable(zip(ids[part], data[part], delays[part], repeat(b"0")))]
        before += batch.num_rows
