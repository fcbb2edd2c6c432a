"""The job `load`: a table into a queue."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pyspark.sql import DataFrame, SparkSession  # noqa: TC002 - the annotations are read

from leasehold.errors import InvalidArgument
from leasehold.spark.bulk_writer import add
from leasehold.spark.jobs.command import main
from leasehold.spark.jobs.session import Cluster, Tell, Url, place, silent

Format = Annotated[
    Literal["csv", "json", "parquet", "table"] | None,
    "What the source is: files, of which CSV has a line of titles and JSON an object a line, or a table. "
    "By default what its name ends with (.csv, .json, .jsonl), or else parquet.",
]
#: Files that say by their names of which kind they are.
_NAMED = re.compile(r"\.(csv|jsonl?|ndjson)(\.(gz|bz2|zst))?$", re.IGNORECASE)
Queue = Annotated[str, "The queue's name."]
Source = Annotated[str, "A file, a folder, a pattern such as data/*.csv, or the name of a table."]
Id = Annotated[str | None, "The column that is the id; by default `id`."]
IdFrom = Annotated[str | None, "Or columns whose content is hashed to make the id, with commas between."]
Data = Annotated[str | None, "The column that is the data; by default `data`, else the row as JSON."]
Reading = Annotated[list[str] | None, "An option for Spark's reader, such as sep=; - may be given again."]


def load(  # noqa: PLR0913 - each is an option of the command
    spark: SparkSession,
    queue: Queue,
    source: Source,
    *,
    format: Format = None,  # noqa: A002 - the option's name
    id: Id = None,  # noqa: A002 - as above
    id_from: IdFrom = None,
    data: Data = None,
    option: Reading = None,
    url: Url = None,
    cluster: Cluster = False,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Load a table into a queue: the rows whose id is not there yet.

    Returns:
        `rows`, `added` and `already_there`.

    Raises:
        InvalidArgument: If an argument cannot be used; nothing was added.
        pyspark.errors.PySparkException: If the source cannot be read, or a row can be no item.
    """
    rows = read(spark, source, format, option)
    tell(f"loading {source} into {queue}")
    with place(url, cluster=cluster) as where:
        report = add(rows, queue, check=True, **where, **columns(id, id_from, data))
    return {
        "queue": queue,
        "rows": report.rows,
        "added": report.added,
        "already_there": report.already_there,
    }


def read(spark: SparkSession, source: str, kind: str | None, options: list[str] | None) -> DataFrame:
    """Read a table; without a kind, of the kind that its name says.

    Raises:
        InvalidArgument: If an option is not `name=value`.
        pyspark.errors.AnalysisException: If there is no such source.
    """
    given: dict[str, str] = {}
    for option in options or ():
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise InvalidArgument("option", option, "name=value")
        given[name] = value
    if kind is None:
        named = _NAMED.search(source)
        kind = ("csv" if named[1].lower() == "csv" else "json") if named else "parquet"
    reader = spark.read.options(**({"header": "true"} if kind == "csv" else {}) | given)
    return reader.table(source) if kind == "table" else reader.format(kind).load(source)


def columns(id_column: str | None, id_from: str | None, data: str | None) -> dict[str, str]:
    """The options of the format that choose columns."""
    chosen = {"idColumn": id_column, "idFrom": id_from, "dataColumn": data}
    return {name: value for name, value in chosen.items() if value}


if __name__ == "__main__":
    main(load)
