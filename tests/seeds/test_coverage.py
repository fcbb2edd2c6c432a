"""The coverage page has every row of the four seed systems, and the site names the tests that hold it."""

from __future__ import annotations

import re

from docs import generated
from tests.docs.pages import REFERENCE
from tests.seeds.markers import marked_tests

PAGE = REFERENCE / "coverage.md"
#: How many rows of each kind each system has.
ROWS = {
    "RWQ": {"O": 28, "G": 16, "K": 7, "L": 5, "T": 9, "B": 19},
    "WRQ": {"O": 24, "G": 10, "E": 6, "K": 6, "L": 2, "T": 5, "B": 16},
    "GLD": {"O": 24, "G": 8, "K": 6, "L": 7, "T": 9, "B": 21},
    "RRQ": {"O": 10, "G": 6, "K": 1, "L": 1, "T": 5, "B": 8},
}
EXPECTED = [
    f"{system}-{kind}{number}"
    for system, kinds in ROWS.items()
    for kind, count in kinds.items()
    for number in range(1, count + 1)
]


def test_the_page_has_every_row_once_and_in_order() -> None:
    assert re.findall(r"^\| ([A-Z]{3}-[A-Z]\d+) \|", PAGE.read_text(), re.MULTILINE) == EXPECTED


def test_the_site_names_the_tests_that_are_marked() -> None:
    rows = generated.on_page_markdown(PAGE.read_text()).splitlines()
    [row] = [row for row in rows if row.startswith("| RWQ-O12 |")]
    assert row.split(" | ")[-1] == ", ".join(f"`{test}`" for test in marked_tests()["RWQ-O12"]) + " |"


def test_every_marker_names_a_row() -> None:
    assert set(marked_tests()) <= set(EXPECTED)


def test_every_row_names_a_test_or_says_why_there_is_none() -> None:
    rows = re.findall(r"^\| ([A-Z]{3}-[A-Z]\d+) \|[^|]*\|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    untested = [
        row for row, here in rows if row not in marked_tests() and not re.match(r" not (yet|used): ", here)
    ]
    assert not untested
