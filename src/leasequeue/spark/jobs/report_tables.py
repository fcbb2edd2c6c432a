"""The small tables of a report: their columns, their rows, and their files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from leasequeue.keys import session_origin
from leasequeue.spark.jobs.item_history import COUNTED, DURATIONS, PERCENTILE_NAMES
from leasequeue.states import STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasequeue.spark.jobs.item_history import Row
    from leasequeue.spark.output import OutputFolder

_TEXT, _COUNT, _NUMBER, _TIME = pa.string(), pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC")
_COUNTS = dict.fromkeys(COUNTED, _COUNT)
_RUNS = dict.fromkeys(("leased", "completed", "retries", "expired_leases", "dead_letters"), _COUNT)
_SHARE = {"failures": _COUNT, "failure_share": _NUMBER}
_WAIT, _SERVICE = (dict.fromkeys([f"{of}_{name}" for name in PERCENTILE_NAMES], _NUMBER) for of in DURATIONS)
#: The columns of the tables, with their types.
TABLES: dict[str, dict[str, pa.DataType]] = {
    "hours": {"hour": _TIME, **_COUNTS, **_SHARE, **_WAIT, **_SERVICE},
    "spans": {"begin": _TIME, **_COUNTS, **_SHARE, **_WAIT, **_SERVICE},
    "workers": {"worker": _TEXT, "name": _TEXT, "host": _TEXT, "pid": _COUNT, **_RUNS, **_SHARE, **_SERVICE},
    "errors": {
        "error": _TEXT,
        "failures": _COUNT,
        "retries": _COUNT,
        "dead_letters": _COUNT,
        "share": _NUMBER,
        "last": _TIME,
        "example": _TEXT,
    },
    "slowest": {
        "id": _TEXT,
        "added": _TIME,
        "at": _TIME,
        "worker": _TEXT,
        "wait": _NUMBER,
        "service": _NUMBER,
        "attempt": pa.int32(),
        "size": _COUNT,
        "token": _COUNT,
        "number": _COUNT,
    },
    "totals": {
        "events": _COUNT,
        "ids": _COUNT,
        "first": _TIME,
        "last": _TIME,
        "seconds": _NUMBER,
        "per_second": _NUMBER,
        **_COUNTS,
        **_SHARE,
        **_WAIT,
        **_SERVICE,
        # "leased" alone is how many leases there were.
        **{f"{state}_at_end": _COUNT for state in STATES},
    },
}


def tables_of(groups: Mapping[str, Sequence[Row]], slowest: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of all tables but `totals`, by name.

    Args:
        groups: What `ItemHistory.groups` returns.
        slowest: The rows of `ItemHistory.slowest`.
    """
    failures = sum(row["failures"] for row in groups["error"])
    return {
        "hours": [row | {"hour": datetime.fromtimestamp(row["hour"], UTC)} for row in groups["hour"]],
        "spans": [row | {"begin": datetime.fromtimestamp(row["begin"], UTC)} for row in groups["begin"]],
        "workers": [row | origin_of(row["worker"]) for row in groups["worker"]],
        "errors": [in_utc(row) | {"share": row["failures"] / failures} for row in groups["error"]],
        "slowest": [in_utc(row) | origin_of(row["worker"]) for row in slowest],
    }


def origin_of(worker: str) -> Row:
    """Return the host and the process of a worker, as far as its session tells them."""
    origin = session_origin(worker)
    return {"host": origin and origin.host, "pid": origin and origin.pid}


def in_utc(row: Row) -> Row:
    """Convert the times of a row to UTC: Spark returns them in this machine's time zone."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()
    }


def write_table(folder: OutputFolder, name: str, rows: Sequence[Row]) -> None:
    """Write a table as one Parquet file, without a job of Spark, which would take longer than the file.

    Args:
        folder: The output folder; the table is the folder of its name in it, and an earlier one is replaced.
        name: One of `TABLES`.
        rows: What it contains; other columns than its own are left out.
    """
    schema = pa.schema(list(TABLES[name].items()))
    table = pa.Table.from_pylist([{column: row[column] for column in schema.names} for row in rows], schema)
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    folder.drop(name)
    folder.put(f"{name}/part-00000.snappy.parquet", sink.getvalue().to_pybytes())
