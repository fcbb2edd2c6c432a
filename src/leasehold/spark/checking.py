"""A look at all rows of a table before the first of them is added, so that nothing is added by half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DoubleType, FloatType, StringType

from leasehold.durations import LONGEST_SECONDS
from leasehold.errors import InvalidArgument
from leasehold.item import ID_ALLOWED, MAX_DATA_BYTES, MAX_ID_BYTES
from leasehold.spark.columns import DATA_ALLOWED, DELAY_ALLOWED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from leasehold.spark.columns import Columns


class _Rule(NamedTuple):
    """What may not be in a table."""

    what: str
    #: True where a row breaks the rule; null: it does not.
    broken: Column
    #: What is shown of such a row.
    shown: Column
    allowed: str


def check_rows(df: DataFrame, columns: Columns) -> None:
    """Look whether each row can be an item, in one pass over the table.

    Of a row that is sent as JSON it does not look into arrays and structs, and counts the bytes of its texts
    alone.

    Args:
        df: The table.
        columns: Which of its columns make an item.

    Raises:
        InvalidArgument: If a row cannot be an item; it says how many cannot, and shows one.
        pyspark.errors.PySparkException: If the table cannot be read.
    """
    rules = [*_rules(columns, {field.name: field.dataType for field in df.schema})]
    counts = [sql.count_if(rule.broken).alias(f"n{at}") for at, rule in enumerate(rules)]
    examples = [
        sql.any_value(sql.when(rule.broken, rule.shown), sql.lit(True)).alias(f"x{at}")
        for at, rule in enumerate(rules)
    ]
    found = df.agg(*counts, *examples).collect()[0]
    for at, rule in enumerate(rules):
        if count := found[f"n{at}"]:
            rows = f"{count:,} row{'s' * (count > 1)}"
            raise InvalidArgument(f"{rule.what} of {rows}", found[f"x{at}"], rule.allowed)


def _rules(columns: Columns, types: dict[str, Any]) -> Iterator[_Rule]:
    texts = [name for name, kind in types.items() if isinstance(kind, (BinaryType, StringType))]
    if columns.id is not None:
        yield from _sized(columns.id, 1, MAX_ID_BYTES, ID_ALLOWED)
    elif len(columns.id_from) == 1 and columns.id_from[0] in texts:
        (name,) = columns.id_from
        value = _column(name)
        yield _Rule(f"column {name!r}", value.isNull(), sql.lit(None), "something to hash")
    else:
        yield from _finite(columns.id_from, types)
    if columns.data is not None:
        yield from _sized(columns.data, 0, MAX_DATA_BYTES, DATA_ALLOWED)
    else:
        yield from _finite(columns.every, types)
        sizes = [sql.octet_length(_column(name)) for name in columns.every if name in texts]
        if sizes:
            size = sum((sql.coalesce(one, sql.lit(0)).cast("long") for one in sizes), sql.lit(0))
            told = sql.concat(size.cast("string"), sql.lit(" bytes"))
            yield _Rule("the row as JSON", size > MAX_DATA_BYTES, told, DATA_ALLOWED)
    if columns.delay is not None:
        delay = _column(columns.delay)
        ms = delay.cast("double") * 1000  # Spark has NaN for greater than any number
        bad = (ms <= -1) | (ms > LONGEST_SECONDS * 1000)
        yield _Rule(f"column {columns.delay!r}", bad, delay, DELAY_ALLOWED)


def _sized(name: str, least: int, most: int, allowed: str) -> Iterator[_Rule]:
    """No nulls, and so many bytes. Of a long text its length is shown."""
    text = _column(name)
    size = sql.octet_length(text)
    broken = text.isNull() | (size > most) | (size < least if least else sql.lit(False))
    told = sql.when(size == 0, sql.lit("")).when(
        size > most, sql.concat(size.cast("string"), sql.lit(" bytes"))
    )
    yield _Rule(f"column {name!r}", broken, told, allowed)


def _finite(names: Iterable[str], types: dict[str, Any]) -> Iterator[_Rule]:
    """Numbers that JSON has a form for."""
    for name in names:
        if isinstance(types[name], (DoubleType, FloatType)):
            number = _column(name)
            bad = sql.isnan(number) | sql.abs(number).eqNullSafe(sql.lit(float("inf")))
            yield _Rule(f"column {name!r}", bad, number, "numbers that are finite, in a row as JSON")


def _column(name: str) -> Column:
    """A column by its very name, whatever is in it."""
    return sql.col("`" + name.replace("`", "``") + "`")
