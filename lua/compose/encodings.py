"""The constants of `lua/lib/encodings.lua`: the composer puts their values in place of their names.

A constant is one line, whose name is in capitals:

    local FIRST_PLACE = 5e15

The value is one number or one text. So it means the same wherever the name stands, also next to an operator.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lua.compose.linker import BrokenContract, names_in, rename, split, strip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The file that defines them, below `lua/`.
PLACE = "lib/encodings"
#: A power binds more tightly than any operator beside it.
_CONSTANT = re.compile(r"local ([A-Z][A-Z_]+) = (\d[\d.e]*|2 \^ \d+|'[^'\n]*')")


def read_constants(text: str) -> dict[str, str]:
    """Return the constants in the text of their file: each name with its value, as Lua has it."""
    found: dict[str, str] = {}
    header, code = split(text)
    explained = False
    for number, line in enumerate(code.splitlines(), len(header) + 1):
        match = _CONSTANT.fullmatch(line)
        if not line or line.startswith("--"):
            explained = bool(line)
        elif not match:
            raise BrokenContract(f"{PLACE}: line {number} is no `local NAME = number or text`: {line}")
        elif match[1] in found:
            raise BrokenContract(f"{PLACE}: defines {match[1]} twice")
        elif not explained:
            raise BrokenContract(f"{PLACE}: no comment says what {match[1]} encodes")
        else:
            found[match[1]] = match[2]
    return found


def put_in(text: str, constants: Mapping[str, str]) -> str:
    """Return the text of a file with the values of constants in place of their names in its code."""
    end = sum(len(line) + 1 for line in text.splitlines()[: len(split(text)[0])])
    return text[:end] + rename(text[end:], constants)


def check_used(constants: Iterable[str], texts: Iterable[str]) -> None:
    """Check that the code of files uses all constants."""
    used = frozenset[str]().union(*(names_in(strip(split(text)[1])) for text in texts))
    if unused := sorted({*constants} - used):
        raise BrokenContract(f"{PLACE}: nothing uses {', '.join(unused)}")
