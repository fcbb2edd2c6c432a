"""Marks at the ends of lines, which say from which line of which file each of them is.

A mark is written in characters of a private area of Unicode, which are neither letters nor spaces nor signs
of Lua: the patterns that read code pass over them. It goes where its line goes, and is removed in the end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

#: Each character of a mark is this far from the one that it stands for.
_SHIFT = 0xF0000
_MARK = re.compile(f"[{chr(_SHIFT)}-{chr(_SHIFT + 0xFFFF)}]+")
#: The end of a line, in a regular expression.
LINE_END = _MARK.pattern.replace("+", "*") + r"\n"


class Origin(NamedTuple):
    """A line of a file of `lua/`."""

    file: str
    line: int


def marked(code: str, file: str, first: int) -> str:
    """Return code with a mark on each line.

    Args:
        code: The code.
        file: The file that it is from, such as `lua/lanes/lib/lanes.lua`.
        first: The number of its first line there.
    """
    return "\n".join(line + _mark(f"{file}:{number}") for number, line in enumerate(code.split("\n"), first))


def unmarked(code: str) -> str:
    """Return code without marks."""
    return _MARK.sub("", code)


def parted(line: str) -> tuple[str, str]:
    """Return a line without its mark, and the mark."""
    match = _MARK.search(line)
    return (line[: match.start()], match[0]) if match else (line, "")


def origins(code: str) -> list[Origin]:
    """Return where each line of code is from. One without a mark belongs to the next that has one."""
    found: list[Origin] = []
    for number, line in enumerate(code.split("\n"), 1):
        if mark := parted(line)[1]:
            file, _, at = "".join(chr(ord(letter) - _SHIFT) for letter in mark).partition(":")
            found += [Origin(file, int(at))] * (number - len(found))
    return found


def _mark(text: str) -> str:
    return "".join(chr(_SHIFT + ord(letter)) for letter in text)
