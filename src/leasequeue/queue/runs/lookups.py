"""The texts under which flow runs are found by the values of their attributes."""

from __future__ import annotations

import json

from leasequeue import codec


def lookup_texts(value: object) -> list[str]:
    """Return the texts under which a value of an attribute is found: of a list, one for each element.

    What is a string in JSON is that text, and that of any other value is its JSON: 62 and "62" are found by
    the same text, as the arguments of a command line are texts.

        >>> lookup_texts([1985, "EMEA", True])
        ['1985', 'EMEA', 'true']

    Raises:
        Exception: If a value cannot be encoded as JSON.
    """
    if isinstance(value, list | tuple | set | frozenset):
        return [*dict.fromkeys(_text(one) for one in value)]
    return [_text(value)]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    encoded = codec.encode(value, ordered=True)
    return json.loads(encoded) if encoded[:1] == b'"' else encoded.decode()
