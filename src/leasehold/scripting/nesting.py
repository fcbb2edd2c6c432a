"""Where a composed script creates its functions: each inside of the one that alone needs it, if there is one.

The server creates every `local function` at the top of a script in each call, which takes about 0.2 µs, and
most calls need few of them. A function that only one other needs, directly or through others, is put at the
start of that one, so it is created only if that one is called. Nothing is put into a function that may be
called many times in a script, as from a loop.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A name, but not that of a field.
_NAME = re.compile(r"(?<!\w)(?<!(?<!\.)\.)[A-Za-z_]\w*")
_TEXT = re.compile(r"'[^']*'")
#: The names that a function declares: parameters, locals and variables of loops.
_DECLARED = re.compile(
    r"\bfunction(?: \w+)?\(([^)]*)\)|\blocal (?!function\b)([\w, ]+)|\bfor ([\w, ]+?)(?: in\b|=)"
)
_LOOPS = {"for", "while", "repeat"}


def nest(functions: Mapping[str, str], rest: Iterable[str]) -> dict[str, str]:
    """Return the functions that stay at the top, by name, in their order, with the others inside of them.

    Args:
        functions: The code of each function by its name, each after those that it uses.
        rest: All other code of the script.
    """
    home_of = _homes(functions, rest)
    inside: dict[str, list[str]] = {name: [] for name in functions}
    nested: dict[str, str] = {}
    for name, code in functions.items():
        head, _, body = code.partition("\n")
        whole = "\n".join([head, *inside[name], body])
        home = home_of[name]
        if home:
            inside[home].append(whole)
        else:
            nested[name] = whole
    return nested


def _homes(functions: Mapping[str, str], rest: Iterable[str]) -> dict[str, str | None]:
    """Return for each function the one into which it is put; None: it stays at the top."""
    uses = {name: _uses(code, functions) for name, code in functions.items()}
    at_top = [_uses(code, functions) for code in rest]
    #: The functions without which a function is not called, the nearest last.
    needing: dict[str, list[str]] = {}
    often: set[str] = set()
    home_of: dict[str, str | None] = {}
    for name in reversed([*functions]):
        users = [user for user in functions if user != name and name in uses[user]]
        if any(uses[user][name] or user in often for user in users) or any(used.get(name) for used in at_top):
            often.add(name)
        needing[name] = []
        if users and not any(name in used for used in at_top):
            first, *others = ([*needing[user], user] for user in users)
            needing[name] = [one for one in first if all(one in other for other in others)]
        free = {*_NAME.findall(_TEXT.sub("''", functions[name]))} - _declared(functions[name])
        homes = (one for one in reversed(needing[name]) if one not in often)
        home_of[name] = next((one for one in homes if not _shadows(one, free, functions, home_of)), None)
    return home_of


def _shadows(
    home: str | None, free: set[str], functions: Mapping[str, str], home_of: Mapping[str, str | None]
) -> bool:
    """Return whether a parameter of a function, or of one that it is put into, is one of these names."""
    while home:
        if _declared(functions[home].partition("\n")[0]) & free:
            return True
        home = home_of[home]
    return False


def _declared(code: str) -> set[str]:
    return {name for names in _DECLARED.findall(code) for name in re.findall(r"\w+", ",".join(names))}


def _uses(code: str, functions: Mapping[str, str]) -> dict[str, bool]:
    """Return the functions whose names occur in code, and whether one occurs in a loop."""
    found: dict[str, bool] = {}
    open_blocks: list[str] = []
    for word in _NAME.findall(_TEXT.sub("''", code)):
        if word in _LOOPS or word in {"if", "function"}:
            open_blocks.append(word)
        elif word in {"end", "until"}:
            open_blocks.pop()
        elif word in functions:
            found[word] = found.get(word, False) or not _LOOPS.isdisjoint(open_blocks)
    return found
