"""The reference shows every public name, with signatures and attributes, and no other name is public."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from typing import Any

import pytest

import leasequeue
from leasequeue import RetryPolicy, testing
from leasequeue.queue.dead_letters import DeadLetters
from leasequeue.queue.events import Events
from leasequeue.queue.limits import Limits
from leasequeue.queue.results import Results
from leasequeue.queue.runs.runs import Runs
from leasequeue.queue.schedules import Schedules
from tests.docs.pages import REFERENCE

CALLS = "\n".join((REFERENCE / name).read_text() for name in ("api.md", "worker.md", "flows.md"))
ERRORS = (REFERENCE / "errors.md").read_text()
EVERYTHING = "\n".join(
    (CALLS, ERRORS, *((REFERENCE / name).read_text() for name in ("fastapi.md", "spark.md")))
)
#: The public modules, as api.md lists them.
MODULES = re.findall(r"^\| `(leasequeue(?:\.[\w.]+)?)` \|", CALLS, re.MULTILINE)
CLASSES = [
    thing
    for name in leasequeue.__all__
    if inspect.isclass(thing := getattr(leasequeue, name)) and not issubclass(thing, Exception)
]
#: The classes that have a section, with their sub-resources and those of `leasequeue.testing`.
SHOWN = [
    *CLASSES,
    *(DeadLetters, Events, Limits, Results, Runs, Schedules),
    *(thing for name in testing.__all__ if inspect.isclass(thing := getattr(testing, name))),
]
ERROR_CLASSES = [
    thing
    for name in leasequeue.__all__
    if inspect.isclass(thing := getattr(leasequeue, name)) and issubclass(thing, Exception)
]
#: Made by calling the class; the others are returned by calls.
MADE_BY_USERS = {"AsyncWorkQueue", "Fleet", "Flow", "Item", "RetryPolicy", "TaskQueue", "Worker"}
#: Defaults as they are written, where that is not how they show themselves.
AS_WRITTEN = {repr(RetryPolicy()): "RetryPolicy()", "<factory>": "{}", "datetime.": "", "'": '"'}


class Unquoted(str):
    """An annotation that is shown as it stands in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def test_the_reference_lists_the_public_modules() -> None:
    assert MODULES == [
        "leasequeue",
        "leasequeue.flow",
        "leasequeue.telemetry",
        "leasequeue.testing",
        "leasequeue.testing.history",
        "leasequeue.fastapi",
        "leasequeue.spark",
    ]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_its_place_in_the_reference(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert not {name for name in names if not re.search(rf"\b{name}\b", EVERYTHING)}
    if module == "leasequeue":
        assert not set(names) - set(re.findall(r"^##+ `?(\w+)`?$", CALLS + ERRORS, re.MULTILINE))


@pytest.mark.parametrize("owner", SHOWN, ids=lambda owner: owner.__name__)
def test_the_attributes_and_methods_of_a_class_are_those_that_are_documented(owner: type) -> None:
    section = section_of(CALLS, "##", owner.__name__)
    tables = "".join(re.findall(r"^\| (?:attribute|call|) ?\|.*\n(?:^\|.*\n)*", section, re.MULTILINE))
    rows = re.findall(r"^\| `(?:await )?(?:\w+\.)?(\w+)(?:`|\()", tables, re.MULTILINE)
    documented = {*re.findall(r"^### (\w+)$", section, re.MULTILINE), *rows}
    public = set(members_of(owner))
    assert not public - documented, "document them, or begin their names with an underscore"
    calls_of_itself = 1 if "__call__" in vars(owner) else 0
    assert len(documented - public) == calls_of_itself, documented - public


@pytest.mark.parametrize("owner", ERROR_CLASSES, ids=lambda owner: owner.__name__)
def test_the_attributes_of_an_error_are_those_that_are_documented(owner: type) -> None:
    page = ERRORS if owner.__name__ in ERRORS else CALLS
    section = section_of(page, "###", owner.__name__)
    inherited = {name for base in owner.__bases__ for name in members_of(base)}
    for name in set(members_of(owner)) - inherited:
        assert re.search(rf"`[^`\n]*\b{name}\b", section), f"{name} is not documented"


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_a_class_is_shown_with_its_signatures_and_attributes(owner: type) -> None:
    section = section_of(CALLS, "##", owner.__name__)
    shown = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    for name, member in members_of(owner).items():
        if callable(member):
            assert signature_in(section_of(section, "###", name)) == signature_of(name, member)
        else:
            assert name in shown
    if owner.__name__ in MADE_BY_USERS:
        assert signature_in(section) == signature_of(owner.__name__, owner)


def members_of(owner: type) -> dict[str, Any]:
    """Return the public members of a class and of its bases, except those of other libraries and of Item."""
    found: dict[str, Any] = {}
    for origin in owner.__mro__:
        if (origin is leasequeue.Item and owner is not origin) or not origin.__module__.startswith(
            "leasequeue"
        ):
            continue
        for name in (*vars(origin), *inspect.get_annotations(origin), *assigned_in(origin)):
            inherited = owner is not leasequeue.Item and hasattr(leasequeue.Item, name)
            if not (name.startswith("_") or (issubclass(owner, leasequeue.Item) and inherited)):
                found.setdefault(name, getattr(owner, name, None))
    return found


def assigned_in(owner: type) -> set[str]:
    """Return the attributes that the methods of a class assign to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def section_of(text: str, level: str, heading: str) -> str:
    """The text between a heading and the next one of its level or above."""
    match = re.search(rf"^{level} {heading}$(.*?)(?=^##? |^{level} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no page of calls has the heading {level} {heading}"
    return match[1]


def signature_in(section: str) -> str:
    """The first signature of a section, on one line."""
    match = re.search(r"```py\n(.*?)```", section, re.DOTALL)
    assert match, f"no signature in {section[:60]!r}"
    one_line = " ".join(match[1].split())
    return re.sub(r",? \)", ")", one_line).replace("( ", "(")


def signature_of(name: str, member: Any) -> str:
    """The signature in the code: what it takes and gives, as written there."""
    signature = inspect.signature(member)
    parameters = [
        parameter.replace(annotation=Unquoted(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    gives = signature.return_annotation
    shown = signature.replace(
        parameters=parameters,
        return_annotation=signature.empty if inspect.isclass(member) else Unquoted(gives),
    )
    text = f"{'async ' if inspect.iscoroutinefunction(member) else ''}{name}{shown}"
    for default, written in AS_WRITTEN.items():
        text = text.replace(default, written)
    return text
