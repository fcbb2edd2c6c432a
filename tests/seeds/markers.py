"""Read which tests hold which rows of the seed systems, from their `seed` markers."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


@functools.cache
def marked_tests() -> dict[str, list[str]]:
    """Return the ids of the tests that are marked with each row, in the order of files and lines."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "node_modules" not in path.parts:
            for test, prefix in _tests(ast.parse(path.read_text())):
                for row in _rows(test):
                    found[row].append(f"{path.relative_to(ROOT)}::{prefix}{test.name}")
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Return the functions of a module and the methods of its classes, with the prefix of their ids."""
    for node in tree.body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                yield member, f"{node.name}::" if isinstance(node, ast.ClassDef) else ""


def _rows(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.seed":
            yield from (ast.literal_eval(argument) for argument in decorator.args)
