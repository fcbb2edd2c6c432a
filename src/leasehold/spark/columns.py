"""The columns that make an item: chosen by options, checked over a whole table, encoded batch by batch."""

from __future__ import annotations

import base64
import decimal
import difflib
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leasehold.durations import LONGEST_SECONDS
from leasehold.errors import InvalidArgument
from leasehold.item import ID_ALLOWED, MAX_DATA_BYTES, MAX_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from leasehold.spark.options import Options

#: The options that choose columns.
OPTIONS = ("idColumn", "idFrom", "dataColumn", "delayColumn", "atColumn")
#: Columns with this prefix belong to a job. They are left out of the row as JSON.
OWN = "_leasehold_"
_LONGEST_MS = LONGEST_SECONDS * 1000
_JSON = (
    BinaryType,
    BooleanType,
    DateType,
    NullType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
#: Which delays are allowed.
DELAY_ALLOWED = f"seconds, 0 or more, at most {LONGEST_SECONDS / 86400:g} days"
#: Which data are allowed.
DATA_ALLOWED = f"bytes or a string of at most {MAX_DATA_BYTES:,} bytes"


@dataclass(frozen=True)
class Columns:
    """The columns that make an item, by name.

    Attributes:
        every: All columns of the row as JSON.
        id: The column of the id; None: the id is a hash.
        id_from: The columns whose content is hashed.
        data: The column of the data; None: the row as JSON.
        delay: The column of the delay before the item can be leased, in seconds.
        at: The column of the time from which on it can be leased.
    """

    every: tuple[str, ...]
    id: str | None
    id_from: tuple[str, ...]
    data: str | None
    delay: str | None
    at: str | None

    @classmethod
    def chosen(cls, options: Options, schema: StructType) -> Columns:
        """Read the options and check them against the columns of the table.

        Raises:
            InvalidArgument: If a column is missing or has a wrong type, or options contradict each other.
        """
        table = _Table(schema)
        row = [name for name in table.types if not name.startswith(OWN)]
        id_from = tuple(options.names("idFrom"))
        item_id = options.text("idColumn") or None
        if id_from and item_id:
            raise InvalidArgument("idColumn", item_id, "no idColumn when there is idFrom")
        if not id_from:
            item_id = item_id or table.default("id", "idColumn or idFrom, as there is no column 'id'")
            table.check("idColumn", item_id, (StringType, IntegralType), "a string or a whole number")
        data = options.text("dataColumn") or ("data" if "data" in table.types else None)
        if data is not None:
            wanted = "bytes or a string; with neither dataColumn nor a column 'data' the row is sent as JSON"
            table.check("dataColumn", data, (BinaryType, StringType), wanted)
        else:
            table.check_json("columns", row)
        for name in id_from:
            table.check("idFrom", name, (DataType,), "")
        if not _alone(table, id_from):
            table.check_json("idFrom", id_from)
        delay, at = options.text("delayColumn") or None, options.text("atColumn") or None
        if delay and at:
            raise InvalidArgument("atColumn", at, "a delay or a time, not both")
        if delay:
            table.check("delayColumn", delay, (NumericType,), "a number of seconds")
        if at:
            wanted = "a timestamp (TIMESTAMP_NTZ has no time zone)"
            table.check("atColumn", at, (TimestampType,), wanted)
        return cls(tuple(row), item_id, id_from, data, delay, at)

    def rows(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[list[bytes]]:
        """Encode a batch as ids, data and delays, as `add_once` takes them.

        Args:
            batch: The columns.
            where: Names the row at a position, for errors.

        Raises:
            InvalidArgument: If a row cannot be an item; the message says which and why.
        """
        ids = self._ids(batch, where)
        if self.data is None:
            data = _json_of(batch, self.every, where)
        else:
            column = batch.column(self.data)
            _check_sizes(column, f"column {self.data!r}", (0, MAX_DATA_BYTES), DATA_ALLOWED, where)
            data = bytes_of(column)
        for at, text in enumerate(data if self.data is None else ()):
            if len(text) > MAX_DATA_BYTES:
                raise InvalidArgument(f"the row as JSON, {where(at)}", text, DATA_ALLOWED)
        return [ids, data, self._delays(batch, where)]

    def _ids(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[bytes]:
        if self.id is None:
            if len(self.id_from) == 1 and _is_bytes(batch.column(self.id_from[0]).type):
                column = batch.column(self.id_from[0])
                _check_nulls(column, f"column {self.id_from[0]!r}", "something to hash", where)
                content = bytes_of(column)
            else:
                content = _json_of(batch, self.id_from, where)
            return [hashlib.sha256(one).hexdigest().encode() for one in content]
        column = batch.column(self.id)
        if not _is_bytes(column.type):
            column = column.cast(pa.string())
        _check_sizes(column, f"column {self.id!r}", (1, MAX_ID_BYTES), ID_ALLOWED, where)
        return bytes_of(column)

    def _delays(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[bytes]:
        if self.delay:
            ms = pc.ceil(pc.multiply(batch.column(self.delay).cast(pa.float64()), 1000.0))
            # A NaN fails both comparisons.
            fits = pc.and_(pc.greater_equal(ms, 0.0), pc.less_equal(ms, _LONGEST_MS))
            if (wrong := _first(pc.invert(fits))) is not None:
                given = batch.column(self.delay)[wrong].as_py()
                raise InvalidArgument(f"column {self.delay!r}, {where(wrong)}", given, DELAY_ALLOWED)
            return [b"%d" % (wait or 0) for wait in ms.to_pylist()]
        if self.at:
            micros = batch.column(self.at).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
            # Rounded up: never too early.
            return [b"0" if one is None else b"@%d" % -(-one // 1000) for one in micros]
        return [b"0"] * batch.num_rows


class _Table:
    """The columns of a table, and checks of them."""

    def __init__(self, schema: StructType) -> None:
        self.types = {field.name: field.dataType for field in schema}
        if len(self.types) < len(schema):
            names = schema.fieldNames()
            double = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument("columns", double, "columns of different names")

    def default(self, name: str, otherwise: str) -> str:
        if name not in self.types:
            raise InvalidArgument("columns", ", ".join(self.types), otherwise)
        return name

    def check(self, option: str, name: str, kinds: tuple[type[DataType], ...], wanted: str) -> None:
        if name not in self.types:
            close = difflib.get_close_matches(name, self.types, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise InvalidArgument(option, name, f"one of the columns {', '.join(self.types)}{hint}")
        if not isinstance(self.types[name], kinds):
            raise InvalidArgument(option, f"{name} {self.types[name].simpleString()}", wanted)

    def check_json(self, option: str, names: Sequence[str] | dict[str, DataType]) -> None:
        for name in names:
            if not _is_json(self.types[name]):
                raise InvalidArgument(
                    option,
                    f"{name} {self.types[name].simpleString()}",
                    "a type that JSON can hold; convert it with to_json, and name the result as dataColumn",
                )


def _alone(table: _Table, names: Sequence[str]) -> bool:
    return len(names) == 1 and isinstance(table.types[names[0]], (BinaryType, StringType))


def _is_json(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_json(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_json(field.dataType) for field in kind)
    return isinstance(kind, _JSON)


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def bytes_of(column: pa.Array) -> list[bytes]:
    """Return the values of a column of strings or bytes without nulls."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    values: list[bytes] = column.cast(pa.large_binary() if large else pa.binary()).to_pylist()
    return values


def _first(mask: pa.Array) -> int | None:
    """Return the first position at which a mask is true."""
    at: int = pc.index(mask, True).as_py()
    return at if at >= 0 else None


def _check_nulls(column: pa.Array, what: str, allowed: str, where: Callable[[int], str]) -> None:
    if column.null_count and (null := _first(pc.is_null(column))) is not None:
        raise InvalidArgument(f"{what}, {where(null)}", None, allowed)


def _check_sizes(
    column: pa.Array, what: str, sizes: tuple[int, int], allowed: str, where: Callable[[int], str]
) -> None:
    """Check that there are no nulls, and that the size of each value is between two numbers of bytes."""
    _check_nulls(column, what, allowed, where)
    lengths = pc.binary_length(column)
    for wrong in (pc.less(lengths, sizes[0]), pc.greater(lengths, sizes[1])):
        if (at := _first(wrong)) is not None:
            raise InvalidArgument(f"{what}, {where(at)}", column[at].as_py(), allowed)


def _json_of(batch: pa.RecordBatch, names: Sequence[str], where: Callable[[int], str]) -> list[bytes]:
    """Encode each row as a JSON object of these columns, as compact as that of `Item.from_json_data`."""
    columns = [batch.column(name).to_pylist() for name in names]
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode
    found: list[bytes] = []
    for at, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        try:
            found.append(encode(row).encode())
        except ValueError as error:
            raise InvalidArgument(f"the row as JSON, {where(at)}", row, "numbers that are finite") from error
    return found


def _plain(value: object) -> Any:
    """Convert for JSON: times to ISO 8601, in UTC if they have a zone; bytes to base64."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)  # a JSON number might lose digits
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


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

    Of a row that is sent as JSON it does not check the content of arrays and structs, and counts only the
    bytes of its strings.

    Args:
        df: The table.
        columns: The columns that make an item.

    Raises:
        InvalidArgument: If rows cannot be items; the message counts them and shows one.
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
            shown = sql.concat(size.cast("string"), sql.lit(" bytes"))
            yield _Rule("the row as JSON", size > MAX_DATA_BYTES, shown, DATA_ALLOWED)
    if columns.delay is not None:
        delay = _column(columns.delay)
        ms = delay.cast("double") * 1000  # to Spark, NaN is greater than any number
        bad = (ms <= -1) | (ms > LONGEST_SECONDS * 1000)
        yield _Rule(f"column {columns.delay!r}", bad, delay, DELAY_ALLOWED)


def _sized(name: str, minimum: int, maximum: int, allowed: str) -> Iterator[_Rule]:
    """Rule out nulls and sizes outside two numbers of bytes. Of a long text the error shows the length."""
    text = _column(name)
    size = sql.octet_length(text)
    broken = text.isNull() | (size > maximum) | (size < minimum if minimum else sql.lit(False))
    shown = sql.when(size == 0, sql.lit("")).when(
        size > maximum, sql.concat(size.cast("string"), sql.lit(" bytes"))
    )
    yield _Rule(f"column {name!r}", broken, shown, allowed)


def _finite(names: Iterable[str], types: dict[str, Any]) -> Iterator[_Rule]:
    """Rule out NaN and infinity, which JSON cannot hold."""
    for name in names:
        if isinstance(types[name], (DoubleType, FloatType)):
            number = _column(name)
            bad = sql.isnan(number) | sql.abs(number).eqNullSafe(sql.lit(float("inf")))
            yield _Rule(f"column {name!r}", bad, number, "numbers that are finite, in a row as JSON")


def _column(name: str) -> Column:
    """Quote a column name, which may hold dots and backticks."""
    return sql.col("`" + name.replace("`", "``") + "`")
