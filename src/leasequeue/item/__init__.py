"""An item of work: an id and some bytes of data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from leasequeue.errors import InvalidArgument
from leasequeue.item.codec import dump_compact

#: The longest id, in bytes of UTF-8.
MAX_ID_BYTES = 512
#: The maximum size of the data of an item: 64 MiB.
MAX_DATA_BYTES = 64 * 1024 * 1024

#: What an id may be, for error messages.
ID_ALLOWED = f"a string of 1 to {MAX_ID_BYTES} bytes in UTF-8"
_DATA_ALLOWED = f"bytes, bytearray, memoryview or str of at most {MAX_DATA_BYTES} bytes"


def check_id(item_id: object, *, argument: str = "id") -> str:
    """Check an item's id and return it. All of Unicode is allowed, including spaces, newlines and NUL."""
    if not isinstance(item_id, str) or not item_id:
        raise InvalidArgument(argument, item_id, ID_ALLOWED)
    if len(item_id) > MAX_ID_BYTES // 4 or not item_id.isascii():
        try:
            size = len(item_id.encode())
        except UnicodeEncodeError as error:
            raise InvalidArgument(argument, item_id, ID_ALLOWED) from error
        if size > MAX_ID_BYTES:
            raise InvalidArgument(argument, item_id, ID_ALLOWED)
    return item_id


def _to_bytes(data: object) -> bytes:
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument("data", data, _DATA_ALLOWED) from error
    elif isinstance(data, (bytearray, memoryview)):
        data = bytes(data)
    if not isinstance(data, bytes) or len(data) > MAX_DATA_BYTES:
        raise InvalidArgument("data", data, _DATA_ALLOWED)
    return data


class Item:
    """An id and some bytes, which the queue does not change.

        >>> Item(b"hello", id="greeting").data
        b'hello'
        >>> Item.from_json_data({"to": "ann@example.org"}).data_json()
        {'to': 'ann@example.org'}

    Args:
        data: The bytes; a `str` is encoded as UTF-8. At most 64 MiB.
        id: The item's name, 1 to 512 bytes of UTF-8; None makes a random one (32 hex digits). Give equal
            work equal ids, or use `Item.with_content_id`, to have it added only once.

    Raises:
        InvalidArgument: If `data` or `id` cannot be used.
    """

    __slots__ = ("data", "id")

    #: The item's name within its queue.
    id: str
    #: The payload.
    data: bytes

    def __init__(self, data: bytes | bytearray | memoryview | str, id: str | None = None) -> None:  # noqa: A002 - the seeds' name
        self.data = data if type(data) is bytes and len(data) <= MAX_DATA_BYTES else _to_bytes(data)
        self.id = _random_id() if id is None else check_id(id)

    @classmethod
    def from_json_data(cls, obj: Any, id: str | None = None) -> Item:  # noqa: A002 - the seeds' name
        """Make an item whose data is `obj` as compact JSON.

        Args:
            obj: What a handler can take: JSON's types, dataclasses, msgspec structs, pydantic models,
                datetime, UUID, Decimal, bytes (as Base64), enums, and lists and dicts of them.
            id: See the class.

        Raises:
            InvalidArgument: If `obj` cannot be encoded as JSON.
        """
        return Item(_dump_json(obj), id)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Item:
        """Make an item from a mapping with `data` and, optionally, `id`.

        Raises:
            InvalidArgument: If `data` is missing, or one of them cannot be used.
        """
        if not isinstance(fields, Mapping) or "data" not in fields:
            raise InvalidArgument("fields", fields, "a mapping with 'data' and, optionally, 'id'")
        return Item(fields["data"], fields.get("id"))

    @classmethod
    def parse(cls, text: str | bytes) -> Item:
        """Make an item from the JSON text of an object with `data` and, optionally, `id`.

        Raises:
            InvalidArgument: If the text is not such JSON.
        """
        try:
            fields = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArgument("text", text, "the JSON text of an object with 'data'") from error
        return cls.from_dict(fields)

    @classmethod
    def with_content_id(cls, data: bytes | bytearray | memoryview | str) -> Item:
        """Make an item whose id is the SHA-256 of its data, so that equal work has equal ids."""
        content = _to_bytes(data)
        return Item(content, hashlib.sha256(content).hexdigest())

    def data_json(self) -> Any:
        """Return the data, decoded from JSON.

        Raises:
            ValueError: If the data is not JSON (a `json.JSONDecodeError` or `UnicodeDecodeError`).
        """
        return json.loads(self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Item):
            return NotImplemented
        return (self.id, self.data) == (other.id, other.data)

    def __hash__(self) -> int:
        return hash((self.id, self.data))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, {len(self.data)} bytes)"


def _random_id() -> str:
    # uuid.uuid4().hex, made in a third of the time: the version and the variant are fixed bits.
    number = bytearray(os.urandom(16))
    number[6] = number[6] & 0x0F | 0x40
    number[8] = number[8] & 0x3F | 0x80
    return number.hex()


def _dump_json(obj: Any) -> str:
    if isinstance(obj, (bytes, bytearray, memoryview)):  # in an object they are Base64; alone they are data
        raise InvalidArgument("obj", obj, "a value to encode as JSON; Item(data) takes bytes as they are")
    try:
        return dump_compact(obj)
    except Exception as error:  # also what the code of the user's classes raises
        raise InvalidArgument("obj", obj, "a value that can be encoded as JSON") from error
