"""The output folder of a stream: Parquet, one folder per micro-batch, whole or absent."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from leasequeue.errors import InvalidArgument
from leasequeue.spark.errors import OutputTakenOver

try:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
except ModuleNotFoundError:  # pyspark-client, which has no JVM and only sessions of Spark Connect
    Py4JJavaError = PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The errors of a failed call into Java.
FAILURES = (Py4JJavaError, PySparkException)
#: A file in the output folder: the id of the query that wrote the batches. Readers of Parquet ignore names
#: that begin with an underscore.
_QUERY = "_query"
#: A file in the output folder: the id of the run that writes now.
_RUN = "_run"
#: The prefix of a batch that is being written.
_DRAFT = "_batch-"


class OutputFolder:
    """A folder, on any file system that Spark supports, with the output of one query.

    It reads as one table: `spark.read.parquet(folder)`. A batch that is written again replaces its earlier
    output. A batch is written as a draft and then renamed, which is atomic on HDFS and local disks; an object
    store copies, and shows part of a batch for a moment.

    Only one run writes: the last that checked its checkpoint here. An earlier run that is still running
    notices this after it has written a draft, before it renames it. There is no lock between that check and
    the renaming: a run that starts in these milliseconds (on an object store, during the copy) is not
    noticed.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        # The only way from Python to Spark's file systems. The callers refuse Spark Connect, which has none.
        jvm: Any = spark._jvm  # noqa: SLF001 - as above
        self.path = path.rstrip("/") or path
        self.default_checkpoint = f"{path.rstrip('/')}/_checkpoint"
        self._jvm = jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way
        self._files = self._files_of("output", self.path)
        self._run = secrets.token_hex(4)

    def check_checkpoint(self, checkpoint: str) -> bool:
        """Check that a checkpoint belongs to this folder, and keep earlier runs from writing into it."""
        files = self._files_of("checkpoint", checkpoint)
        try:
            metadata = self._read(f"{checkpoint}/metadata", files)
        except FAILURES as error:
            raise _unusable("checkpoint", checkpoint, error) from error
        try:
            self._check_query(json.loads(metadata)["id"] if metadata else None)
            self.put(_RUN, self._run)
            for status in self._files.globStatus(self._at(f"{_DRAFT}*")):
                self._files.delete(status.getPath(), True)
        except FAILURES as error:
            raise _unusable("output", self.path, error) from error
        return bool(metadata)

    def offset(self, checkpoint: str, batch: int | None = None) -> dict[str, Any]:
        """Return the offset of a checkpoint's first source at the end of a batch, or of any; empty: none."""
        files, offsets = self._files_of("checkpoint", checkpoint), self._path(f"{checkpoint}/offsets")
        try:
            for status in files.listStatus(offsets) if files.exists(offsets) else ():
                path = status.getPath()
                wanted = path.getName().isdigit() and batch in (None, int(path.getName()))
                # A version, Spark's metadata, and then a line for each source.
                lines = self._read(path.toString(), files).splitlines() if wanted else []
                if len(lines) > 2 and lines[2].startswith("{"):
                    offset: dict[str, Any] = json.loads(lines[2])
                    return offset
        except FAILURES as error:
            raise _unusable("checkpoint", checkpoint, error) from error
        return {}

    def write(self, df: DataFrame, batch: int, query: str, *partition_by: str) -> None:
        """Write a batch, and replace what it wrote before.

        Raises:
            InvalidArgument: If another query has written into this folder.
            OutputTakenOver: If another run has begun to write here; the earlier output stays.
        """
        self._check_query(query)
        self.check_run()
        # A run that was killed while it wrote the file leaves it empty.
        if not self._read(f"{self.path}/{_QUERY}", self._files):
            self.put(_QUERY, query)
        final, draft = f"batch={batch:08}", f"{_DRAFT}{batch:08}-{self._run}"
        writer = df.write.mode("overwrite").partitionBy(*partition_by)
        writer.parquet(f"{self.path}/{draft}")
        self.check_run()
        self.drop(final)
        if not self._files.rename(self._at(draft), self._at(final)):
            raise OSError(f"{self.path}/{draft} cannot be renamed to {final}")

    def drop(self, name: str) -> None:
        """Remove a file or folder of this folder, if it exists."""
        self._files.delete(self._at(name), True)

    def put(self, name: str, content: str | bytes) -> None:
        """Write a small file of this folder, and replace an earlier one."""
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(content.encode() if isinstance(content, str) else content)
        finally:
            stream.close()

    def check_run(self) -> None:
        """Check that no later run has begun to write here."""
        last = self._read(f"{self.path}/{_RUN}", self._files)
        if last and last != self._run:
            raise OutputTakenOver(self.path)

    def _check_query(self, query: str | None) -> None:
        other = self._read(f"{self.path}/{_QUERY}", self._files)
        if other and other != query:
            allowed = "a new folder, or one that was written with the same checkpoint"
            raise InvalidArgument("output", self.path, allowed)

    def _at(self, name: str) -> Any:
        return self._path(f"{self.path}/{name}")

    def _files_of(self, what: str, path: str) -> Any:
        try:
            return self._path(path).getFileSystem(self._conf)
        except FAILURES as error:
            raise _unusable(what, path, error) from error

    def _read(self, path: str, files: Any) -> str:
        """Return a small file as text; empty if it does not exist."""
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
    detail = str(java.toString() if java else error).partition("\n")[0]
    return InvalidArgument(what, path, f"a folder on a file system that Spark can use ({detail})")
