"""The columns that a handler of `process` yields: those of the schema by name, and those of outcomes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from leasequeue.errors import InvalidArgument
from leasequeue.worker.outcomes import Reject, Retry, Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

#: Columns that a handler may add to those of its schema. They are not written into the output.
ITEM, OUTCOME, ERROR, DELAY = "_id", "_outcome", "_error", "_delay"
RESERVED = {ITEM: pa.string(), OUTCOME: pa.string(), ERROR: pa.string(), DELAY: pa.float64()}
#: The column that readers of the output see in place of one of this name: `OutputFolder` names folders so.
BATCH = "batch"
#: The prefix of other columns that users cannot have.
_OWN = "_leasequeue"
_SCHEMA = "columns and their types, such as 'id string, size long'"
_OUTCOMES = "null, 'complete', 'retry' or 'reject'"
_UNFIT = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    ValueError,
    TypeError,
)


@dataclass(frozen=True)
class OutputColumns:
    """The columns of an output."""

    schema: StructType
    timezone: str

    @classmethod
    def of(cls, schema: StructType | str, timezone: str) -> OutputColumns:
        """Read a schema."""
        columns: Any = schema
        if isinstance(schema, str):
            try:
                columns = StructType.fromDDL(schema)
            except PySparkException as error:
                raise InvalidArgument("schema", schema, _SCHEMA) from error
        if not isinstance(columns, StructType) or not len(columns):
            raise InvalidArgument("schema", schema, _SCHEMA)
        names = [name.lower() for name in columns.fieldNames()]
        for name in names:
            if name == BATCH:
                allowed = "another name: readers of the output see in it the number of a row's batch"
                raise InvalidArgument("schema", name, allowed)
            if name in RESERVED or name.startswith(_OWN):
                allowed = f"other columns than {', '.join(RESERVED)}, which are for outcomes"
                raise InvalidArgument("schema", name, allowed)
            if names.count(name) > 1:
                raise InvalidArgument("schema", name, "columns of different names")
        return cls(columns, timezone)

    def check_names(self, given: Sequence[str]) -> None:
        """Check that these are the names of the schema, in any order, and perhaps those of outcomes."""
        names = self.schema.fieldNames()
        if len(given) == len(names) and set(given) == set(names):
            return
        wrong = [
            *(f"{name!r} is missing" for name in names if name not in given),
            *(
                f"{name!r} is not in the schema"
                for name in given
                if name not in names and name not in RESERVED
            ),
            *(f"{name!r} is there twice" for name in sorted({*given}) if [*given].count(name) > 1),
        ]
        if wrong:
            allowed = f"the columns of the schema, {', '.join(names)}: {', '.join(wrong)}"
            raise InvalidArgument("what the handler yields", ", ".join(map(str, given)), allowed)

    def ids(self, batch: pa.RecordBatch) -> list[str] | None:
        """Return the id of the item of each row; None: the batch has no column of ids."""
        if ITEM in batch.schema.names:
            name = ITEM
        elif any(one.name == "id" and isinstance(one.dataType, StringType) for one in self.schema):
            name = "id"
        else:
            return None
        ids: list[str] = _fit(name, batch.column(name), pa.string(), "string").to_pylist()
        return ids

    def signals(self, batch: pa.RecordBatch) -> list[Signal | None]:
        """Return the outcome of each row, as a handler of single items would raise it; None: completed."""
        words, errors, delays = (
            _fit(name, batch.column(name), RESERVED[name], str(RESERVED[name])).to_pylist()
            if name in batch.schema.names
            else [None] * batch.num_rows
            for name in (OUTCOME, ERROR, DELAY)
        )
        return [*map(_signal, words, errors, delays)]

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of the schema in their order, with their types."""
        columns = []
        for field, kind in zip(self.schema, self._types, strict=True):
            column = _fit(field.name, batch.column(field.name), kind, field.dataType.simpleString())
            if not field.nullable and column.null_count:
                raise InvalidArgument(
                    _what(field.name), None, f"a {field.dataType.simpleString()} in each row"
                )
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, names=self.schema.fieldNames())

    def batch_of_frame(self, frame: pd.DataFrame) -> pa.RecordBatch:
        """Convert a pandas data frame."""
        names = [*frame.columns]
        self.check_names(names)
        columns = []
        for name in names:
            values = frame[name]
            dtype = getattr(values.dtype, "pyarrow_dtype", values.dtype)
            if getattr(values.dtype, "kind", "") == "M" and getattr(dtype, "tz", None) is None:
                kind, _ = self._kind_of(name)
                if pa.types.is_timestamp(kind) and kind.tz is not None:
                    values = self._localized(name, values)
            columns.append(self._array(name, values))
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _localized(self, name: str, values: pd.Series) -> pd.Series:
        """Take times without a zone as those of the session; of two at which clocks show it, the second."""
        if (arrow := getattr(values.dtype, "pyarrow_dtype", None)) is not None:
            values = values.astype(f"datetime64[{arrow.unit}]")  # those of Arrow know no `ambiguous`
        # Spark chooses the second, too.
        found = values.dt.tz_localize(self.timezone, ambiguous=False, nonexistent="NaT")
        skipped = values[found.isna() & values.notna()]
        if len(skipped):
            allowed = f"{self._kind_of(name)[1]}: a time that the clocks of {self.timezone} show"
            raise InvalidArgument(_what(name), str(skipped.iloc[0]), allowed)
        return found

    def batch_of_rows(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Convert rows, each a dict."""
        for row in rows:
            if not isinstance(row, Mapping):
                raise InvalidArgument(
                    "what the handler returns", row, "dicts of the columns of the schema, or None"
                )
            self.check_names([*row])
            if OUTCOME in row:
                allowed = "none: a handler of single items raises Retry or Reject"
                raise InvalidArgument(_what(OUTCOME), row[OUTCOME], allowed)
        names = [*self.schema.fieldNames(), ITEM]
        columns = []
        for name in names:
            values = [row[name] for row in rows]
            columns.append(self._array(name, values))
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _array(self, name: str, values: list[Any] | pd.Series) -> pa.Array:
        kind, wanted = self._kind_of(name)
        if pa.types.is_float32(kind) and getattr(getattr(values, "dtype", None), "kind", "") == "f":
            return _fit(name, _whole(pa.array(values, from_pandas=True)), kind, wanted)
        try:
            if _is_any(kind, _CHECKED):
                if not isinstance(values, list) and getattr(values.dtype, "kind", "") == "O":
                    pairs = zip(values, values.isna(), strict=True)  # a missing value may be NaN
                    values = [None if missing else value for value, missing in pairs]
                if isinstance(values, list):
                    values = [_plain(value, kind) for value in values]
            made = pa.array(values, kind, from_pandas=not isinstance(values, list))
        except _UNFIT as error:
            raise InvalidArgument(_what(name), str(error), f"{wanted}, as in the schema") from error
        return _whole(made)

    def _kind_of(self, name: str) -> tuple[pa.DataType, str]:
        if name in RESERVED:
            return RESERVED[name], str(RESERVED[name])
        at = self.schema.fieldNames().index(name)
        return self._types[at], self.schema[at].dataType.simpleString()

    @property
    def _types(self) -> list[pa.DataType]:
        kinds: list[pa.DataType] = to_arrow_schema(self.schema, timezone=self.timezone).types
        return kinds


def _signal(word: str | None, error: str | None, delay: float | None) -> Signal | None:
    if word in (None, "complete"):
        return None
    if word == "reject":
        return Reject(error or "the handler rejected the item")
    if word == "retry":
        return Retry(delay=delay) if error is None else Retry(error, delay=delay)
    raise InvalidArgument(_what(OUTCOME), word, _OUTCOMES)


def _what(name: str) -> str:
    return f"column {name!r} of what the handler yields"


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _fit(name: str, column: pa.Array, kind: pa.DataType, wanted: str) -> pa.Array:
    """Convert a column to a type of the same family, without a loss."""
    if column.type == kind:
        return column
    if _is_alike(column.type, kind):
        try:
            made = column.cast(kind, safe=True)
        except _UNFIT as error:
            raise InvalidArgument(_what(name), str(error), f"{wanted}, as in the schema") from error
        if _infinities(made) > _infinities(column):
            raise InvalidArgument(_what(name), "a number that is too large", f"{wanted}, as in the schema")
        return made
    raise InvalidArgument(_what(name), str(column.type), f"{wanted}, as in the schema")


def _infinities(column: pa.Array) -> int:
    """Count the infinities in a column, also those inside its values."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.sum(pc.is_inf(column)).as_py() or 0
    if pa.types.is_dictionary(kind):
        return _infinities(column.dictionary_decode())
    if pa.types.is_map(kind):
        begin, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return sum(_infinities(part[begin:end]) for part in (column.keys, column.items))
    if pa.types.is_struct(kind):
        return sum(map(_infinities, column.flatten()))
    return _infinities(column.flatten()) if pa.types.is_nested(kind) else 0


_FAMILIES = (
    (pa.types.is_integer,),
    (pa.types.is_floating,),
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view),
    (pa.types.is_decimal,),
    (pa.types.is_boolean,),
    (pa.types.is_date,),
    (pa.types.is_duration,),
)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
#: What pyarrow would make of objects with a loss, and what may hold such values.
_CHECKED = (pa.types.is_nested, pa.types.is_integer, pa.types.is_float32, pa.types.is_timestamp)


