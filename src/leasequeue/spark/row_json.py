"""Rows as JSON: the data of an item whose table has no column for it, and what is hashed."""

from __future__ import annotations

import base64
import decimal
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
