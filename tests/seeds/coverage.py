"""Write the tests of each row into docs/pages/reference/coverage.md.

    python -m tests.seeds.coverage

The text of a row is written by hand; its last cell names the tests that carry `@pytest.mark.seed("RWQ-B3")`.
"""

from __future__ import annotations

import re

from tests.docs.pages import REFERENCE
from tests.seeds.markers import marked_tests

PAGE = REFERENCE / "coverage.md"

_ROW = re.compile(r"^(\| ([A-Z]{3}-[A-Z]\d+) \|.*\|)[^|\n]*\|$", re.MULTILINE)


def with_tests(page: str) -> str:
    """Return the page with the marked tests in the last cell of each row."""
    tests = marked_tests()

    def row(match: re.Match[str]) -> str:
        named = ", ".join(f"`{test}`" for test in tests.get(match[2], ()))
        return f"{match[1]} {named} |" if named else f"{match[1]} |"

    return _ROW.sub(row, page)


if __name__ == "__main__":
    PAGE.write_text(with_tests(PAGE.read_text()))
