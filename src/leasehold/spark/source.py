"""The format `leasehold`: which part of this room does what."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.utils import is_remote

import leasehold
from leasehold.errors import InvalidArgument

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
    """Make `format("leasehold")` known to a session. Doing it twice is fine.

    On one machine (a master `local[…]`), Spark's Python workers then are run by this interpreter, unless
    `PYSPARK_PYTHON` names one.
    """
    if not is_remote():
        _see_to_workers(spark.sparkContext)
    # Without this a source that takes filters is an error.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LeaseholdSource)


def _see_to_workers(context: SparkContext) -> None:
    """See to it that Spark's Python workers are able to import this."""
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        # Spark would take the `python3` on the PATH, which in a virtual environment often is another one.
        context.pythonExec = sys.executable
    package = Path(leasehold.__file__).parents[1]
    if package.is_file():
        # One of the --py-files: all workers get it, but those on the driver that look after a stream.
        context.environment.setdefault("PYTHONPATH", str(package))


class LeaseholdSource(DataSource):
    """What Spark asks for when a query says `format("leasehold")`. `register` makes it known.

    Its parts are imported when they are needed: most of them live in processes of their own.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "leasehold"

    def schema(self) -> StructType:
        """The columns of what is read."""
        from leasehold.spark.schema import EVENTS, ITEMS

        return EVENTS if self._wants_events() else ITEMS

    def reader(self, schema: StructType) -> DataSourceReader:
        """A snapshot."""
        from leasehold.spark.snapshot import SnapshotReader

        if self._wants_events():
            raise InvalidArgument("from", "events", "items; events are a stream: spark.readStream")
        return SnapshotReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """Bulk adds."""
        from leasehold.spark.bulk_writer import BulkWriter

        return BulkWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Leases, or the kept events."""
        if self._wants_events():
            from leasehold.spark.events import EventsReader

            return EventsReader(self.options, schema)
        from leasehold.spark.leases import LeasesReader

        return LeasesReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Adds that are exactly once per query, batch and partition."""
        from leasehold.spark.stream_writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def _wants_events(self) -> bool:
        wanted = self.options.get("from", "items").lower()
        if wanted not in ("items", "events"):
            raise InvalidArgument("from", wanted, "items or events")
        return wanted == "events"
