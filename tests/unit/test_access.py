"""What rules name: the commands of the scripts, and those that are declared in `wire/access.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import leasequeue
from docs import generated
from leasequeue.wire.access import CONNECTIONS, PRODUCING, Role, ServerFacts, pattern_of, rules_of
from leasequeue.wire.scripts import load
from tests.docs.pages import DOCS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Sent by redis-py, and not by the code of Leasequeue.
BY_REDIS_PY = {"client|setinfo", "select"}
#: Rooms that send commands for operators and tests only.
ELSEWHERE = {"cli", "embedded", "testing"}
#: Commands with subcommands.
FAMILIES = {"client", "pubsub", "script"}


def constants(node: ast.expr) -> Iterator[str]:
    """Yield the text of a constant, and of both branches of a condition."""
    if isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bytes, str)):
        text = node.value.decode(errors="replace") if isinstance(node.value, bytes) else node.value
        if re.fullmatch("[A-Z]{2,}", text):
            yield text.lower()


def sent_in(tree: ast.AST) -> Iterator[str]:
    """Yield the commands in a module: first in a tuple of bytes, or given to `read`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Tuple) and node.elts and _is_bytes(node.elts[0]):
            for name in constants(node.elts[0]):
                under = next(constants(node.elts[1]), "") if name in FAMILIES else ""
                yield f"{name}|{under}" if under else name
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("read", "_read"):
            for argument in node.args[:2]:
                yield from constants(argument)


def _is_bytes(node: ast.expr) -> bool:
    first = node.body if isinstance(node, ast.IfExp) else node
    return isinstance(first, ast.Constant) and isinstance(first.value, bytes)


def test_each_command_that_is_sent_is_declared_and_each_declared_one_is_sent() -> None:
    root = Path(leasequeue.__file__).parent
    files = [file for file in root.rglob("*.py") if file.relative_to(root).parts[0] not in ELSEWHERE]
    sent = {name for file in files for name in sent_in(ast.parse(file.read_text()))}
    assert sent - {"command", "hello"} == CONNECTIONS.keys() - BY_REDIS_PY


def test_the_scripts_of_producers_exist() -> None:
    assert load().keys() >= PRODUCING


def test_a_new_command_of_a_script_is_in_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ServerFacts.read(
        b"redis_version:7.2.4\r\n", [[b"zunion", -3, [b"readonly"]], [b"eval", 3, []], None]
    )
    one = load()["counts"]
    changed = {**load(), "counts": one.__class__(**{**vars(one), "commands": frozenset({"ZUNION"})})}
    monkeypatch.setattr("leasequeue.wire.access.load", lambda: changed)
    for role in Role:
        first, last = ["clearselectors", "resetkeys", "~q:*", "resetchannels", "&q:*", "-@all"], ["+zunion"]
        scripts = [] if role is Role.WATCHER else ["+eval"]
        assert rules_of(["q"], role, server)[:8] == first + scripts + last


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("emails", "emails:*"),
        ("{shop}:a", "{shop}:a:*"),
        ("a*b?c[d]e\\f", "a\\*b\\?c\\[d\\]e\\\\f:*"),
        ("two words\tand\nlines\0", "two?words?and?lines?:*"),
        ("é\u2003", "é\u2003:*"),
    ],
)
def test_signs_with_a_meaning_in_patterns_stand_for_themselves(name: str, pattern: str) -> None:
    """White space cannot: a rule may not contain it."""
    assert pattern_of(name) == pattern


@pytest.mark.parametrize("enabled", [False, True])
def test_a_node_of_a_cluster_needs_what_finds_the_other_nodes(*, enabled: bool) -> None:
    names = [b"cluster|slots", b"command"]
    server = ServerFacts.read(
        b"redis_version:9.1.0\r\ncluster_enabled:%d\r\n" % enabled, [[name, 1, []] for name in names]
    )
    assert ("+cluster|slots" in rules_of(["q"], Role.WATCHER, server)) is enabled


def test_the_page_names_each_command_once() -> None:
    page = generated.on_page_markdown((DOCS / "how-to" / "access.md").read_text())
    inside, outside = page.partition("Inside the scripts:")[2].split("Outside of the scripts:")
    used = {command for script in load().values() for command in script.commands}
    assert {*re.findall(r"`([A-Z]+)`", inside.partition("`.")[0] + "`")} == used
    assert re.findall(r"^\| `([A-Z ]+)`", outside, re.MULTILINE) == [
        name.replace("|", " ").upper() for name in CONNECTIONS
    ]
