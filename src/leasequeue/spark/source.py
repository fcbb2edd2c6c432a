"""The data source `leasequeue`, and `register`, which adds it to a session."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

import leasequeue
from leasequeue.errors import InvalidArgument
from leasequeue.spark.sessions import activate, is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


def register(spark: SparkSession) -> None:
    """Register `format("leasequeue")` with a session. Registering twice is harmless.

    The session becomes the active one of this thread. Spark's writer looks up a format written in Python in
    the thread's active session, and a new thread has none: so register in each thread that writes.

    With a master `local[…]`, Spark's Python workers are then run by this interpreter, unless
    `PYSPARK_PYTHON` names another.
    """
    if not is_connect(spark):
        _set_up_workers(spark.sparkContext)
        activate(spark)
    spark.dataSource.register(LeasequeueSource)


def _set_up_workers(context: SparkContext) -> None:
    """Let Spark's Python workers import this package."""
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Spark would run the `python3` on the PATH, which is often another one in a virtual environment.
        context.pythonExec = sys.executable
    package = Path(leasequeue.__file__).parents[1]
    if package.is_file():
        # One of --py-files: Spark gives it to all workers except those on the driver that run a stream.
        context.environment.setdefault("PYTHONPATH", str(package))


class LeasequeueSource(DataSource):
    """The data source behind `format("leasequeue")`. `register` adds it to a session.

    Readers and writers are imported when needed: most of them run in separate processes.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "leasequeue"

    def schema(self) -> StructType:
        """Return the columns of what is read, if the options can be used.

        Spark calls this at `load()`, unless the caller gives columns. It does not say whether a snapshot or a
        stream will be read.

        Raises:
            InvalidArgument: If an option cannot be used.
        """
        from leasequeue.spark.read.events import EventsReader
        from leasequeue.spark.read.leases import LeasesReader
        from leasequeue.spark.read.several import QUEUED_ITEMS, SnapshotsReader
        from leasequeue.spark.read.snapshot import SELECTIONS, SnapshotReader
        from leasequeue.spark.schema import EVENTS, ITEMS

        if self._reads_events():
            EventsReader(self.options, EVENTS)
            return EVENTS
        if self._reads_several():
            SnapshotsReader(self.options, QUEUED_ITEMS)
            return QUEUED_ITEMS
        if {name.lower() for name in self.options} & {name.lower() for name in SELECTIONS}:
            SnapshotReader(self.options, ITEMS)
            return ITEMS
        try:
            SnapshotReader(self.options, ITEMS)
        except InvalidArgument:
            LeasesReader(self.options, ITEMS)
        return ITEMS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a snapshot, or of the kept events."""
        if self._reads_events():
            from leasequeue.spark.read.events import EventsTable

            return EventsTable(self.options, schema)
        from leasequeue.spark.read.several import SnapshotsReader
        from leasequeue.spark.read.snapshot import SnapshotReader

        reader = SnapshotsReader if self._reads_several() else SnapshotReader
        return reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of a bulk add."""
        from leasequeue.spark.add.writers import BulkWriter

        return BulkWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a lease stream, or of the kept events."""
        if self._reads_events():
            from leasequeue.spark.read.events import EventsReader

            return EventsReader(self.options, schema)
        from leasequeue.spark.read.leases import LeasesReader

        return LeasesReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Return the writer of a stream, which adds rows exactly once per query and batch."""
        from leasequeue.spark.add.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def _reads_events(self) -> bool:
        kind = self.options.get("from", "items").lower()
        if kind not in ("items", "events"):
            raise InvalidArgument("from", kind, "items or events")
        return kind == "events"

    def _reads_several(self) -> bool:
        return any(name.lower() in ("queues", "queuepattern") for name in self.options)
