"""Parquet that a stream writes: each micro-batch is a folder of its own, there as a whole or not at all."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException

from leasehold.errors import InvalidArgument, OutputTakenOver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What comes of a call into Java that fails.
FAILURES = (Py4JJavaError, PySparkException)
#: In the folder of the output: the id of the query whose batches these are. Spark and others leave out what
#: begins with an underscore when they read.
_QUERY = "_query"
#: And the name of the run that writes them now.
_RUN = "_run"
#: What is not in its place yet.
_BESIDE = "_batch-"


class OutputFolder:
    """A folder, on any file system that Spark knows, that holds what one query has written.

    It reads as one table: `spark.read.parquet(folder)`. A batch that is written again takes the place of what
    it wrote before. It is written beside its place and renamed, which is one step on HDFS and local disks; a
    store of objects copies, and shows a part of a batch for a moment.

    One run writes: the last that has looked at its checkpoint. An earlier one that still runs notices it
    when it has written a batch, right before it puts it in its place. Between that look and the renaming is
    no lock: a run that begins there, within milliseconds (on a store of objects, while it copies), is not
    noticed.

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
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way
        self._files = self._files_of("output", self.path)
        self._run = secrets.token_hex(4)

    def check_checkpoint(self, checkpoint: str) -> bool:
        """See to it that a checkpoint goes with what is here; from then on no earlier run writes here.

        Args:
            checkpoint: The folder; it may be on another file system than this one.

        Returns:
            Whether there is a checkpoint already.

        Raises:
            InvalidArgument: If another query has written into this folder, or Spark cannot use one of them.
        """
        files = self._files_of("checkpoint", checkpoint)
        try:
            mine = self._read(f"{checkpoint}/metadata", files)
        except FAILURES as error:
            raise _unusable("checkpoint", checkpoint, error) from error
        try:
            self._check_query(json.loads(mine)["id"] if mine else None)
            self._write(_RUN, self._run)
            for status in self._files.globStatus(self._at(f"{_BESIDE}*")):
                self._files.delete(status.getPath(), True)
        except FAILURES as error:
            raise _unusable("output", self.path, error) from error
        return bool(mine)

    def offset(self, checkpoint: str) -> dict[str, Any]:
        """How far a checkpoint's first source was, at one of its batches; empty if it has none.

        Raises:
            InvalidArgument: If Spark cannot use the folder.
        """
        files, offsets = self._files_of("checkpoint", checkpoint), self._path(f"{checkpoint}/offsets")
        try:
            for status in files.listStatus(offsets) if files.exists(offsets) else ():
                path = status.getPath()
                # Below the version and what Spark knew: a line for each source.
                lines = self._read(path.toString(), files).splitlines() if path.getName().isdigit() else []
                if len(lines) > 2 and lines[2].startswith("{"):
                    said: dict[str, Any] = json.loads(lines[2])
                    return said
        except FAILURES as error:
            raise _unusable("checkpoint", checkpoint, error) from error
        return {}

    def write(self, df: DataFrame, batch: int, query: str, *partition_by: str) -> None:
        """Write a batch, in the place of what it wrote before.

        Raises:
            InvalidArgument: If another query has written into this folder.
            OutputTakenOver: If another run has begun to write here; what is in the place stays.
        """
        self._check_query(query)
        self._check_run()
        # Empty is what is left of it if we were killed while we wrote it.
        if not self._read(f"{self.path}/{_QUERY}", self._files):
            self.put(_QUERY, query)
        place, beside = f"batch={batch:08}", f"{_BESIDE}{batch:08}-{self._run}"
        writer = df.write.mode("overwrite").partitionBy(*partition_by)
        writer.parquet(f"{self.path}/{beside}")
        self._check_run()
        self.drop(place)
        if not self._files.rename(self._at(beside), self._at(place)):
            raise OSError(f"{self.path}/{beside} cannot be renamed to {place}")

    def drop(self, name: str) -> None:
        """Remove what has this name here, if there is any."""
        self._files.delete(self._at(name), True)

    def put(self, name: str, text: str) -> None:
        """Write a text as a file of this folder, in the place of one that is there."""
        self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _check_run(self) -> None:
        last = self._read(f"{self.path}/{_RUN}", self._files)
        if last and last != self._run:
            raise OutputTakenOver(self.path)

    def _check_query(self, query: str | None) -> None:
        theirs = self._read(f"{self.path}/{_QUERY}", self._files)
        if theirs and theirs != query:
            allowed = "a new folder, or one that was written with the same checkpoint"
            raise InvalidArgument("output", self.path, allowed)

    def _at(self, name: str) -> Any:
        return self._path(f"{self.path}/{name}")

    def _files_of(self, what: str, path: str) -> Any:
        """The file system that a path is on."""
        try:
            return self._path(path).getFileSystem(self._conf)
        except FAILURES as error:
            raise _unusable(what, path, error) from error

    def _read(self, path: str, files: Any) -> str:
        """A small file as a text; empty if it is not there."""
        place = self._path(path)
        if not files.exists(place):
            return ""
        stream = files.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")).strip()
        finally:
            stream.close()


def _unusable(what: str, path: str, error: Exception) -> InvalidArgument:
    java = getattr(error, "java_exception", None)
    said = str(java.toString() if java else error).partition("\n")[0]
    return InvalidArgument(what, path, f"a folder on a file system that Spark can use ({said})")
