"""Texts of others are shown through one place for each border: a new place that forgets it is found here."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import leasequeue

ROOT = Path(leasequeue.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
#: Who asks for a logger of the standard library: `Log` itself, and what sets levels and handlers.
MAKE_LOGGERS = {
    *("errors/log.py", "cli/worker/settings.py", "cli/autoscale/command.py", "cli/demo/workers.py"),
    "spark/jobs/session.py",
}
#: Who prints: what makes texts plain, and what prints no text of others but by `plain`: a server's address,
#: the steps of the demo, the progress of a Spark job, the version, that the command line is missing, and the
#: error of a handler of log lines.
PRINTING = {
    *("cli/formatting.py", "cli/server.py", "cli/serve.py", "cli/demo/command.py", "cli/pipeline.py"),
    *("cli/app.py", "cli/__init__.py", "errors/log.py"),
}


@functools.cache
def found() -> tuple[list[tuple[str, ast.Call, str]], list[tuple[str, ast.ClassDef]]]:
    """Return each call of the package, with its file and the name of what is called; and each class."""
    calls: list[tuple[str, ast.Call, str]] = []
    classes: list[tuple[str, ast.ClassDef]] = []
    for path in sorted(ROOT.rglob("*.py")):
        file = f"{path.relative_to(ROOT)}"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                calls.append((file, node, name_of(node.func)))
            elif isinstance(node, ast.ClassDef):
                classes.append((file, node))
    return calls, classes


def name_of(node: ast.expr) -> str:
    """Return the last part of a name; empty: it is none."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def object_of(call: ast.Call) -> str:
    """Return the name of the object whose method is called."""
    return name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def is_constant(node: ast.expr) -> bool:
    """Return whether a text is written in the program, or is one of two that are."""
    if isinstance(node, ast.IfExp):
        return is_constant(node.body) and is_constant(node.orelse)
    return isinstance(node, ast.Constant)


def test_messages_of_log_lines_are_constants_so_that_all_else_passes_the_log() -> None:
    lines, wrong = 0, []
    for file, call, name in found()[0]:
        if name == "getLogger" and file not in MAKE_LOGGERS:
            wrong.append(f"{file}:{call.lineno} makes a logger that shows texts as they are: use Log")
        if name in LEVELS and object_of(call) in {"log", "_log", "logger"}:
            lines += 1
            if not is_constant(call.args[name == "log"]):
                wrong.append(f"{file}:{call.lineno} logs a text that is no constant: pass it as an argument")
    assert lines > 100
    assert wrong == []


def test_all_that_is_printed_passes_the_printing_of_the_command_line() -> None:
    wrong = [
        f"{file}:{call.lineno} prints: use print_line, print_rows, note or fail"
        for file, call, name in found()[0]
        if file not in PRINTING and (is_print(call, name) or is_stream(call, name))
    ]
    assert wrong == []


def is_print(call: ast.Call, name: str) -> bool:
    """Return whether a call prints something, or makes what prints."""
    of = object_of(call)
    if of == "typer":
        return name in {"echo", "secho", "confirm", "prompt"}
    return name in {"print", "Console"} and of in {"", "console"}


def is_stream(call: ast.Call, name: str) -> bool:
    """Return whether a call writes to standard output or standard error."""
    return name == "write" and object_of(call) in {"stdout", "stderr"}


def test_names_become_labels_and_attributes_in_one_place_each() -> None:
    places = {("add_sample", "cli/exporter.py"), ("start_span", "telemetry/instruments.py")}
    names = {name for name, _ in places}
    assert {(name, file) for file, _, name in found()[0] if name in names} == places


def test_no_error_shows_its_text_in_a_way_of_its_own() -> None:
    own = [
        f"{file}: {node.name}"
        for file, node in found()[1]
        if any(name_of(base).endswith(("Error", "Exception")) for base in node.bases)
        and any(isinstance(one, ast.FunctionDef) and one.name == "__str__" for one in node.body)
    ]
    assert own == ["errors/__init__.py: LeasequeueError"]
