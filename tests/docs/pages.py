"""The pages of the docs, and their fenced blocks.

A ```python block is run. A ```text block right after it is its output. A block with a title is written to a
file of that name instead. A block that cannot be run has a comment before it with the reason:
`<!-- no-run: a cluster is needed -->`. A ```py block shows a signature and is compared with the code. A block
that is a line `--8<-- "FILE"` has the text of that file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs" / "pages"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
REFERENCE = DOCS / "reference"

_FENCE = re.compile(
    r"^(?:<!-- no-run: (?P<reason>[^\n]+) -->\n+)?"
    r'```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r'--8<-- "([^":]+)"\n')


@dataclass(frozen=True)
class Block:
    """A fenced block, its first line, and the output after it."""

    line: int
    language: str
    title: str | None
    code: str
    reason: str | None
    #: The text of the ```text block right after it.
    output: str


def blocks(page: Path) -> list[Block]:
    """Return all fenced blocks of a page, in order."""
    text = page.read_text()
    found = list(_FENCE.finditer(text))
    return [
        Block(
            line=text.count("\n", 0, match.start("code")) + 1,
            language=match["language"],
            title=match["title"],
            code=_included(match["code"]),
            reason=match["reason"],
            output=after["code"] if after and _is_output(text[match.end() : after.start()], after) else "",
        )
        for match, after in zip_longest(found, found[1:])
    ]


def table(page: Path, heading: str) -> list[list[str]]:
    """Return the rows of the first table after a heading, without its head; cells are stripped."""
    _, _, rest = page.read_text().partition(f"\n{heading}\n")
    lines = [line for line in rest.split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def name_of(page: Path) -> str:
    """Return the name of a page in the report of the tests."""
    return str(page.relative_to(ROOT))


def _included(code: str) -> str:
    """Return the code of a block, or that of the file that stands for it."""
    return (ROOT / match[1]).read_text() if (match := _FILE.fullmatch(code)) else code


def _is_output(between: str, after: re.Match[str]) -> bool:
    return not between.strip() and after["language"] == "text"
