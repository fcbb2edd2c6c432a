"""Decode payloads into the type of a handler's first parameter, and encode results."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any

from leasehold.describing import text_of
from leasehold.errors import InvalidArgument, PayloadError
from leasehold.item import MAX_DATA_BYTES, Item
from leasehold.queue.lease import Lease

#: Turns a lease into a payload.
Decode = Callable[[Lease], Any]


def decoder(annotation: Any) -> Decode:
    """Return a function that decodes an item's data into a value of this type.

    `bytes` (or no annotation) is the data itself, `str` the text, `Lease` the lease. A pydantic model or a
    msgspec struct is read from JSON and validated. So is any other type if pydantic or msgspec is installed;
    without them, `Any`, `dict`, `list`, `int`, `float` and `bool` are. The function raises
    PayloadError if the data does not parse.

    Raises:
        InvalidArgument: If no installed library can decode this type.
    """
    if annotation in (inspect.Parameter.empty, bytes):
        return lambda lease: lease.data
    if annotation in (Lease, Item):
        return lambda lease: lease
    parse = _parser(annotation)
    wanted = getattr(annotation, "__name__", str(annotation))

    def decode(lease: Lease) -> Any:
        try:
            return parse(lease.data)
        except Exception as error:
            raise PayloadError(lease.id, wanted, text_of(error)) from error

    return decode


def _parser(annotation: Any) -> Callable[[bytes], Any]:
    if annotation is str:
        return bytes.decode
    if annotation is Any:
        return json.loads
    if hasattr(annotation, "model_validate_json"):  # a pydantic model; no import is needed
        return annotation.model_validate_json  # type: ignore[no-any-return]
    if hasattr(annotation, "__struct_fields__"):
        return _by_msgspec(annotation)
    # Neither library knows the models of the other: a type that one rejects, the other may accept.
    reasons: list[str] = []
    for make in (_by_pydantic, _by_msgspec):
        try:
            return make(annotation)
        except ModuleNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 - each library raises its own errors
            reasons.append(str(error))
    if reasons:
        raise InvalidArgument(
            "handler", annotation, f"a first parameter of a type that can be read from JSON: {reasons[0]}"
        )
    return _by_json(annotation)


def _by_pydantic(annotation: Any) -> Callable[[bytes], Any]:
    return importlib.import_module("pydantic").TypeAdapter(annotation).validate_json  # type: ignore[no-any-return]


def _by_msgspec(annotation: Any) -> Callable[[bytes], Any]:
    json_of = importlib.import_module("msgspec.json")
    json_of.schema(annotation)  # `Decoder` would accept any class here, and then reject every payload
    return json_of.Decoder(annotation).decode  # type: ignore[no-any-return]


def _by_json(annotation: Any) -> Callable[[bytes], Any]:
    plain: dict[Any, Any] = {dict: dict, list: list, int: int, float: (int, float), bool: bool}
    kind = plain.get(annotation)
    if kind is None:
        raise InvalidArgument(
            "handler",
            annotation,
            "a first parameter of type bytes, str, Lease, or a plain JSON type; for other "
            "types, install pydantic or msgspec",
        )

    def parse(data: bytes) -> Any:
        value = json.loads(data)
        if not isinstance(value, kind) or (isinstance(value, bool) and annotation is not bool):
            raise TypeError(f"it is {type(value).__name__} in JSON, not {annotation.__name__}")
        return value

    return parse


def encode_result(value: Any) -> bytes:
    """Encode what a handler returned: bytes as they are, anything else as JSON.

    Raises:
        TypeError, ValueError: If the value cannot be encoded as JSON, or is too long.
    """
    if isinstance(value, bytes):
        result = value
    elif hasattr(value, "model_dump_json"):
        result = str(value.model_dump_json()).encode()
    elif hasattr(value, "__struct_fields__"):
        result = bytes(importlib.import_module("msgspec.json").encode(value))
    else:
        result = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if len(result) > MAX_DATA_BYTES:
        raise ValueError(f"it is {len(result)} bytes long; the maximum is {MAX_DATA_BYTES}")
    return result
