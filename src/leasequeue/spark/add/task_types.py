"""The arguments of a task as columns: checked against its types on the driver, written on the executors.

An executor needs no module of the task: what it checks the values of a row by is described by nodes, which
consist of Python's built-in types.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypedDict
from uuid import UUID

import msgspec
from msgspec import inspect
from pyspark.sql import types as spark

from leasequeue.item import codec
from leasequeue.spark.add.columns import fits_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Node(Protocol):
    """What the values of a column are checked, written and read by."""

    def type(self) -> Any:
        """Return the type that the JSON of a value has to fit."""

    def value(self, given: Any) -> Any:
        """Convert a value as Arrow gives it into one that is written as the caller of a task would."""

    def row(self, read: Any) -> Any:
        """Convert a value that was read from JSON into what Arrow takes."""


@dataclass(frozen=True)
class Leaf:
    """A value that holds no others: its type, and limits such as `ge`."""

    kind: Any
    limits: tuple[tuple[str, Any], ...] = ()

    def type(self) -> Any:
        """Return the type, with the limits."""
        return Annotated[self.kind, msgspec.Meta(**dict(self.limits))] if self.limits else self.kind

    def value(self, given: Any) -> Any:
        """Return the value, in UTC if it is a time with a zone."""
        return given.astimezone(UTC) if isinstance(given, datetime) and given.tzinfo else given

    def row(self, read: Any) -> Any:
        """Return the value; of JSON that is kept as it is, the text; a time without a zone is one of UTC."""
        if isinstance(read, msgspec.Raw):
            text = bytes(read).decode()
            return None if text == "null" else text
        return read.replace(tzinfo=UTC) if isinstance(read, datetime) and read.tzinfo is None else read


@dataclass(frozen=True)
class Array:
    """An array."""

    item: Node
    limits: tuple[tuple[str, Any], ...] = ()

    def type(self) -> Any:
        """Return the type of a list, with the limits of its length."""
        kind: Any = list[self.item.type()]  # type: ignore[misc] # known at run time only
        return Annotated[kind, msgspec.Meta(**dict(self.limits))] if self.limits else kind

    def value(self, given: Any) -> Any:
        """Return a list."""
        return None if given is None else [self.item.value(one) for one in given]

    def row(self, read: Any) -> Any:
        """Return a list."""
        return None if read is None else [self.item.row(one) for one in read]


class Unordered(Array):
    """An array whose argument is a set: without equal values, in the order of those of a content id."""

    def value(self, given: Any) -> Any:
        """Return a list."""
        if given is None:
            return None
        # Values may be lists, which cannot be in a set.
        found = {codec.encode(one, ordered=True): one for one in super().value(given)}
        try:
            read = [(msgspec.convert(one, self.item.type()), one) for one in found.values()]
            return [one for _, one in sorted(read, key=itemgetter(0))]
        except (
            TypeError,
            msgspec.ValidationError,
        ):  # the caller's have no order, or what decodes it says why
            return [found[text] for text in sorted(found)]


@dataclass(frozen=True)
class Entries:
    """A map. Spark does not order its entries: they are sorted by key."""

    key: Node
    item: Node

    def type(self) -> Any:
        """Return the type of a dict."""
        return dict[self.key.type(), self.item.type()]  # type: ignore[misc] # known at run time only

    def value(self, given: Any) -> Any:
        """Return a dict."""
        if given is None:
            return None
        pairs = sorted(given, key=itemgetter(0))
        return {self.key.value(key): self.item.value(value) for key, value in pairs}

    def row(self, read: Any) -> Any:
        """Return pairs."""
        return None if read is None else [(key, self.item.row(value)) for key, value in read.items()]


@dataclass(frozen=True)
class Fields:
    """A struct: its fields by name, in the order of the class; sorted by name where the caller has a dict."""

    fields: tuple[tuple[str, Node], ...]

    def type(self) -> Any:
        """Return the type of a dict of these fields; results may lack some."""
        fields = {name: node.type() for name, node in self.fields}
        return TypedDict("Fields", fields, total=False)  # type: ignore[operator] # known at run time only

    def value(self, given: Any) -> Any:
        """Return a dict."""
        return None if given is None else {name: node.value(given[name]) for name, node in self.fields}

    def row(self, read: Any) -> Any:
        """Return a dict, with null for each field that is missing."""
        return None if read is None else {name: node.row(read.get(name)) for name, node in self.fields}


@dataclass(frozen=True)
class Nullable:
    """A value that may be null."""

    node: Node

    def type(self) -> Any:
        """Return the type of the value, or None."""
        return self.node.type() | None

    def value(self, given: Any) -> Any:
        """Convert the value."""
        return self.node.value(given)

    def row(self, read: Any) -> Any:
        """Convert the value."""
        return self.node.row(read)


class Unchecked(Nullable):
    """A value of any type, or one that only the worker can check."""

    def type(self) -> Any:
        """Return Any."""
        return Any


class Unfit(Exception):
    """A column does not fit the type of its argument. The text names the column and says why."""


_INTEGERS = (spark.IntegralType,)
#: For each type of an argument, the type that its JSON is decoded to, and those that a column may have. The
#: values of strings that stand for others are checked row by row.
_SCALARS: dict[type[inspect.Type], tuple[Any, tuple[type[spark.DataType], ...]]] = {
    inspect.NoneType: (None, (spark.NullType,)),
    inspect.BoolType: (bool, (spark.BooleanType,)),
    inspect.IntType: (int, _INTEGERS),
    inspect.FloatType: (float, (spark.DoubleType, spark.FloatType, *_INTEGERS)),
    inspect.StrType: (str, (spark.StringType,)),
    inspect.BytesType: (bytes, (spark.BinaryType,)),
    inspect.ByteArrayType: (bytes, (spark.BinaryType,)),
    inspect.MemoryViewType: (bytes, (spark.BinaryType,)),
    inspect.DateTimeType: (datetime, (spark.TimestampType, spark.TimestampNTZType, spark.StringType)),
    inspect.DateType: (date, (spark.DateType, spark.StringType)),
    inspect.TimeType: (time, (spark.StringType,)),
    inspect.TimeDeltaType: (timedelta, (spark.DayTimeIntervalType, spark.StringType)),
    inspect.UUIDType: (UUID, (spark.StringType,)),
    inspect.DecimalType: (Decimal, (spark.DecimalType, spark.StringType, *_INTEGERS)),
}
#: The types whose JSON is an array of values of one type, and those whose JSON is an object with fields.
ARRAYS: tuple[type[inspect.Type], ...] = (
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.VarTupleType,
    inspect.CollectionType,
)
RECORDS = (inspect.DataclassType, inspect.StructType, inspect.TypedDictType)
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
_NAMES = {spark.IntegralType: "a whole number", spark.DayTimeIntervalType: "interval day to second"}


def fit(kind: Any, column: spark.DataType, place: str) -> Node:
    """Check the type of a column against that of an argument."""
    find = _FITS.get(type(kind), _scalar)
    return find(kind, column, place)


def _scalar(kind: Any, column: spark.DataType, place: str) -> Node:
    if type(kind) not in _SCALARS:
        raise Unfit(f"column {place!r}: a column cannot hold what the argument takes")
    python, allowed = _SCALARS[type(kind)]
    if not isinstance(column, allowed):
        raise _unfit(place, column, allowed)
    return Leaf(python, _limits(kind))


def _array(kind: Any, column: spark.DataType, place: str) -> Node:
    if not isinstance(column, spark.ArrayType):
        raise _unfit(place, column, (spark.ArrayType,))
    make = Unordered if isinstance(kind, (inspect.SetType, inspect.FrozenSetType)) else Array
    return make(fit(kind.item_type, column.elementType, f"{place}[]"), _limits(kind))


def _dict(kind: inspect.DictType, column: spark.DataType, place: str) -> Node:
    if isinstance(column, spark.MapType):
        key = fit(kind.key_type, column.keyType, f"a key of {place}")
        return Entries(key, fit(kind.value_type, column.valueType, f"{place}[…]"))
    if isinstance(column, spark.StructType) and isinstance(kind.key_type, (inspect.StrType, inspect.AnyType)):
        fields = sorted(column, key=attrgetter("name"))
        return Fields(
            tuple((one.name, fit(kind.value_type, one.dataType, f"{place}.{one.name}")) for one in fields)
        )
    raise _unfit(place, column, (spark.MapType,))


def _any(_: inspect.AnyType, column: spark.DataType, place: str) -> Node:
    return Unchecked(_untyped(column, place))


def _union(kind: inspect.UnionType, column: spark.DataType, place: str) -> Node:
    found, problems = [], []
    nullable = any(isinstance(one, inspect.NoneType) for one in kind.types)
    for one in kind.types:
        if isinstance(one, inspect.NoneType) and not isinstance(column, spark.NullType):
            continue
        try:
            found.append(fit(one, column, place))
        except Unfit as error:
            problems.append(str(error))
    if not found:
        raise Unfit("; or ".join(problems))
    node: Node = found[0]
    if len(found) > 1 and isinstance(node, Fields):  # of tagged structs: each row shows which one
        node = Unchecked(_untyped(column, place))
    return Nullable(node) if nullable else node


def _one_of(kind: inspect.EnumType | inspect.LiteralType, column: spark.DataType, place: str) -> Node:
    values: Sequence[Any] = (
        [one.value for one in kind.cls] if isinstance(kind, inspect.EnumType) else kind.values
    )
    texts = [one for one in values if isinstance(one, str)]
    numbers = [one for one in values if isinstance(one, int)]
    for some, allowed in ((texts, spark.StringType), (numbers, spark.IntegralType)):
        if some and isinstance(column, allowed):
            node = Leaf(Literal[tuple(some)])
            return Nullable(node) if None in values else node
    kinds = [*([spark.StringType] if texts else []), *([spark.IntegralType] if numbers else [])]
    raise _unfit(place, column, kinds)


def _struct(
    kind: inspect.DataclassType | inspect.TypedDictType | inspect.StructType,
    column: spark.DataType,
    place: str,
) -> Node:
    if getattr(kind, "array_like", False):
        raise Unfit(f"column {place!r}: a column cannot hold a struct that is an array in JSON")
    if not isinstance(column, spark.StructType):
        raise _unfit(place, column, (spark.StructType,))
    given = {one.name: one.dataType for one in column}
    fields: list[tuple[str, Node]] = []
    wanted = [one.encode_name for one in kind.fields if one.required]
    if (tag := getattr(kind, "tag_field", None)) is not None:
        wanted.insert(0, tag)
        if tag in given:
            fields.append((tag, Leaf(Literal[kind.tag])))  # type: ignore[union-attr] # only structs have one
    for one in kind.fields:
        if one.encode_name in given:
            node = fit(one.type, given[one.encode_name], f"{place}.{one.encode_name}")
            fields.append((one.encode_name, node))
    if isinstance(kind, inspect.TypedDictType):
        fields.sort(key=itemgetter(0))
    missing = [one for one in wanted if one not in given]
    _check_fields(place, missing, given.keys() - {name for name, _ in fields})
    return Fields(tuple(fields))


def _model(kind: inspect.CustomType, column: spark.DataType, place: str) -> Node:
    """Check the names of the fields of a pydantic model; their values are for the worker to check."""
    if not isinstance(column, spark.StructType):
        raise _unfit(place, column, (spark.StructType,))
    schema: dict[str, Any] = kind.cls.model_json_schema()  # type: ignore[attr-defined] # checked by codec
    names = set(column.fieldNames())
    missing = [one for one in schema.get("required", ()) if one not in names]
    _check_fields(place, missing, names - schema.get("properties", {}).keys())
    return Unchecked(_untyped(column, place))


def _check_fields(place: str, missing: Sequence[str], extra: set[str]) -> None:
    if missing:
        raise Unfit(f"column {place!r} has no field {', '.join(missing)}")
    if extra:
        raise Unfit(f"column {place!r} has a field that the argument has not: {', '.join(sorted(extra))}")


def _untyped(column: spark.DataType, place: str) -> Node:
    if not fits_json(column) and not isinstance(column, spark.DayTimeIntervalType):
        raise Unfit(f"column {place!r} is {column.simpleString()}, which JSON cannot hold")
    if isinstance(column, spark.ArrayType):
        return Array(_untyped(column.elementType, place))
    if isinstance(column, spark.MapType):
        return Entries(Leaf(str), _untyped(column.valueType, place))
    if isinstance(column, spark.StructType):
        fields = sorted(column, key=attrgetter("name"))
        return Fields(tuple((one.name, _untyped(one.dataType, place)) for one in fields))
    return Leaf(Any)


def _limits(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, limit) for name in _LIMITS if (limit := getattr(kind, name, None)) is not None)


def _unfit(place: str, column: spark.DataType, allowed: Sequence[type[spark.DataType]]) -> Unfit:
    return Unfit(
        f"column {place!r} is {column.simpleString()}, and the argument takes {' or '.join(_named(allowed))}"
    )


def _named(kinds: Sequence[type[spark.DataType]]) -> Iterator[str]:
    for one in kinds:
        yield _NAMES.get(one) or one.__name__.removesuffix("Type").lower()


_FITS: dict[type[inspect.Type], Callable[[Any, spark.DataType, str], Node]] = {
    inspect.UnionType: _union,
    inspect.EnumType: _one_of,
    inspect.LiteralType: _one_of,
    inspect.DictType: _dict,
    inspect.CustomType: _model,
    inspect.AnyType: _any,
    **dict.fromkeys(ARRAYS, _array),
    **dict.fromkeys(RECORDS, _struct),
}
