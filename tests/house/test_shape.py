"""Functions fit on a screen, files fit in a head, and no module is a drawer for odds and ends."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
DRAWERS = {"utils", "common", "helpers", "types"}

#: A function of a Lua file: on one line, or stylua puts its `end` into the column in which it begins.
LUA_FUNCTION = re.compile(
    r"^( *)(?:local )?function ([\w.:]+)\([^\n)]*\)(?: end$|\n.*?^\1end$)", re.MULTILINE | re.DOTALL
)


def test_no_file_is_long_but_those_of_one_concept(house_files: list[Path]) -> None:
    code = [path for path in house_files if path.suffix in {".py", ".lua"}]
    assert code
    long = {
        str(path): lines
        for path in code
        if (lines := len(path.read_text().splitlines())) > MAX_FILE_LINES and not is_one_concept(path)
    }
    assert not long, "split them, or say at the top of a file that it is one concept"


def test_a_file_that_says_at_its_top_that_it_is_one_concept_may_be_long(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""A queue. One concept, so this file may be longer than others."""\n')
    assert is_one_concept(module)
    module.write_text('"""A queue."""\n\n#: One concept.\nONE = 1\n')
    assert not is_one_concept(module)


def test_no_function_is_long(house_files: list[Path]) -> None:
    long = [
        f"{path}: {name} has {lines} lines"
        for path in house_files
        for name, lines in functions_of(path)
        if lines > MAX_FUNCTION_LINES
    ]
    assert not long


def test_no_module_is_a_drawer(root: Path, house_files: list[Path]) -> None:
    source = [path.relative_to(root / "src") for path in house_files if path.is_relative_to(root / "src")]
    assert not [path for path in source if DRAWERS & {part.removesuffix(".py") for part in path.parts}]


def test_no_shared_lua_function_is_unused(root: Path) -> None:
    scripts = "\n".join(path.read_text() for path in (root / "lua").rglob("*.lua"))
    code = re.sub(r"--.*", "", scripts)
    shared = [name for path in (root / "lua" / "lib").glob("*.lua") for name, _ in functions_of(path)]
    assert shared
    assert not [name for name in shared if len(re.findall(rf"\b{name}\b", code)) == 1]


def test_the_ruler_measures_code_and_leaves_docstrings_out(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('async def f():\n    """One.\n\n    Two.\n    """\n    return 1\n')
    script = tmp_path / "script.lua"
    script.write_text("local function e() end\nlocal function g(x)\n  if x then\n    return 1\n  end\nend\n")
    assert [*functions_of(module), *functions_of(script)] == [("f", 2), ("e", 1), ("g", 5)]


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """The name of each function of a file, and how many lines it has without its docstring."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) else None
                yield node.name, lines_of(node) - (lines_of(docstring) if docstring else 0)
    elif path.suffix == ".lua":
        for match in LUA_FUNCTION.finditer(path.read_text()):
            yield match[2], match[0].count("\n") + 1


def is_one_concept(path: Path) -> bool:
    """Whether a file says on its first line that it is one concept; it may then be long."""
    return "one concept" in path.read_text().partition("\n")[0].lower()


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
