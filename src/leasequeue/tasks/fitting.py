"""Whether what one function returns can be passed to another one, by their annotations.

Between two stages a value is JSON, so types are compared by what is written and read: an `int` can be read as
a `float`, a `tuple` as a `list`, a dataclass as a `dict`; a `bool` cannot be read as an `int`.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import datetime as dt
import types
import typing
from inspect import Signature
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_ARRAYS = (
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    collections.abc.Collection,
    collections.abc.Iterable,
    collections.abc.MutableSequence,
    collections.abc.MutableSet,
    collections.abc.Sequence,
    collections.abc.Set,
)
_OBJECTS = (
    dict,
    collections.OrderedDict,
    collections.defaultdict,
    collections.abc.Mapping,
    collections.abc.MutableMapping,
)
#: Pairs of classes of which one is a subclass of the other, though it is written in another form.
_APART = ((bool, int), (bool, float), (dt.datetime, dt.date))


def fits(given: Any, wanted: Any) -> bool:
    """Return whether each value of one type can be read as another type; Any fits all, and all fit it."""
    given, wanted = plain(given), plain(wanted)
    if given is Any or wanted in (Any, object) or given == wanted:
        return True
    if is_union(given):
        return all(fits(one, wanted) for one in get_args(given))
    if get_origin(given) is Literal:
        return all(_literal_fits(value, wanted) for value in get_args(given))
    if is_union(wanted):
        return any(fits(given, one) for one in get_args(wanted))
    return _one_fits(given, wanted)


def _one_fits(given: Any, wanted: Any) -> bool:
    """Return the same of two types that are no unions."""
    if _is_array(given) and _is_array(wanted):
        return _arrays_fit(given, wanted)
    if _is_object(wanted):
        return _object_fits(given, wanted)
    if get_origin(given) is not None or get_origin(wanted) is not None:
        return _generic_fits(given, wanted)
    if (given, wanted) == (int, float):
        return True
    return (given, wanted) not in _APART and _is_subclass(given, wanted)


def misfit(parameter: str, wanted: Any, shown: str, given: Any) -> str | None:
    """Return what is wrong if a parameter takes a value of a type that does not fit; None if it fits."""
    if fits(given, wanted):
        return None
    return f"its parameter {parameter!r} takes {name_of(wanted)}, and {shown} is {name_of(given)}"


def list_of(kinds: Iterable[Any]) -> Any:
    """Return the type of a list of which each element has one of these types; without any, of all."""
    distinct = {id(kind): kind for kind in kinds}
    element = Union[tuple(distinct.values())] if distinct else Any  # noqa: UP007 - known at run time only
    return list[element]  # type: ignore[valid-type] # as above


def accepts_none(kind: Any) -> bool:
    """Return whether None is a value of a type."""
    return fits(None, kind)


def name_of(kind: Any) -> str:
    """Return a type as it is written in a program."""
    kind = type(None) if kind is None else kind
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind.__qualname__
    return str(kind).replace("typing.", "")


def member_of(kind: Any, name: str) -> tuple[str, Any] | None:
    """Return how a member of a value is called in JSON, and its type.

    Returns:
        None if values of this type have no such member.
    """
    kind = plain(kind)
    if kind is Any:
        return name, Any
    if _is_object(kind):
        key, value = _entries(kind)
        return (name, value) if fits(str, key) else None
    members = _members(kind)
    return None if members is None else members.get(name)


def plain(kind: Any) -> Any:
    """Return a type without what does not change its values: `Annotated`, `NewType`, an alias."""
    while True:
        if get_origin(kind) in (Annotated, typing.Required, typing.NotRequired):
            kind = get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        elif type(kind).__name__ == "TypeAliasType":  # of Python 3.12
            kind = kind.__value__
        elif isinstance(kind, TypeVar) or kind is Signature.empty:
            return Any
        else:
            return type(None) if kind is None else kind


def is_union(kind: Any) -> bool:
    """Return whether a type is `A | B`."""
    return get_origin(kind) in (Union, types.UnionType)


def _literal_fits(value: Any, wanted: Any) -> bool:
    for one in get_args(wanted) if is_union(wanted) else (wanted,):
        allowed = plain(one)
        if get_origin(allowed) is Literal:
            if any(type(value) is type(other) and value == other for other in get_args(allowed)):
                return True
        elif fits(type(value), allowed):
            return True
    return False


def _is_array(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _ARRAYS


def _is_object(kind: Any) -> bool:
    return (get_origin(kind) or kind) in _OBJECTS


def _elements(kind: Any) -> tuple[list[Any], bool]:
    """Return the types of an array's elements, and whether it has exactly one of each."""
    args = get_args(kind)
    if (get_origin(kind) or kind) is tuple and get_origin(kind) is not None:
        if len(args) == 2 and args[1] is Ellipsis:
            return [args[0]], False
        return [*args], True
    return [*(args or (Any,))], False


def _arrays_fit(given: Any, wanted: Any) -> bool:
    given_types, given_fixed = _elements(given)
    wanted_types, wanted_fixed = _elements(wanted)
    if not wanted_fixed:
        return all(fits(one, wanted_types[0]) for one in given_types)
    if not given_fixed or len(given_types) != len(wanted_types):
        return False
    return all(fits(one, other) for one, other in zip(given_types, wanted_types, strict=True))


def _entries(kind: Any) -> tuple[Any, Any]:
    args = get_args(kind)
    return (args[0], args[1]) if len(args) == 2 else (Any, Any)


def _object_fits(given: Any, wanted: Any) -> bool:
    key, value = _entries(wanted)
    if _is_object(given):
        given_key, given_value = _entries(given)
        return fits(given_key, key) and fits(given_value, value)
    members = _members(given)
    if members is None:
        return False
    return fits(str, key) and all(fits(kind, value) for _, kind in members.values())


def _generic_fits(given: Any, wanted: Any) -> bool:
    if (get_origin(given) or given) is not (get_origin(wanted) or wanted):
        return False
    given_args, wanted_args = get_args(given), get_args(wanted)
    if not given_args or not wanted_args:
        return True
    return len(given_args) == len(wanted_args) and all(
        fits(one, other) for one, other in zip(given_args, wanted_args, strict=True)
    )


def _is_subclass(given: Any, wanted: Any) -> bool:
    try:
        return issubclass(given, wanted)
    except TypeError:  # one is no class, or a `TypedDict`
        return False


def _members(kind: Any) -> dict[str, tuple[str, Any]] | None:
    """Return the members of values that are JSON objects: name → its name in JSON, and its type."""
    made = get_origin(kind) or kind
    if not isinstance(made, type):
        return None
    if issubclass(made, msgspec.Struct):
        if made.__struct_config__.array_like:
            return None
        return {one.name: (one.encode_name, one.type) for one in msgspec.structs.fields(kind)}
    if dataclasses.is_dataclass(made) or typing.is_typeddict(made):
        hints = typing.get_type_hints(made)
        names = [one.name for one in dataclasses.fields(made)] if dataclasses.is_dataclass(made) else [*hints]
        return {name: (name, hints[name]) for name in names}
    if hasattr(made, "model_fields") and hasattr(made, "model_dump"):  # a pydantic model
        return {
            name: (one.serialization_alias or one.alias or name, one.annotation)
            for name, one in made.model_fields.items()
        }
    return None
