"""The pages of calls show every public class, each of its methods with its signature, and each attribute."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import leasehold
from leasehold import RetryPolicy
from tests.docs.pages import REFERENCE

CALLS = "\n".join((REFERENCE / name).read_text() for name in ("api.md", "worker.md"))
ERRORS = (REFERENCE / "errors.md").read_text()
CLASSES = [
    thing
    for name in leasehold.__all__
    if inspect.isclass(thing := getattr(leasehold, name)) and not issubclass(thing, Exception)
]
#: Made by calling the class; the others are handed out by calls.
MADE_BY_USERS = {"AsyncWorkQueue", "Item", "RetryPolicy", "Worker"}
#: Defaults as they are written, where that is not how they show themselves.
AS_WRITTEN = {repr(RetryPolicy()): "RetryPolicy()", "<factory>": "{}", "datetime.": "", "'": '"'}


class Unquoted(str):
    """An annotation that is shown as it stands in the source."""

    __slots__ = ()
    __repr__ = str.__str__


def test_every_public_name_has_its_place_in_the_reference() -> None:
    headings = set(re.findall(r"^##+ `?(\w+)`?$", CALLS + ERRORS, re.MULTILINE))
    assert not set(leasehold.__all__) - headings


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
    """The public members of a class and of its bases, as far as they are ours and not shown elsewhere."""
    found: dict[str, Any] = {}
    for origin in owner.__mro__:
        inherited = origin is leasehold.Item and owner is not origin
        if inherited or not origin.__module__.startswith("leasehold"):
            continue
        for name in (*vars(origin), *inspect.get_annotations(origin)):
            if not name.startswith("_"):
                found.setdefault(name, getattr(owner, name, None))
    return found


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