def _is_alike(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether two types differ only in width, unit or encoding."""
    if pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return _is_alike(given.value_type, wanted)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        names = [[kind.field(at).name for at in range(kind.num_fields)] for kind in (given, wanted)]
        pairs = [(given.field(at).type, wanted.field(at).type) for at in range(given.num_fields)]
        return names[0] == names[1] and all(_is_alike(one, other) for one, other in pairs)
    for tests, parts in (((pa.types.is_map,), ("key_type", "item_type")), (_LISTS, ("value_type",))):
        if _is_any(given, tests) and _is_any(wanted, tests):
            return all(_is_alike(getattr(given, part), getattr(wanted, part)) for part in parts)
    return any(_is_any(given, family) and _is_any(wanted, family) for family in _FAMILIES)


def _is_any(kind: pa.DataType, tests: Iterable[Any]) -> bool:
    return any(test(kind) for test in tests)


def _check_kept(value: Any, kind: pa.DataType) -> None:
    """Check that pyarrow would not change a value."""
    if pa.types.is_integer(kind) and not isinstance(value, Integral):
        raise TypeError(f"{value!r} is not an integer")  # pyarrow would cut off a fraction
    if pa.types.is_float32(kind) and isinstance(value, Real):
        try:
            struct.pack("<f", value)
        except OverflowError as error:
            raise OverflowError(f"{value!r} is too large") from error  # it would be infinite
    naive = isinstance(value, datetime) and value.tzinfo is None and str(value) != "NaT"
    if naive and pa.types.is_timestamp(kind) and kind.tz is not None:  # it would be one of UTC
        raise ValueError(f"{value} is not a time with a time zone; timestamp_ntz has none")


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Convert rows and dicts inside a value into what pyarrow takes."""
    if value is None:
        return None
    _check_kept(value, kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        if isinstance(value, Row):
            value = value.asDict()
        if isinstance(value, Mapping):
            if unknown := value.keys() - {field.name for field in fields}:
                raise InvalidArgument("a struct of what the handler yields", str(min(unknown)), f"{kind}")
            return {field.name: _plain(value.get(field.name), field.type) for field in fields}
        return value
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_plain(key, kind.key_type), _plain(one, kind.item_type)) for key, one in pairs]
    if (
        _is_any(kind, _LISTS)
        and _is_any(kind.value_type, _CHECKED)
        and not isinstance(value, (str, bytes, Mapping))
    ):
        return [_plain(one, kind.value_type) for one in value]
    return value
