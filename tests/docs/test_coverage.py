"""The coverage page has every row that has come so far, and names tests that exist."""

from __future__ import annotations

import ast
import re

from tests.docs.pages import REFERENCE, ROOT

PAGE = REFERENCE / "coverage.md"
#: How many rows of each kind redis-work-queue has.
ROWS = {"O": 28, "G": 16, "K": 7, "L": 5, "T": 9, "B": 19}


def test_every_row_is_there_once_and_in_order() -> None:
    rows = re.findall(r"^\| RWQ-([A-Z]\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [f"{kind}{number}" for kind, most in ROWS.items() for number in range(1, most + 1)]


def test_every_row_has_tests_or_waits_for_something() -> None:
    untested = re.findall(r"^\| [A-Z]{3}-\w+ \|(.*)\| \|$", PAGE.read_text(), re.MULTILINE)
    assert not [row for row in untested if "later:" not in row and "not used" not in row]


def test_every_test_that_is_named_exists() -> None:
    tests = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        if "node_modules" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    named = re.findall(r"`(test_\w+)`", PAGE.read_text())
    assert named
    assert not [name for name in named if not any(test.startswith(name) for test in tests)]
