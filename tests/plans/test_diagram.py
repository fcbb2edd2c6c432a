"""Tests of the Mermaid diagrams: their form, and that no name breaks it."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasequeue.queue.plans.diagram import MAX_TEXT, Box, draw, text

#: A line of a diagram.
LINE = re.compile(
    r'flowchart LR|    s\d+[^"]{1,2}"[^"`<>]*(?:<br/>[^"`<>]*)*"[^"]{1,2}|    s\d+ (?:-->|-\.->) s\d+'
)


def read(label: str) -> str:
    """Return what Mermaid shows for a label."""
    return html.unescape(re.sub(r"#(\d+);", r"&#\1;", label))


@pytest.mark.parametrize(
    "name",
    [
        '"]; click s0 "x',
        "end",
        "`a`",
        "a<br/>b",
        "<script>",
        "#35;",
        "1. a",
        "- a",
        "a\nb",
        " a ",
        "é→中",
        "a--b",
        "%% a",
    ],
)
def test_names_are_shown_as_they_are_and_break_nothing(name: str) -> None:
    drawn = draw({name: Box(lines=[name, "q"], after=())})
    assert all(LINE.fullmatch(line) for line in drawn.splitlines())
    assert read(text(name)) == name.replace("\n", "\ufffd")


@given(st.lists(st.text(min_size=1), min_size=1, unique=True, max_size=3))
def test_any_name_is_safe(names: list[str]) -> None:
    drawn = draw({name: Box(lines=[name], after=names[:place]) for place, name in enumerate(names)})
    lines = drawn.split("\n")
    assert lines.pop() == ""
    assert all(LINE.fullmatch(line) for line in lines)


@given(
    st.text(
        st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zs", "Zl", "Zp", "Cn", "Co"]), max_size=MAX_TEXT
    )
)
def test_a_printable_text_is_shown_as_it_is(label: str) -> None:
    assert read(text(label)) == label


def test_a_long_name_is_shortened() -> None:
    assert text("a" * 500) == "a" * (MAX_TEXT - 1) + "#8230;"
