"""Functions have a maximum length, classes one file, and modules a subject."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_FUNCTION_LINES = 60
#: The longest line of Lua that has a comment: as long as one of Python. stylua breaks those of code.
MAX_COMMENT_WIDTH = 110
NO_SUBJECT = {"utils", "common", "helpers", "types"}

#: A function of a Lua file: on one line, or with its `end` where its first line begins, as stylua formats it.
LUA_FUNCTION = re.compile(
    r"^( *)(?:local )?function ([\w.:]+)\([^\n)]*\)(?: end$|\n.*?^\1end$)", re.MULTILINE | re.DOTALL
)


def test_no_function_is_long(house_files: list[Path]) -> None:
    long = [
        f"{path}: {name} has {lines} lines"
        for path in house_files
        for name, lines in functions_of(path)
        if lines > MAX_FUNCTION_LINES
    ]
    assert not long


def test_no_module_is_without_a_subject(root: Path, house_files: list[Path]) -> None:
    source = [path.relative_to(root / "src") for path in house_files if path.is_relative_to(root / "src")]
    assert not [path for path in source if NO_SUBJECT & {part.removesuffix(".py") for part in path.parts}]


def test_no_class_is_spread_over_files(root: Path) -> None:
    """A base class with one subclass, in another file of the same room, is a part of that subclass."""
    files: dict[str, Path] = {}
    subclasses = defaultdict(list)
    for path in (root / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {re.split(r"[\[.]", ast.unparse(base))[0] for base in node.bases}
                if not bases & {"Protocol", "ABC"}:
                    files[node.name] = path
                for base in bases:
                    subclasses[base].append(path)
    assert not [
        base
        for base, paths in subclasses.items()
        if base in files
        and len(paths) == 1
        and paths[0] != files[base]
        and paths[0].parent == files[base].parent
    ]


def test_no_comment_of_lua_is_wide(root: Path) -> None:
    wide = [
        f"{path}:{number}"
        for path in (root / "lua").rglob("*.lua")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_COMMENT_WIDTH and re.search(r"(?:^|\s)--", line)
    ]
    assert not wide


def test_no_shared_lua_function_is_unused(root: Path) -> None:
    scripts = "\n".join(path.read_text() for path in (root / "lua").rglob("*.lua"))
    code = re.sub(r"--.*", "", scripts)
    shared = [name for path in (root / "lua").glob("**/lib/*.lua") for name, _ in functions_of(path)]
    assert shared
    assert not [name for name in shared if len(re.findall(rf"\b{name}\b", code)) == 1]


def test_the_length_of_a_function_leaves_out_its_docstring(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('async def f():\n    """One.\n\n    Two.\n    """\n    return 1\n')
    script = tmp_path / "script.lua"
    script.write_text("local function e() end\nlocal function g(x)\n  if x then\n    return 1\n  end\nend\n")
    assert [*functions_of(module), *functions_of(script)] == [("f", 2), ("e", 1), ("g", 5)]


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """Return the name of each function of a file, and its number of lines without the docstring."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) else None
                yield node.name, lines_of(node) - (lines_of(docstring) if docstring else 0)
    elif path.suffix == ".lua":
        for match in LUA_FUNCTION.finditer(path.read_text()):
            yield match[2], match[0].count("\n") + 1


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
