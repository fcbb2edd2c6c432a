"""YAML as text: what `manifests` prints, read in the same way by all versions of YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Value: TypeAlias = "str | bool | int | Sequence[Value] | Mapping[str, Value]"

#: A list of values on one line is no longer than this.
_WIDTH = 100
#: A text that needs no quotation marks, unless it is one of the words.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"", "y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def yaml_text(documents: Sequence[Mapping[str, Value]]) -> str:
    """Return documents as YAML, in block style and in the order of their keys.

    Args:
        documents: Mappings with values that YAML and JSON have in common. No surrogates.
    """
    return "---\n".join("".join(f"{line}\n" for line in _mapping(one, "")) for one in documents)


def _mapping(mapping: Mapping[str, Value], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        yield from _entry(f"{indent}{scalar(key)}:", value, indent)


def _entry(start: str, value: Value, indent: str) -> Iterator[str]:
    """Yield the lines of a key and its value."""
    deeper = f"{indent}  "
    if isinstance(value, str) and (header := _block_header(value)):
        yield f"{start} {header}"
        yield from (f"{deeper}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))
    elif isinstance(value, (str, bool, int)):
        yield f"{start} {scalar(value)}"
    elif (short := _on_one_line(value)) is not None:
        yield f"{start} {short}"
    else:
        yield start
        yield from _lines(value, deeper)


def _lines(value: Sequence[Value] | Mapping[str, Value], indent: str) -> Iterator[str]:
    """Yield the lines of a mapping or a list that is not empty."""
    if isinstance(value, Mapping):
        yield from _mapping(value, indent)
    else:
        for one in value:
            yield from _item(one, indent)


def _item(one: Value, indent: str) -> Iterator[str]:
    if isinstance(one, (str, bool, int)):
        yield f"{indent}- {scalar(one)}"
    elif (short := _on_one_line(one)) is not None:
        yield f"{indent}- {short}"
    else:
        first, *rest = _lines(one, f"{indent}  ")
        yield f"{indent}- {first[len(indent) + 2 :]}"
        yield from rest


def _on_one_line(value: Sequence[Value] | Mapping[str, Value]) -> str | None:
    """Return what is empty, and a short list of values, as one text; None: it needs lines of its own."""
    if isinstance(value, Mapping):
        return None if value else "{}"
    values = [scalar(one) for one in value if isinstance(one, (str, bool, int))]
    text = f"[{', '.join(values)}]"
    return text if len(values) == len(value) and len(text) <= _WIDTH else None


def scalar(value: str | bool | int) -> str:  # noqa: FBT001 - it is any of these values
    """Return one value on one line. Texts that YAML might read as anything else are quoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return (
        '"' + "".join(_ESCAPES.get(one) or (one if one.isprintable() else _code(one)) for one in value) + '"'
    )


def _code(one: str) -> str:
    """Return the escape of a character."""
    return f"\\u{ord(one):04x}" if ord(one) < 0x10000 else f"\\U{ord(one):08x}"


def _block_header(text: str) -> str | None:
    """Return the first line of a text of several lines that can stand as it is; None: it must be quoted."""
    lines = text.removesuffix("\n").split("\n")
    whole = all(line.replace("\t", "").isprintable() for line in lines)
    if "\n" not in text or not whole or not lines[0] or not lines[-1] or lines[0][0] in " \t":
        return None
    return "|" if text.endswith("\n") else "|-"
