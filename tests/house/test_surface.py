"""The public names of `leasequeue` are listed, and are those that type checkers import."""

from __future__ import annotations

import ast
import importlib
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
