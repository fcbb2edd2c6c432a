"""Which columns make an item, and how a batch of them becomes rows for the server."""

from __future__ import annotations

import base64
import decimal
import difflib
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
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
    from collections.abc import Callable, Sequence

    from leasehold.spark.options import Options

#: The options that choose columns.
OPTIONS = ("idColumn", "idFrom", "dataColumn", "delayColumn", "atColumn")
#: Columns whose names begin so are a job's own. They are no part of the row as JSON.
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
#: What a delay may be.
DELAY_ALLOWED = f"seconds, 0 or more, at most {LONGEST_SECONDS / 86400:g} days"
#: What the data may be.
DATA_ALLOWED = f"bytes or a string of at most {MAX_DATA_BYTES:,} bytes"


@dataclass(frozen=True)
class Columns:
    """Which columns make an item.

    Attributes:
        every: The names of all columns that are the row.
        id: The one that is the id; None: the id is a hash.
        id_from: Those whose content is hashed.
        data: The one that is the data; None: the row as JSON.
        delay: The one that says for how many seconds the item is not to be leased.
        at: The one that says from when on it is.
    """

    every: tuple[str, ...]
    id: str | None
    id_from: tuple[str, ...]
    data: str | None
    delay: str | None
    at: str | None

    @classmethod
    def chosen(cls, options: Options, schema: StructType) -> Columns:
        """Read the options, and check them against the columns that there are.

        Raises:
            InvalidArgument: If a column is missing or of a wrong type, or options contradict each other.
        """
        table = _Table(schema)
        row = [name for name in table.types if not name.startswith(OWN)]
        id_from = tuple(options.names("idFrom"))
        item_id = options.text("idColumn") or None
        if id_from and item_id:
            raise InvalidArgument("idColumn", item_id, "no idColumn when there is idFrom")
        if not id_from:
            item_id = item_id or table.usual("id", "idColumn or idFrom, as there is no column 'id'")
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
            wanted = "a timestamp (of TIMESTAMP_NTZ nobody knows when it is)"
            table.check("atColumn", at, (TimestampType,), wanted)
        return cls(tuple(row), item_id, id_from, data, delay, at)

    def rows(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[list[bytes]]:
        """Make a batch ready: ids, data and times, as `add_once` takes them.

        Args:
            batch: The columns.
            where: Says which row a position is, for errors.

        Raises:
            InvalidArgument: If a row can be no item; it says which, and why.
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
        return [ids, data, self._waits(batch, where)]

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

    def _waits(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[bytes]:
        if self.delay:
            ms = pc.ceil(pc.multiply(batch.column(self.delay).cast(pa.float64()), 1000.0))
            # Neither is NaN between the two.
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
    """The columns that there are, and what may be asked of them."""

    def __init__(self, schema: StructType) -> None:
        self.types = {field.name: field.dataType for field in schema}
        if len(self.types) < len(schema):
            names = schema.fieldNames()
            double = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument("columns", double, "columns of different names")

    def usual(self, name: str, otherwise: str) -> str:
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
                    "what JSON has a form for; make a string of it with to_json, and name that as dataColumn",
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
    """The values of a column of strings or bytes without nulls."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    values: list[bytes] = column.cast(pa.large_binary() if large else pa.binary()).to_pylist()
    return values


def _first(mask: pa.Array) -> int | None:
    """The first position at which a mask is true."""
    at: int = pc.index(mask, True).as_py()
    return at if at >= 0 else None


def _check_nulls(column: pa.Array, what: str, allowed: str, where: Callable[[int], str]) -> None:
    if column.null_count and (null := _first(pc.is_null(column))) is not None:
        raise InvalidArgument(f"{what}, {where(null)}", None, allowed)


def _check_sizes(
    column: pa.Array, what: str, sizes: tuple[int, int], allowed: str, where: Callable[[int], str]
) -> None:
    """Check that there are no nulls, and that each value has so many bytes."""
    _check_nulls(column, what, allowed, where)
    lengths = pc.binary_length(column)
    for wrong in (pc.less(lengths, sizes[0]), pc.greater(lengths, sizes[1])):
        if (at := _first(wrong)) is not None:
            raise InvalidArgument(f"{what}, {where(at)}", column[at].as_py(), allowed)


def _json_of(batch: pa.RecordBatch, names: Sequence[str], where: Callable[[int], str]) -> list[bytes]:
    """Each row as a JSON object of these columns, as compact as that of `Item.from_json_data`."""
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
    """What JSON has no form for: times as in ISO 8601, in UTC if they have a zone; bytes as base64."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)  # a number might lose digits on the way
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
