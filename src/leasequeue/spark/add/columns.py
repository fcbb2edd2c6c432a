"""The columns that make an item: chosen by options, and encoded batch by batch."""

from __future__ import annotations

import base64
import decimal
import difflib
import hashlib
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from operator import itemgetter
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
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leasequeue.durations import LONGEST_SECONDS
from leasequeue.errors import InvalidArgument
from leasequeue.item import ID_ALLOWED, MAX_DATA_BYTES, MAX_ID_BYTES
from leasequeue.queue.encoding import MAX_LEVEL, AddOptions, adding, check_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from leasequeue.spark.options import FormatOptions

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
#: Which numbers are allowed.
FINITE_ALLOWED = "numbers that are finite, in a row as JSON"


def fits_json(kind: DataType) -> bool:
    """Return whether values of a type can be part of a row as JSON."""
    if isinstance(kind, ArrayType):
        return fits_json(kind.elementType)
    if isinstance(kind, StructType):
        return all(fits_json(field.dataType) for field in kind)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and fits_json(kind.valueType)
    return isinstance(kind, _JSON)


def rows_as_json(batch: pa.RecordBatch, names: Sequence[str], where: Callable[[int], str]) -> list[bytes]:
    """Encode each row as a JSON object of these columns, as compact as that of `Item.from_json_data`."""
    columns = [_values_of(batch.column(name)) for name in names]
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode
    found: list[bytes] = []
    for at, values in enumerate(zip(*columns, strict=True)):
        row = dict(zip(names, values, strict=True))
        try:
            found.append(encode(row).encode())
        except ValueError as error:
            for place, number in _not_finite(row):
                raise InvalidArgument(f"column {place!r}, {where(at)}", number, FINITE_ALLOWED) from error
            raise
    return found


