"""The format, made to kill somebody at a step of a micro-batch.

The environment says what: HARM_AT names steps and batches, as `read:3,after_commit:5`; HARM_WHOM says who is
killed; HARM_PLACE is a folder for notes that all processes can read. Each harm is done once, also if its step
comes again in a later run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasehold.spark.leases import LeasesReader, SetPartition
from leasehold.spark.source import LeaseholdSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

#: The steps of a micro-batch, in their order, all told by the source's number of the batch.
STEPS = ("before_lease", "after_lease", "read", "after_write", "after_commit")


def place() -> Path:
    return Path(os.environ["HARM_PLACE"])


def harm(step: str, batch: int) -> None:
    """Kill whom the environment names, if it names this step of this batch, and this was not done yet."""
    if f"{step}:{batch}" not in os.environ["HARM_AT"].split(","):
        return
    try:
        (place() / f"done-{step}-{batch}").touch(exist_ok=False)
    except FileExistsError:
        return
    whom = os.environ["HARM_WHOM"]
    if whom == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(pid_of(whom), signal.SIGKILL)
    if whom != "server":
        os._exit(1)  # nothing more happens here: an answer might still count


def pid_of(whom: str) -> int:
    return int((place() / f"pid-{whom}").read_text())


def is_there(pid: int) -> bool:
    """Whether a process runs. One that has ended and that nobody has asked about does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class HarmedSource(LeaseholdSource):
    """The format, with a stream of leases that does harm."""

    def streamReader(self, schema: StructType) -> LeasesReader:  # noqa: N802 - Spark's name
        return HarmedReader(self.options, schema)


class HarmedReader(LeasesReader):
    """Does harm, and writes down what is read under which number."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - as above
        harm("after_commit", start["batch"])
        harm("before_lease", start["batch"] + 1)
        end = super().latestOffset(start, limit)
        if end != start:
            harm("after_lease", end["batch"])
        return end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SetPartition)
        number = partition.set_id.number
        for rows in super().read(partition):
            with (place() / f"read-{os.getpid()}").open("a") as journal:
                journal.writelines(f"{number} {item_id}\n" for item_id in rows["id"].to_pylist())
            yield rows
            if partition.start == 0:
                harm("read", number)
