"""The job `load`: add the rows of a table to a queue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from leasequeue.errors import InvalidArgument
from leasequeue.spark.add.adding import add
from leasequeue.spark.jobs.session import no_progress
from leasequeue.spark.options import server_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from leasequeue.spark.jobs.session import Progress

#: The kinds of sources: files, of which CSV has a header and JSON an object per line, or a table.
Format = Literal["csv", "json", "parquet", "table"]
#: File names that name their format.
_NAMED = re.compile(r"\.(csv|jsonl?|ndjson)(\.(gz|bz2|zst))?$", re.IGNORECASE)


def load(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    queue: str,
    source: str,
    *,
    format: Format | None = None,  # noqa: A002 - the option's name
    id: str | None = None,  # noqa: A002 - as above
    id_from: str | None = None,
    data: str | None = None,
    option: list[str] | None = None,
    url: str | None = None,
    cluster: bool = False,
    codec: str | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Add the rows of a table to a queue, except those whose id is already there.

    Args:
        spark: The session.
        queue: The queue's name.
        source: A file, a folder, a pattern such as data/*.csv, or the name of a table.
        format: The kind of the source; None: by the ending of its name, else Parquet.
        id: The column of the id; None: `id`.
        id_from: Instead: the columns whose content is hashed to make the id, separated by commas.
        data: The column of the data; None: `data`, or the row as JSON if there is no such column.
        option: Options of Spark's reader, such as `sep=;`.
        url: The server's URL; None: that of the environment, or this machine's default port.
        cluster: Whether the server is a node of a cluster.
        codec: Where executors import the codec of the queue from, `module:name`; None: it has none.
        progress: Called with a few words about each step.

    Returns:
        `rows`, `added` and `already_there`.

    Raises:
        InvalidArgument: If an argument cannot be used; nothing was added.
        pyspark.errors.PySparkException: If the source cannot be read, or a row cannot be an item.
    """
    rows = read(spark, source, format, option)
    progress(f"loading {source} into {queue}")
    with server_options(url, cluster=cluster, codec=codec) as server:
        report = add(rows, queue, check=True, **server, **column_options(id, id_from, data))
    return {
        "queue": queue,
        "rows": report.rows,
        "added": report.added,
        "already_there": report.already_there,
    }


def read(
    spark: SparkSession,
    source: str,
    format: Format | None,  # noqa: A002 - as in `load`
    options: list[str] | None,
) -> DataFrame:
    """Read a table."""
    given: dict[str, str] = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise InvalidArgument("option", option, "name=value")
        given[name] = value
    if format is None:
        named = _NAMED.search(source)
        format = ("csv" if named[1].lower() == "csv" else "json") if named else "parquet"  # noqa: A001 - as above
    reader = spark.read.options(**({"header": "true"} if format == "csv" else {}) | given)
    return reader.table(source) if format == "table" else reader.format(format).load(source)


def column_options(id_column: str | None, id_from: str | None, data: str | None) -> dict[str, str]:
    """Return the options of the format that choose columns."""
    chosen = {"idColumn": id_column, "idFrom": id_from, "dataColumn": data}
    return {name: value for name, value in chosen.items() if value}
