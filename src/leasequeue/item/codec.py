"""JSON of typed values: what payloads, arguments of tasks and results are encoded and decoded by.

The types are those of msgspec (JSON's, dataclasses, structs, TypedDicts, datetime, UUID, Decimal, bytes,
enums), pydantic models, and all of these in each other. pydantic is not imported: a model is known by its
methods.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec

from leasequeue.errors.describing import text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")
#: Numbers as scripts store them.
_STORED = re.compile(rb"-?[0-9]{1,16}")


class UnknownType(Exception):
    """A type that cannot be read from JSON. The text says which, and why."""


def encode(value: Any, *, ordered: bool = False) -> bytes:
    """Encode a value as JSON.

    If `ordered`, dicts and sets have their entries in the order of these, so that equal values are encoded
    alike. NaN and the infinities, which JSON does not have, are refused.
    """
    data = (_ORDERED if ordered else _ENCODER).encode(value)
    known = value is None or isinstance(value, msgspec.Raw)  # the second is JSON already
    if b"null" in data and not known:  # what msgspec writes for a float that is not finite
        _refuse_not_finite(msgspec.to_builtins(value, enc_hook=_to_plain, str_keys=True))
    return data


def dump_compact(value: Any) -> str:
    """Encode a value as JSON in ASCII, as other clients do, with the types that `encode` knows."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except TypeError:
        plain = msgspec.to_builtins(value, enc_hook=_to_plain, str_keys=True)
        return json.dumps(plain, separators=(",", ":"), allow_nan=False)


def read_stored(text: bytes | str | None, default: T) -> T:
    """Return JSON that the server stores, or the default if another client has written something else there.

    That may be no JSON, a value of another type, or too deep for Python.
    """
    try:
        found = json.loads(text) if text else default
    except (ValueError, RecursionError):
        return default
    return found if isinstance(found, type(default)) else default


def read_number(text: object, default: T) -> int | T:
    """Return a whole number that the server stores as text, or the default if it stores something else."""
    return int(text) if isinstance(text, bytes) and _STORED.fullmatch(text) else default


def is_moment(value: object) -> TypeGuard[float]:
    """Return whether a value that was read from JSON is a number, and no larger than a time in ms can be."""
    return isinstance(value, (int, float)) and abs(value) < 1e15  # so it is not NaN


def decoder(annotation: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes JSON into a value of a type, and checks it.

    Raise UnknownType if JSON does not distinguish the values of this type.
    """
    check(annotation)
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(annotation, dec_hook=_from_plain).decode
    return decode


def check(annotation: Any) -> None:
    """Check that values of a type can be read from JSON, or raise UnknownType."""
    try:
        described = msgspec.inspect.type_info(annotation)
    except Exception as error:
        raise UnknownType(_advice(text_of(error))) from error
    for part in _parts(described, set()):
        if isinstance(part, msgspec.inspect.CustomType) and not _is_model(part.cls):
            name = getattr(part.cls, "__qualname__", repr(part.cls))
            raise UnknownType(
                f"{name} cannot be read from JSON: use a dataclass, a msgspec struct, a pydantic model, or "
                "a type such as str, int, datetime or UUID"
            )


def _advice(problem: str) -> str:
    if problem.startswith("Type unions"):
        return (
            "JSON does not distinguish the types of this union; use one of them, or msgspec structs with a "
            f"tag ({problem})"
        )
    return problem


def _parts(described: Any, seen: set[int]) -> Iterator[msgspec.inspect.Type]:
    """Return a type and those in it, each once: a type may contain itself."""
    if isinstance(described, (tuple, list)):
        for one in described:
            yield from _parts(one, seen)
    elif isinstance(described, msgspec.Struct) and id(described) not in seen:
        seen.add(id(described))
        if isinstance(described, msgspec.inspect.Type):
            yield described
        for name in described.__struct_fields__:
            yield from _parts(getattr(described, name), seen)


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def _to_plain(value: Any) -> Any:
    """Convert a pydantic model, or JSON, for the encoder, which asks for types that it does not know."""
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a value of type {type(value).__qualname__} cannot be written as JSON")


def _from_plain(kind: Any, plain: Any) -> Any:
    return kind.model_validate_json(_ENCODER.encode(plain))


def _refuse_not_finite(plain: Any) -> None:
    left = [plain]
    while left:
        one = left.pop()
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError(f"{one} cannot be written as JSON")
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one


_ENCODER = msgspec.json.Encoder(enc_hook=_to_plain)
_ORDERED = msgspec.json.Encoder(enc_hook=_to_plain, order="deterministic")
