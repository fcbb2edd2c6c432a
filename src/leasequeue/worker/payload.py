"""Decode payloads into the type of a handler's first parameter, and encode results."""

from __future__ import annotations

import importlib
import inspect
import json
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.errors import InvalidArgument, PayloadError
from leasequeue.errors.describing import text_of
from leasequeue.item import MAX_DATA_BYTES, Item, codec
from leasequeue.queue.lease import Lease

if TYPE_CHECKING:
    from leasequeue.durations import Duration

Decode = Callable[[Lease], Any]


def decoder(annotation: Any) -> Decode:
    """Return a function that decodes an item's data into a value of this type.

    `bytes` (or no annotation) is the data itself, `str` the text, `Lease` the lease. Any other type is read
    from JSON and validated: see `leasequeue.item.codec`. What that does not know, pydantic may, if installed.
    The function raises PayloadError if the data does not parse.
    """
    if annotation in (inspect.Parameter.empty, bytes):
        return lambda lease: lease.data
    if annotation in (Lease, Item):
        return lambda lease: lease
    parse = _parser(annotation)
    is_union = isinstance(annotation, types.UnionType)  # which Python 3.14 names `Union`
    wanted = str(annotation) if is_union else getattr(annotation, "__name__", str(annotation))

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
    try:
        return codec.decoder(annotation)
    except codec.UnknownType as error:
        return _by_pydantic(annotation, str(error))


def _by_pydantic(annotation: Any, reason: str) -> Callable[[bytes], Any]:
    """Return pydantic's parser of a type that the codec does not know, such as a union of two dataclasses."""
    try:
        return importlib.import_module("pydantic").TypeAdapter(annotation).validate_json  # type: ignore[no-any-return]
    except Exception as error:  # pydantic may be missing, and raises its own errors
        raise InvalidArgument(
            "handler", annotation, f"a first parameter of a type that can be read from JSON: {reason}"
        ) from error


def encode_result(value: Any) -> bytes:
    """Encode what a handler returned: bytes as they are, anything else as JSON."""
    result = value if isinstance(value, bytes) else codec.encode(value)
    if len(result) > MAX_DATA_BYTES:
        raise ValueError(f"it is {len(result)} bytes long; the maximum is {MAX_DATA_BYTES}")
    return result


def encode_error(kind: str, message: str) -> bytes:
    """Encode the result of an item that is completed without a value: the class of an error, and its text."""
    return codec.encode(
        {"error": {"type": kind, "message": message.encode(errors="replace").decode()[:1000]}}
    )


@dataclass(frozen=True, kw_only=True)
class Emission:
    """How the runs of a handler emit chunks.

    Attributes:
        write: Checks a chunk and encodes it.
        keep: How long they are kept after the end of the item, in seconds.
        max_bytes: How many bytes of them are kept.
    """

    write: Callable[[Any], bytes]
    keep: Duration
    max_bytes: int
