"""The parts of the protocol page that are made from the code.

    python -m tests.docs.contracts      # writes them into the page

They are the contracts of the scripts, between `<!-- contract NAME -->` and `<!-- end -->`, from the headers
of `lua/`; the commands that the scripts use, between `<!-- commands -->` and `<!-- end -->`; and the values
in the table of constants. None of it is written by hand.
"""

from __future__ import annotations

import importlib
import re
import textwrap
from typing import TYPE_CHECKING

from leasehold.scripting import catalogue, linker
from tests.docs.pages import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = REFERENCE / "protocol.md"

_CONTRACT = re.compile(r"(<!-- contract (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COMMANDS = re.compile(r"(<!-- commands -->\n).*?(<!-- end -->)", re.DOTALL)
_CONSTANT = re.compile(r"(\| `([\w.]+)\.([A-Z_]+)` \|)[^|]*\|")
_COMMAND = re.compile(r"""(?:\bp?call|in_chunks)\('([A-Z]+)'|'([A-Z]+)' or '([A-Z]+)'""")


def renewed(text: str) -> str:
    """Return the text of the page as the code wants it now."""
    text = _CONTRACT.sub(lambda match: f"{match[1]}\n{contract(match[2])}\n{match[3]}", text)
    text = _COMMANDS.sub(lambda match: f"{match[1]}{commands()}.\n{match[2]}", text)
    return _CONSTANT.sub(lambda match: f"{match[1]} {constant(match[2], match[3])} |", text)


def scripts_of(text: str) -> set[str]:
    """The names of the scripts whose contracts the page has."""
    return {match[2] for match in _CONTRACT.finditer(text)}


def contract(name: str) -> str:
    """Return one script's keys, arguments, reply, cost and limits, in Markdown."""
    script = catalogue.load()[name]
    sections = header_of(name)
    lines = ["| key | | type | what is in it |", "|---|---|---|---|"]
    for at, (key, line) in enumerate(zip(script.keys, sections["Keys"], strict=True), 1):
        _, kind, meaning = line.split(maxsplit=2)
        full = "P:inbox:<session>" if key == "inbox" else f"P:{key}"
        lines.append(f"| `KEYS[{at}]` | `{full}` | {kind} | {meaning} |")
    lines += ["", "| argument | | kind | what it says |", "|---|---|---|---|"]
    for at, (argument, line) in enumerate(zip(script.arguments, sections["Arguments"], strict=True), 1):
        _, kind, meaning = line.split(maxsplit=2)
        lines.append(f"| `ARGV[{at}{'…' * (kind == 'rest')}]` | `{argument}` | {kind} | {meaning} |")
    return "\n".join([*lines, "", *facts_of(sections), ""])


def facts_of(sections: dict[str, list[str]]) -> Iterator[str]:
    """Give reply, cost and limits, a line each."""
    for title in ("Reply", "Cost", "Limits"):
        yield f"- **{title}**: {' '.join(line.strip() for line in sections[title])}"


def header_of(name: str) -> dict[str, list[str]]:
    """Return the sections of a script's header, as the catalogue reads them."""
    comment, _ = linker.split((catalogue.folder() / f"{name}.lua").read_text())
    return catalogue._sections(name, comment)


def commands() -> str:
    """Return the commands that the scripts send, sorted."""
    bodies = "\n".join(script.body.decode() for script in catalogue.load().values())
    found = {command for match in _COMMAND.finditer(bodies) for command in match.groups() if command}
    return textwrap.fill(", ".join(f"`{command}`" for command in sorted(found)), 110)


def constant(module: str, name: str) -> str:
    """Return the value of a constant of the package."""
    return f"{getattr(importlib.import_module(module), name):,}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text()))
