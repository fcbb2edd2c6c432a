"""A check of all rows of a table, before the first of them is added."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
)

from leasequeue.durations import LONGEST_SECONDS
from leasequeue.errors import InvalidArgument
from leasequeue.item import ID_ALLOWED, MAX_DATA_BYTES, MAX_ID_BYTES
from leasequeue.queue.encoding import GROUP_ALLOWED, MAX_GROUP_BYTES, MAX_LEVEL
from leasequeue.spark.add.columns import (
    DATA_ALLOWED,
    DELAY_ALLOWED,
    EXPIRES_ALLOWED,
    FINITE_ALLOWED,
    LEVEL_ALLOWED,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from leasequeue.spark.add.columns import Columns


class _Rule(NamedTuple):
    """A check of one column of a table."""

    what: str
    #: True where a row breaks the rule; false or null where it does not.
    broken: Column
    #: What the error shows of such a row.
    shown: Column
    allowed: str


def check_rows(df: DataFrame, columns: Columns) -> None:
    """Check in one pass over a table that each row can be an item.

    Of the size of a row that is sent as JSON it counts only the bytes of its strings.
    """
    rules = [*_rules(columns, {field.name: field.dataType for field in df.schema})]
    counts = [sql.count_if(rule.broken).alias(f"n{at}") for at, rule in enumerate(rules)]
    examples = [
        sql.any_value(sql.when(rule.broken, rule.shown), sql.lit(True)).alias(f"x{at}")
        for at, rule in enumerate(rules)
    ]
    if not rules:
        return
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
        value = quoted(name)
        yield _Rule(f"column {name!r}", value.isNull(), sql.lit(None), "something to hash")
    else:
        yield from _finite(columns.id_from, types)
    if columns.data is not None:
        yield from _sized(columns.data, 0, MAX_DATA_BYTES, DATA_ALLOWED)
    else:
        yield from _finite(columns.every, types)
        sizes = [sql.octet_length(quoted(name)) for name in columns.every if name in texts]
        if sizes:
            size = sum((sql.coalesce(one, sql.lit(0)).cast("long") for one in sizes), sql.lit(0))
            shown = sql.concat(size.cast("string"), sql.lit(" bytes"))
            yield _Rule("the row as JSON", size > MAX_DATA_BYTES, shown, DATA_ALLOWED)
    if columns.delay is not None:
        delay = quoted(columns.delay)
        ms = delay.cast("double") * 1000  # to Spark, NaN is greater than any number
        bad = (ms <= -1) | (ms > LONGEST_SECONDS * 1000)
        yield _Rule(f"column {columns.delay!r}", bad, delay, DELAY_ALLOWED)
    yield from _of_options(columns)


def _of_options(columns: Columns) -> Iterator[_Rule]:
    """Check the columns of the options of an item. Without a value in a row, its item has the default."""
    bad: Column
    if columns.priority is not None:
        level = quoted(columns.priority)
        yield _Rule(
            f"column {columns.priority!r}", ~level.between(-MAX_LEVEL, MAX_LEVEL), level, LEVEL_ALLOWED
        )
    if columns.group is not None:
        group = quoted(columns.group)
        bad = group.isin("", "*") | group.contains("\0") | (sql.octet_length(group) > MAX_GROUP_BYTES)
        yield _Rule(f"column {columns.group!r}", bad, group, GROUP_ALLOWED)
    if columns.expires is not None:
        wait = quoted(columns.expires)
        number = wait.cast("double")
        bad = (number <= 0) | (number > LONGEST_SECONDS)
        yield _Rule(f"column {columns.expires!r}", bad, wait, EXPIRES_ALLOWED)


def _sized(name: str, minimum: int, maximum: int, allowed: str) -> Iterator[_Rule]:
    """Rule out nulls and sizes outside two numbers of bytes. Of a long text the error shows the length."""
    text = quoted(name)
    size = sql.octet_length(text)
    broken = text.isNull() | (size > maximum) | (size < minimum if minimum else sql.lit(False))
    shown = sql.when(size == 0, sql.lit("")).when(
        size > maximum, sql.concat(size.cast("string"), sql.lit(" bytes"))
    )
    yield _Rule(f"column {name!r}", broken, shown, allowed)


def _finite(names: Iterable[str], types: dict[str, Any]) -> Iterator[_Rule]:
    """Rule out NaN and infinity, which JSON cannot hold, also inside arrays, maps and structs."""
    for name in names:
        value = quoted(name)
        if (bad := _has_no_json(value, types[name])) is not None:
            nested = isinstance(types[name], (ArrayType, MapType, StructType))
            shown = sql.to_json(value) if nested else value
            yield _Rule(f"column {name!r}", bad, shown, FINITE_ALLOWED)


def _has_no_json(value: Column, kind: DataType) -> Column | None:
    """Return whether a value is or holds NaN or an infinity; None: its type cannot."""
    if isinstance(kind, (DoubleType, FloatType)):
        return sql.isnan(value) | sql.abs(value).eqNullSafe(sql.lit(float("inf")))
    if isinstance(kind, StructType):
        fields = (_has_no_json(value.getField(one.name), one.dataType) for one in kind)
        found = [one for one in fields if one is not None]
        return reduce(or_, found) if found else None
    if isinstance(kind, (ArrayType, MapType)):
        inner, values = (
            (kind.elementType, value)
            if isinstance(kind, ArrayType)
            else (kind.valueType, sql.map_values(value))
        )
        if _has_no_json(sql.lit(None), inner) is not None:
            return sql.exists(values, lambda one: cast("Column", _has_no_json(one, inner)))
    return None


def quoted(name: str) -> Column:
    """Quote a column name, which may hold dots and backticks."""
    return sql.col("`" + name.replace("`", "``") + "`")
