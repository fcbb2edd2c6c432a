"""Scripts that call scripts: a step on one queue does a whole step of another queue in its slot.

The header of a script or of a piece names those that it calls:

    -- Calls: add_items

The code then calls `call_add_items(KEYS, ARGV)`, a local function with the whole composed script, for which
these two are those of the other queue. It returns what the script returns, also an error that is its reply;
an error of a command ends both. `keys_of_add_items` stands for the list of what follows the queue's name in
the script's keys, as `lib/elsewhere` takes it.

Each called script is in the text once, in the branch that alone needs it, and with its own copy of the pieces
that it uses: so it reads the other queue's keys, and only if it is called.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from lua.compose.linker import CALL, BrokenContract, names_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: What a composed script uses of its surroundings, none of which a local around it may hide.
_OUTER = frozenset(
    {
        *("call", "redis", "cjson", "cmsgpack", "struct", "bit", "string", "math", "table", "tonumber"),
        *("tostring", "unpack", "pairs", "ipairs", "type", "next", "select", "error", "pcall"),
    }
)
_STANDING_IN = re.compile(r"^return called\('(\w+)'.*\)$", re.MULTILINE)


def calls_in(names: Iterable[str]) -> list[str]:
    """Return the scripts that code with these names calls, sorted."""
    return sorted(match[1] for name in names if (match := CALL.fullmatch(name)))


def in_order(script: str, calls_of: Callable[[str], Sequence[str]]) -> list[str]:
    """Return all scripts that one calls, directly or through others, each after those that it calls itself.

    Args:
        script: The script's name.
        calls_of: Returns those that a script calls directly.
    """
    graph: dict[str, Sequence[str]] = {}
    found = [script]
    while found:
        name = found.pop()
        if name not in graph:
            graph[name] = calls_of(name)
            found += graph[name]
    try:
        return [*TopologicalSorter(graph).static_order()][:-1]
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise BrokenContract(f"{script}: scripts call each other: {circle}") from error


def stand_in(name: str, body: str) -> str:
    """Return a function that has only the names which a called script needs of its surroundings.

    It shows where the function belongs: see `lua.compose.nesting`. `put_in` puts the script into it.
    """
    needed = sorted(one for one in {"call", *names_in(body)} if one in _OUTER or CALL.fullmatch(one))
    return f"local function call_{name}()\nreturn called('{name}',{','.join(needed)})\nend"


def put_in(code: str, bodies: Mapping[str, str]) -> str:
    """Return code with the called scripts in place of what stands in for them."""
    for name in bodies:
        code = code.replace(f"local function call_{name}()", f"local function call_{name}(KEYS,ARGV)")
    return _STANDING_IN.sub(lambda match: bodies[match[1]], code)


def key_names(script: str, keys: Iterable[str]) -> str:
    """Return a Lua table of what follows the queue's name in the keys of a script."""
    names = [*keys]
    if "inbox" in names:
        raise BrokenContract(
            f"{script}: has the key of a session, so no script can call it for another queue"
        )
    return "{" + ",\n".join(f"':{name}'" for name in names) + "}"
