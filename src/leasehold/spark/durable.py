"""Parquet that a stream writes: each micro-batch is a folder of its own, there as a whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leasehold.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: In the folder of the output: the id of the query whose batches these are. Spark and others leave out what
#: begins with an underscore when they read.
_QUERY = "_query"


class Folder:
    """A folder, on any file system that Spark knows, that holds what one query has written.

    It reads as one table: `spark.read.parquet(folder)`. A batch that is written again takes the place of what
    it wrote before. It is written beside its place and renamed, which is one step on HDFS and local disks; a
    store of objects copies, and shows a part of a batch for a moment.

    Args:
        spark: The session.
        path: The folder; it may not be there yet.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        # The only way to a file system of Spark's from Python; a session through Spark Connect has none.
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise InvalidArgument("spark", spark, "a session of its own, without Spark Connect")
        self.path = path.rstrip("/") or path
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._path(self.path).getFileSystem(
            spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way
        )
        self._jvm = jvm

    def check_checkpoint(self, checkpoint: str) -> None:
        """See to it that a checkpoint goes with what is here.

        Raises:
            InvalidArgument: If another query has written into this folder.
        """
        mine = self._read(f"{checkpoint}/metadata")
        self._check_query(json.loads(mine)["id"] if mine else None)

    def write(self, df: DataFrame, batch: int, query: str, *partition_by: str) -> None:
        """Write a batch, in the place of what it wrote before.

        Raises:
            InvalidArgument: If another query has written into this folder.
        """
        self._check_query(query)
        # Empty is what is left of it if we were killed while we wrote it.
        if not self._read(f"{self.path}/{_QUERY}"):
            self.put(_QUERY, query)
        place, beside = f"batch={batch:08}", f"_batch-{batch:08}"
        writer = df.write.mode("overwrite").partitionBy(*partition_by)
        writer.parquet(f"{self.path}/{beside}")
        self.drop(place)
        if not self._files.rename(self._at(beside), self._at(place)):
            raise OSError(f"{self.path}/{beside} cannot be renamed to {place}")

    def drop(self, name: str) -> None:
        """Remove what has this name here, if there is any."""
        self._files.delete(self._at(name), True)

    def put(self, name: str, text: str) -> None:
        """Write a text as a file of this folder, in the place of one that is there."""
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _check_query(self, query: str | None) -> None:
        theirs = self._read(f"{self.path}/{_QUERY}")
        if theirs and theirs != query:
            allowed = "a new folder, or one that was written with the same checkpoint"
            raise InvalidArgument("output", self.path, allowed)

    def _at(self, name: str) -> Any:
        return self._path(f"{self.path}/{name}")

    def _read(self, path: str) -> str:
        """A small file as a text; empty if it is not there."""
        place = self._path(path)
        if not self._files.exists(place):
            return ""
        stream = self._files.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).strip()
        finally:
            stream.close()
