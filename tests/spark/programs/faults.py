"""The data source, which kills a process at a step of a micro-batch.

The environment configures it: FAULT_AT names steps and batches, as `read:3,after_commit:5`; FAULT_VICTIM is
the process to kill; FAULT_FOLDER is a folder for notes that all processes can read. Each fault is injected
once, even if a later run repeats its step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue.spark.read import lease_sets
from leasequeue.spark.read.lease_sets import LeaseSets
from leasequeue.spark.read.leases import LeasesReader, SetPartition
from leasequeue.spark.source import LeasequeueSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from leasequeue.queue.bulk import Bulk

#: The steps of a micro-batch in their order, with the source's number of the batch: before it is planned;
#: when a part of its items is leased; planned, but not yet in Spark's log of offsets; in that log; divided
#: into tasks; read by one; written by the sink; in the log of commits. The items of the first batch are
#: leased when it is in the log of offsets, those of all others before.
STEPS = ("before", "mid_lease", "planned", "logged", "divided", "read", "after_write", "after_commit")
#: How many items one call leases.
ITEMS_PER_CALL = 20


def place() -> Path:
    return Path(os.environ["FAULT_FOLDER"])


def inject(step: str, batch: int) -> None:
    """Kill the victim if the environment names this step of this batch, once."""
    if f"{step}:{batch}" not in os.environ["FAULT_AT"].split(","):
        return
    try:
        (place() / f"done-{step}-{batch}").touch(exist_ok=False)
    except FileExistsError:
        return
    victim = os.environ["FAULT_VICTIM"]
    if victim == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    killed = False
    while not killed:  # a server that has just been started again is noted soon
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_of(victim), signal.SIGKILL)
            killed = True
        time.sleep(0.0 if killed else 0.05)
    if victim != "server":
        os._exit(1)  # at once: a later reply might still be accepted


def pid_of(victim: str) -> int:
    return int((place() / f"pid-{victim}").read_text())


def is_there(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class FaultySource(LeasequeueSource):
    """The data source, with faults in its lease stream."""

    def streamReader(self, schema: StructType) -> LeasesReader:  # noqa: N802 - Spark's name
        return FaultyReader(self.options, schema)


class FaultyReader(LeasesReader):
    """Injects faults, and records which ids are read in which batch."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - as above
        batch = start.get("batch", 0)
        inject("after_commit", batch)
        inject("before", batch + 1)
        end = super().latestOffset(start, limit)
        if end != start:
            inject("planned", end["batch"])
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SetPartition]:
        inject("logged", end.get("batch", 0))
        parts = super().partitions(start, end)
        inject("divided", end.get("batch", 0))
        return parts

    def _lease_sets(self, bulk: Bulk, name: str, reader: str) -> LeaseSets:
        vars(lease_sets)["STEP"] = ITEMS_PER_CALL
        lease_ms, retry_timeout = self._lease_ms, self.retry_timeout
        return FaultyLeaseSets(bulk, name, lease_ms=lease_ms, retry_timeout=retry_timeout, reader=reader)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SetPartition)
        number = partition.set_id.number
        for rows in super().read(partition):
            with (place() / f"read-{os.getpid()}").open("a") as journal:
                journal.writelines(f"{number} {item_id}\n" for item_id in rows["id"].to_pylist())
            yield rows
            if partition.start == 0:
                inject("read", number)


class FaultyLeaseSets(LeaseSets):
    """Injects a fault when the first call for a set has leased its part."""

    async def _lease(self, number: int, *, known: int, count: int) -> tuple[int, int, bool, int]:
        had, size, more, waiting = await super()._lease(number, known=known, count=count)
        if had == 0 and size == ITEMS_PER_CALL:
            inject("mid_lease", number)
        return had, size, more, waiting