def _values_of(column: pa.Array) -> list[Any]:
    """Return the values of a column, with a sorted dict for each map: Spark does not order the entries."""
    convert, values = _converter(column.type), column.to_pylist()
    return values if convert is None else [one if one is None else convert(one) for one in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that converts the maps in a value of a type; None: there are none."""
    if pa.types.is_map(kind):
        item = _converter(kind.item_type) or _same
        return lambda entries: {
            key: value if value is None else item(value) for key, value in sorted(entries, key=itemgetter(0))
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if (element := _converter(kind.value_type)) is not None:
            return lambda values: [one if one is None else element(one) for one in values]
    elif pa.types.is_struct(kind):
        fields = {field.name: convert for field in kind if (convert := _converter(field.type)) is not None}
        if fields:
            return lambda row: {
                name: fields[name](value) if name in fields and value is not None else value
                for name, value in row.items()
            }
    return None


def _same(value: Any) -> Any:
    return value


def _not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Find the numbers that JSON cannot hold, each with its place, such as `points[2].x`."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _not_finite(one, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for at, one in enumerate(value):
            yield from _not_finite(one, f"{place}[{at}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, value


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


#: The options that choose columns.
OPTIONS = (
    *("idColumn", "idFrom", "dataColumn", "delayColumn", "atColumn"),
    *("priorityColumn", "groupColumn", "expiresColumn", "priority", "group", "expiresIn"),
)
#: Columns with this prefix belong to a job. They are left out of the row as JSON.
OWN = "_leasequeue_"
_LONGEST_MS = LONGEST_SECONDS * 1000
#: Which delays are allowed.
DELAY_ALLOWED = f"seconds, 0 or more, at most {LONGEST_SECONDS / 86400:g} days"
#: Which priorities and lives are allowed.
LEVEL_ALLOWED = f"a whole number from -{MAX_LEVEL} to {MAX_LEVEL}"
EXPIRES_ALLOWED = f"seconds, more than 0, at most {LONGEST_SECONDS / 86400:g} days"
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
        priority: The column of the priority.
        group: The column of the group.
        expires: The column of the seconds after which it is discarded if no worker has begun with it.
        same: The options that all items have.
    """

    every: tuple[str, ...]
    id: str | None
    id_from: tuple[str, ...]
    data: str | None
    delay: str | None
    at: str | None
    priority: str | None = None
    group: str | None = None
    expires: str | None = None
    same: AddOptions = field(default_factory=AddOptions)

    @classmethod
    def chosen(cls, options: FormatOptions, schema: StructType, *, exact: bool = False) -> Columns:
        """Read the options and check them against the columns of the table."""
        table = Table(schema, exact=exact)
        row = [name for name in table.types if not name.startswith(OWN)]
        id_from = tuple(map(table.name, options.names("idFrom")))
        item_id = table.name(options.text("idColumn")) or None
        if id_from and item_id:
            raise InvalidArgument("idColumn", item_id, "no idColumn when there is idFrom")
        if not id_from:
            item_id = item_id or table.default("id", "idColumn or idFrom, as there is no column 'id'")
            table.check("idColumn", item_id, (StringType, IntegralType), "a string or a whole number")
        data = table.name(options.text("dataColumn")) or table.find("data")
        if data is not None:
            wanted = "bytes or a string; with neither dataColumn nor a column 'data' the row is sent as JSON"
            table.check("dataColumn", data, (BinaryType, StringType), wanted)
        else:
            table.check_json("columns", row)
        for name in id_from:
            table.check("idFrom", name, (DataType,), "")
        if not _alone(table, id_from):
            table.check_json("idFrom", id_from)
        delay, at = (table.name(options.text(name)) or None for name in ("delayColumn", "atColumn"))
        if delay and at:
            raise InvalidArgument("atColumn", at, "a delay or a time, not both")
        if delay:
            table.check("delayColumn", delay, (NumericType,), "a number of seconds")
        if at:
            wanted = "a timestamp (TIMESTAMP_NTZ has no time zone)"
            table.check("atColumn", at, (TimestampType,), wanted)
        return cls(
            tuple(row),
            item_id,
            id_from,
            data,
            delay,
            at,
            **_columns_of_options(table, options),
            same=same_options(options),
        )

    def rows(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[list[bytes]]:
        """Encode a batch as ids, data, delays, and how items are added, as `add_once` takes them."""
        ids = self._ids(batch, where)
        if self.id is not None:
            row, where = where, lambda at: f"{row(at)}, id {ids[at].decode()!r}"
        if self.data is None:
            data = rows_as_json(batch, self.every, where)
        else:
            column = batch.column(self.data)
            _check_sizes(column, f"column {self.data!r}", (0, MAX_DATA_BYTES), DATA_ALLOWED, where)
            data = bytes_of(column)
        for at, text in enumerate(data if self.data is None else ()):
            if len(text) > MAX_DATA_BYTES:
                raise InvalidArgument(f"the row as JSON, {where(at)}", text, DATA_ALLOWED)
        return [ids, data, self.delays(batch, where), self.options(batch, where)]

    def _ids(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[bytes]:
        if self.id is None:
            if len(self.id_from) == 1 and _is_bytes(batch.column(self.id_from[0]).type):
                column = batch.column(self.id_from[0])
                _check_nulls(column, f"column {self.id_from[0]!r}", "something to hash", where)
                content = bytes_of(column)
            else:
                content = rows_as_json(batch, self.id_from, where)
            return [hashlib.sha256(one).hexdigest().encode() for one in content]
        column = batch.column(self.id)
        if not _is_bytes(column.type):
            column = column.cast(pa.string())
        _check_sizes(column, f"column {self.id!r}", (1, MAX_ID_BYTES), ID_ALLOWED, where)
        return bytes_of(column)

    def delays(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[bytes]:
        """Encode the delays of a batch: ms, or `@` and ms since 1970."""
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

    def groups(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the group of each row."""
        same = [self.same.get("group")] * batch.num_rows
        return batch.column(self.group).to_pylist() if self.group else same

    def options(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[bytes]:
        """Encode how the items of a batch are added, with what `adding` makes of the options of each."""
        chosen = {"priority": self.priority, "group": self.group, "expires_in": self.expires}
        named = {option: column for option, column in chosen.items() if column}
        if not named:
            return [adding(**self.same)] * batch.num_rows
        values = [
            (batch.column(column).cast(pa.float64()) if column == self.expires else batch.column(column))
            for column in named.values()
        ]
        known: dict[tuple[Any, ...], bytes] = {}
        found = []
        for at, row in enumerate(zip(*(one.to_pylist() for one in values), strict=True)):
            if row not in known:
                given: Any = {name: one for name, one in zip(named, row, strict=True) if one is not None}
                try:
                    known[row] = adding(**self.same | given)
                except InvalidArgument as error:
                    what = f"column {named[error.argument]!r}, {where(at)}"
                    raise InvalidArgument(what, given[error.argument], error.allowed) from error
            found.append(known[row])
        return found


#: The columns of the options of an item: the types of each, and what it has to be.
ITEM_COLUMNS: tuple[tuple[str, tuple[type[DataType], ...], str], ...] = (
    ("priority", (IntegralType,), LEVEL_ALLOWED),
    ("group", (StringType,), "a string"),
    ("expires", (NumericType,), "a number of seconds"),
)


def _columns_of_options(table: Table, options: FormatOptions) -> dict[str, Any]:
    """Check the columns of the options of an item; return their names."""
    same = same_options(options)
    found = {}
    for name, kinds, wanted in ITEM_COLUMNS:
        if column := table.name(options.text(f"{name}Column")):
            table.check(f"{name}Column", column, kinds, wanted)
            if ("expires_in" if name == "expires" else name) in same:
                allowed = f"no such column when all rows have the same, by the option {name}"
                raise InvalidArgument(f"{name}Column", column, allowed)
            found[name] = column
    return found


def same_options(options: FormatOptions) -> AddOptions:
    """Read the options that all items of a table have."""
    found = AddOptions()
    if options.text("priority"):
        found["priority"] = options.check_int("priority", 0, minimum=-MAX_LEVEL, maximum=MAX_LEVEL)
    if group := options.text("group"):
        found["group"] = check_group(group)
    if options.text("expiresIn"):
        found["expires_in"] = options.seconds("expiresIn", 0)
    return found


class Table:
    """The columns of a table, and checks of them; `exact`: the case of their names matters to Spark."""

    def __init__(self, schema: StructType, *, exact: bool) -> None:
        self._exact = exact
        self.types = {field.name: field.dataType for field in schema}
        if len(self.types) < len(schema):
            names = schema.fieldNames()
            double = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument("columns", double, "columns of different names")

    def find(self, name: str) -> str | None:
        """Return the column of a name, which may differ in case if that does not matter to Spark."""
        if name in self.types or self._exact:
            return name if name in self.types else None
        found = [column for column in self.types if column.lower() == name.lower()]
        if len(found) > 1:
            raise InvalidArgument(
                "columns", " and ".join(found), f"one column for {name!r}, as it is written"
            )
        return found[0] if found else None

    def name(self, name: str) -> str:
        """Return the column of a name as it is written in the table; if there is none, the name."""
        return self.find(name) or name

    def default(self, name: str, otherwise: str) -> str:
        """Return the column of a name."""
        if (found := self.find(name)) is None:
            raise InvalidArgument("columns", ", ".join(self.types), otherwise)
        return found

    def check(self, option: str, name: str, kinds: tuple[type[DataType], ...], wanted: str) -> None:
        """Check that an option names a column of one of some types."""
        if name not in self.types:
            lower = {column.lower(): column for column in self.types}
            close = difflib.get_close_matches(name.lower(), lower, n=1)
            hint = f" (did you mean {lower[close[0]]!r}?)" if close else ""
            raise InvalidArgument(option, name, f"one of the columns {', '.join(self.types)}{hint}")
        if not isinstance(self.types[name], kinds):
            raise InvalidArgument(option, f"{name} {self.types[name].simpleString()}", wanted)

    def check_json(self, option: str, names: Sequence[str] | dict[str, DataType]) -> None:
        """Check that JSON can hold columns."""
        for name in names:
            if not fits_json(self.types[name]):
                raise InvalidArgument(
                    option,
                    f"{name} {self.types[name].simpleString()}",
                    "a type that JSON can hold (the keys of a map must be strings); convert it with to_json, "
                    "and name the result as dataColumn",
                )


def _alone(table: Table, names: Sequence[str]) -> bool:
    return len(names) == 1 and isinstance(table.types[names[0]], (BinaryType, StringType))


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def bytes_of(column: pa.Array) -> list[bytes]:
    """Return the values of a column of strings or bytes without nulls."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    values: list[bytes] = column.cast(pa.large_binary() if large else pa.binary()).to_pylist()
    return values


def _first(mask: pa.Array) -> int | None:
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
