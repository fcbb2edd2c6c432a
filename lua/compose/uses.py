"""Writes into each header of `lua/` where the names are from that the code uses and the file does not define.

    -- Uses: emit, flush (emit), in_chunks, lease_keys_of (keys)

What stands in parentheses gives the names before it: a piece, or a script that is called, or `RARE_KEYS`, for
which the composer puts in keys, or `encodings`, the file of the constants. The section is for readers; the
composer goes by the code.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from lua.compose.calling import calls_in
from lua.compose.composer import RARE_NAMES
from lua.compose.encodings import PLACE
from lua.compose.linker import name_of, names_in, split, strip

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from lua.compose.linker import Library, Piece

#: The longest line of a header.
WIDTH = 110
_SECTION = re.compile(r"^-- Uses:.*\n(?:--  .*\n)*", re.MULTILINE)


def with_uses(
    text: str, library: Library, piece: Piece | None = None, constants: AbstractSet[str] = frozenset()
) -> str:
    """Return the text of a file whose header says which foreign names its code uses.

    Args:
        text: The text of the file, with or without such a section.
        library: The shared functions.
        piece: The piece that the file is; None: it is a script.
        constants: The names of the constants, which the text still has.
    """
    header, code = split(text)
    end = sum(len(line) + 1 for line in text.splitlines()[: len(header)])
    kept = _SECTION.sub("", text[:end])
    own = {*piece.gives, *piece.functions} if piece else set[str]()
    giver_of = givers_of(names_in(strip(code)) - own, library, constants)
    return kept + _section(giver_of) + text[end:]


def givers_of(
    names: frozenset[str], library: Library, constants: AbstractSet[str] = frozenset()
) -> dict[str, str]:
    """Return what gives each of these names that is a foreign one."""
    from_pieces = {name: library.givers[name].name for name in names & library.givers.keys()}
    from_calls = {
        name: script
        for script in calls_in(names)
        for name in (f"call_{script}", f"keys_of_{script}")
        if name in names
    }
    from_composer = {
        **dict.fromkeys(names & RARE_NAMES.keys(), "RARE_KEYS"),
        **dict.fromkeys(names & constants, name_of(PLACE)),
    }
    return {**from_pieces, **from_composer, **from_calls}


def _section(giver_of: Mapping[str, str]) -> str:
    """Return the lines of the section; none, if there are no names."""
    groups = (
        ", ".join(sorted(name for name in giver_of if giver_of[name] == giver)) + f" ({giver})"
        for giver in sorted({*giver_of.values()})
    )
    lines = textwrap.wrap(
        ", ".join(groups),
        WIDTH,
        initial_indent="-- Uses: ",
        subsequent_indent="--   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines)
