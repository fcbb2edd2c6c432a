"""The public names of `leasequeue` are listed, sorted and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import leasequeue

if TYPE_CHECKING:
    from pathlib import Path


def test_all_lists_the_public_names_and_each_is_what_type_checkers_import(root: Path) -> None:
    tree = ast.parse((root / "src/leasequeue/__init__.py").read_text())
    sources = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("leasequeue.")
        for alias in node.names
        if node.module != "leasequeue.lazy"
    }
    assert {*leasequeue.__all__} == {*sources}
    for name, module in sources.items():
        assert getattr(leasequeue, name) is getattr(importlib.import_module(module), name), name


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="module 'leasequeue' has no attribute 'Wroker'"):
        leasequeue.Wroker  # type: ignore[attr-defined]  # noqa: B018 - that is the test
    shown = subprocess.run(
        [sys.executable, "-c", "import leasequeue; leasequeue.Wroker"], stderr=subprocess.PIPE, check=False
    ).stderr.decode()
    assert "Did you mean: 'Worker'?" in shown
    assert {*leasequeue.__all__} <= {*dir(leasequeue)}


def test_all_is_sorted_and_lists_each_name_once() -> None:
    assert list(leasequeue.__all__) == sorted(set(leasequeue.__all__))


def test_each_public_class_and_function_has_a_docstring() -> None:
    documentable = [
        value
        for name in leasequeue.__all__
        if inspect.isclass(value := getattr(leasequeue, name)) or inspect.isroutine(value)
    ]
    assert documentable
    assert not [thing.__name__ for thing in documentable if not own_docstring(thing)]


def test_each_public_method_has_a_docstring() -> None:
    bare = [
        f"{owner.__name__}.{name}"
        for exported in leasequeue.__all__
        if inspect.isclass(owner := getattr(leasequeue, exported))
        for name, member in vars(owner).items()
        if not name.startswith("_") and is_documentable(member) and not own_docstring(member)
    ]
    assert not bare


def is_documentable(member: object) -> bool:
    return inspect.isroutine(member) or isinstance(member, property | classmethod | staticmethod)


def own_docstring(thing: object) -> str:
    """Return the docstring of a thing, but not an inherited or generated one."""
    if not inspect.isclass(thing):
        return inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    docstring = inspect.cleandoc(vars(thing).get("__doc__") or "")
    return "" if docstring.startswith(f"{thing.__name__}(") else docstring
