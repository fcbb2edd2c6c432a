"""The reference has every public name on one page, and the docstrings that it shows are complete."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import griffe
import pytest

from docs import generated
from docs.griffe_comments import Comments
from tests.docs.pages import REFERENCE, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The further options of some calls.
OPTIONS = (
    "leasequeue.queue.encoding.AddOptions",
    "leasequeue.flow.stage.StageSettings",
    "leasequeue.flow.stage.SignalSettings",
    "leasequeue.flow.stage.SubFlowSettings",
)


@cache
def shown() -> Counter[str]:
    """Return how often each name is shown on the pages of the reference."""
    pages = [generated.on_page_markdown(page.read_text()) for page in REFERENCE.glob("*.md")]
    return Counter(name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE))


@pytest.fixture(scope="module")
def package() -> griffe.Object:
    """Return the package as the site shows it."""
    extensions = griffe.load_extensions(Comments())
    loaded = griffe.load(
        "leasequeue", search_paths=[ROOT / "src"], extensions=extensions, docstring_parser="google"
    )
    assert isinstance(loaded, griffe.Object)
    return loaded


@pytest.mark.parametrize("module", generated.MODULES)
def test_every_public_name_is_on_one_page(module: str) -> None:
    homes = generated.homes_of(module)
    assert homes
    assert {
        name: shown()[f"{module}.{name}"] or shown()[f"{home}.{name}"] for name, home in homes.items()
    } == (dict.fromkeys(homes, 1))


def test_every_part_of_a_queue_is_on_one_page() -> None:
    for part in generated.parts("leasequeue.AsyncWorkQueue").split("\n\n"):
        assert shown()[part.split()[1]] == 1


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.name)
def test_a_page_that_is_filled_in_from_the_code_says_where_to_read_without(page: Path) -> None:
    text = page.read_text()
    notes = re.findall(r"^> In a checkout, .*\n\n", text, re.MULTILINE)
    without = re.sub("|".join(map(re.escape, notes)), "", text)
    built = generated.on_page_markdown(text)
    assert len(notes) == (built != without or "\n::: " in built)
    assert "> In a checkout" not in built
    for note in notes:
        assert (ROOT / re.findall(r"`([^`]+)`", note)[0]).exists()


@pytest.mark.parametrize("module", generated.MODULES)
def test_the_names_of_a_module_are_sorted(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert names == sorted({*names}, key=lambda name: (not name.isupper(), name[0].islower(), name))


def test_every_public_member_is_documented(package: griffe.Object) -> None:
    bare = [
        f"{owner.path}.{name}"
        for owner in classes(package)
        for name, member in members(owner)
        if not member.has_docstring and name not in described(owner)
    ]
    assert not bare, "document them, or begin their names with an underscore"


def test_a_docstring_describes_arguments_that_there_are(package: griffe.Object) -> None:
    functions = [
        member
        for owner in classes(package)
        for _, member in owner.members.items()
        if isinstance(member, griffe.Function)
    ]
    assert functions
    for function in functions:
        taken = {parameter.name for parameter in function.parameters}
        if any(str(parameter.annotation).startswith("Unpack[") for parameter in function.parameters):
            taken |= {name for path in OPTIONS for name in all_members(package, path)}
        described_there = {name.lstrip("*") for name in described(function, "parameters")}
        assert described_there <= taken, f"{function.path}: {described_there - taken}"


def classes(package: griffe.Object) -> Iterator[griffe.Class]:
    """Yield the classes that the reference shows."""
    for name in shown():
        found = package[name.removeprefix("leasequeue.")]
        target = found.final_target if found.is_alias else found
        if isinstance(target, griffe.Class):
            yield target


def members(owner: griffe.Class) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a class, but none that a class above has."""
    for name, member in owner.members.items():
        above = any(name in base.members for base in owner.mro())
        if not (name.startswith("_") or member.is_alias or above):
            yield name, member


def all_members(package: griffe.Object, path: str) -> set[str]:
    """Return the names in a typed dict, and in those that it extends."""
    return set(package[path.removeprefix("leasequeue.")].all_members)


def described(thing: griffe.Object, *kinds: str) -> set[str]:
    """Return the names that the sections of a docstring describe."""
    sections = thing.docstring.parsed if thing.docstring else []
    wanted = kinds or ("attributes", "parameters")
    return {item.name for section in sections if section.kind.value in wanted for item in section.value}
