"""Where a composed script creates its functions: in the innermost block that alone needs them.

The server creates every `local function` at the top of a script in each call, which takes 0.1 to 0.4 µs,
and most calls need few of them. A function that only one other needs, directly or through others, is put into
that one; a function that only one branch of an `if` needs is put into the branch. So it is created only if
the code that needs it runs. Nothing is put into a loop, or into a function that may be called many times,
unless that does its work only in the first call: `if not made then made = …`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from lua.compose.marks import LINE_END

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

#: A name, but not that of a field.
_NAME = re.compile(r"(?<!\w)(?<!(?<!\.)\.)[A-Za-z_]\w*")
_TEXT = re.compile(r"'[^']*'")
#: The names that a function declares: parameters, locals and variables of loops.
_DECLARED = re.compile(
    r"\bfunction(?: \w+)?\(([^)]*)\)|\blocal (?!function\b)([\w, ]+)|\bfor ([\w, ]+?)(?: in\b|=)"
)
#: A function that does its work only in its first call: what it needs is created once.
_ONCE = re.compile(rf"local function \w+\(\){LINE_END}if not (\w+) then{LINE_END}\1=")
_LOOPS = {"for", "while", "repeat"}
#: The name under which the script's own code is kept among the functions.
_OWN = ""
#: Begins the line that stands for a function which was put there.
_MARK = "\0"


def nest(
    functions: Mapping[str, str], own: str, statements: Iterable[str] = ()
) -> tuple[dict[str, str], str]:
    """Return the functions that stay at the top, by name, and the script's own code, with the others inside.

    Args:
        functions: The code of each function by its name, each after those that it uses.
        own: The code of the script itself.
        statements: The code of the pieces outside of functions.
    """
    codes = {**functions, _OWN: own}
    home_of = _homes(codes, statements)
    lines = {name: code.split("\n") for name, code in codes.items()}
    #: The names in a function, and in those that were put into it.
    within = {name: {*_words(code)} for name, code in codes.items()}
    around: dict[str, list[str]] = {_OWN: []}
    at_top = []
    for name in reversed([*functions]):
        home = home_of[name]
        place = None if home is None else _place(name, home, lines, within)
        if home is None or place is None:
            at_top.append(name)
            home, place = _OWN, 0  # what it uses is not put below it
        lines[home].insert(place, _MARK + name)
        around[name] = [home, *around[home]]
        for outer in around[name]:
            within[outer] |= within[name]
    lines[_OWN] = lines[_OWN][len(at_top) :]
    return {name: _whole(name, lines) for name in reversed(at_top)}, _whole(_OWN, lines)


def declared_in(code: str) -> set[str]:
    """Return the names of parameters, locals and variables of loops in code, but not of functions."""
    return {name for names in _DECLARED.findall(code) for name in re.findall(r"\w+", ",".join(names))}


def _homes(codes: Mapping[str, str], statements: Iterable[str]) -> dict[str, str | None]:
    """Return for each function the one, or the script's own code, into which it is put; None: into none."""
    uses = {name: _uses(code, codes) for name, code in codes.items()}
    declared = {name: declared_in(code) for name, code in codes.items()}
    at_top = {name for code in statements for name in _uses(code, codes)}
    #: The functions that a function is in, the nearest last.
    around: dict[str, list[str]] = {_OWN: []}
    often: set[str] = set()
    home_of: dict[str, str | None] = {_OWN: None}
    for name in [*reversed([*codes])][1:]:
        users = [user for user in codes if user != name and name in uses[user]]
        repeats = any(uses[user][name] or user in often for user in users)
        if name in at_top or (repeats and not _ONCE.match(codes[name])):
            often.add(name)
        common: list[str] = []
        if users and name not in at_top:
            first, *others = ([*around[user], user] for user in users)
            common = [one for one in first if all(one in other for other in others)]
        free = {*_words(codes[name])} - declared[name]
        homes = (one for one in reversed(common) if one not in often)
        home = next((one for one in homes if not _shadows(one, free, declared, home_of)), None)
        home_of[name] = home
        around[name] = [] if home is None else [*around[home], home]
    return home_of


def _shadows(
    home: str | None, free: set[str], declared: Mapping[str, set[str]], home_of: Mapping[str, str | None]
) -> bool:
    """Return whether a function, or one that it is put into, declares one of these names."""
    while home is not None:
        if declared[home] & free:
            return True
        home = home_of[home]
    return False


def _place(
    name: str, home: str, lines: Mapping[str, list[str]], within: Mapping[str, set[str]]
) -> int | None:
    """Return before which line of its home a function is put; None: it stays at the top of the script."""
    common: list[int] | None = None
    for number, path in _paths(name, lines[home], within, own=home == _OWN):
        inside = [start for start in path if start <= number]
        common = inside if common is None else [one for one in common if one in inside]
    if common:
        return common[-1]
    return None if home == _OWN else 1


def _paths(
    name: str, home: list[str], within: Mapping[str, set[str]], *, own: bool
) -> Iterator[tuple[int, list[int]]]:
    """Yield each line that uses a function, with the first lines of the branches around it, up to a loop."""
    opened: list[int | None] = []
    for number, line in enumerate(home):
        # A line that stands for a function, which may use the other one itself or through those put into it.
        reaches = line.startswith(_MARK) and name in within[line.removeprefix(_MARK)]
        for word in [name] if reaches else _words(line):
            if word in {"elseif", "else", "end", "until"}:
                opened.pop()
            if word in {"then", "else"}:
                opened.append(number + 1)
            elif word in _LOOPS or word == "function":
                opened.append(None)
            elif word == name:
                inner = opened[1:] if home[0].startswith("local function ") and not own else opened
                yield number, [one for one in inner[: (*inner, None).index(None)] if one]


def _whole(name: str, lines: Mapping[str, list[str]]) -> str:
    return "\n".join(
        _whole(line.removeprefix(_MARK), lines) if line.startswith(_MARK) else line for line in lines[name]
    )


@lru_cache(maxsize=4096)  # most lines are those of the library, which many scripts share
def _words(code: str) -> Sequence[str]:
    return () if code.startswith(_MARK) else _NAME.findall(_TEXT.sub("''", code))


def _uses(code: str, functions: Mapping[str, str]) -> dict[str, bool]:
    """Return the functions whose names occur in code, and whether one occurs in a loop."""
    found: dict[str, bool] = {}
    open_blocks: list[str] = []
    for word in _words(code):
        if word in _LOOPS or word in {"if", "function"}:
            open_blocks.append(word)
        elif word in {"end", "until"}:
            open_blocks.pop()
        elif word in functions:
            found[word] = found.get(word, False) or not _LOOPS.isdisjoint(open_blocks)
    return found
