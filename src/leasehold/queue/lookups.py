"""The texts under which flow runs are found by the values of their attributes."""

from __future__ import annotations

from leasehold import codec

#: The maximum number of values by which one run is found, and the longest of them in bytes.
MAX_VALUES = 250
MAX_VALUE_BYTES = 1024


def lookup_texts(value: object) -> list[str]:
    """Return the texts under which a value of an attribute is found: of a list, one for each element.

    A string is its own text, and that of any other value is its JSON: 62 and "62" are found by the same
    text, as the arguments of a command line are texts.

        >>> lookup_texts([1985, "EMEA", True])
        ['1985', 'EMEA', 'true']

    Raises:
        Exception: If a value cannot be encoded as JSON.
    """
    many = isinstance(value, (list, tuple, set, frozenset))
    texts = [_text(one) for one in value] if many else [_text(value)]  # type: ignore[attr-defined]  # it is one of these
    return [*dict.fromkeys(texts)]


def _text(value: object) -> str:
    encoded = value if isinstance(value, str) else codec.encode(value, ordered=True).decode()
    # What JSON has as a string (a date, a UUID, an enum) is found by its text, too.
    return encoded[1:-1] if not isinstance(value, str) and _is_plain(encoded) else encoded


def _is_plain(encoded: str) -> bool:
    return encoded[:1] == '"' and "\\" not in encoded
