"""Tells at which line of `lua/` a script has failed. Servers name the line of the composed text."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from leasequeue.scripting.scripts import LINES, read_json

if TYPE_CHECKING:
    from leasequeue.scripting.scripts import Script

_LINE = re.compile(r"@?user_script: ?(\d+)(?:\.$)?")
#: Where Redis 7, Valkey and Redis 6.2 name the script. Valkey 9 does not name it.
_NAMED = re.compile(r"(?<=script: )(?:[0-9a-f]{40}, )?(?=on @user_script)|(?<=call to )f_[0-9a-f]{40}")


def with_origins(text: str, script: Script) -> str:
    """Return the text of an error with the script's name, and lines of `lua/` in place of those of its text.

    Args:
        text: What the server has answered.
        script: The script that it ran.
    """
    if "user_script" not in text:
        return text
    text = _NAMED.sub(lambda match: script.name + ", " * (not match[0].startswith("f_")), text)
    return _LINE.sub(lambda match: origin_of(script, int(match[1])) or match[0], text)


def origin_of(script: Script, line: int) -> str | None:
    """Return the file and the line that a line of a script's text is from; None: it is not known."""
    try:
        known = _line_map()
    except FileNotFoundError:  # the error of the server matters more
        return None
    runs = known["scripts"].get(script.sha.decode(), [])
    for file, first, count in zip(*[iter(runs)] * 3, strict=True):
        if line <= count:
            return f"{known['files'][file]}:{first + line - 1}"
        line -= count
    return None


@cache
def _line_map() -> Any:
    return read_json(LINES)
