"""SECURITY.md is short, its links lead somewhere, and each row of its table names tests that are there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_each_domain_of_trust_names_the_tests_that_hold_it(root: Path) -> None:
    text = (root / "SECURITY.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(text.splitlines()) <= 120
    assert len(rows) >= 10
    assert not [row for row in rows if "](tests/" not in row.split(" | ")[-1]]
    links = re.findall(r"\]\(([^)#]+)", text)
    assert not [link for link in links if not (root / link).is_file()]
