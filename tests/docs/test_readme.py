"""The commands and links of the README work."""

from __future__ import annotations

import re
import subprocess

from tests.docs.pages import README, ROOT


def test_the_commands_of_the_readme_are_targets_of_make() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = set(re.findall(r"^  ([a-z-]+) ", listed, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README.read_text(), re.MULTILINE))
    assert named >= {"demo", "test", "bench"}
    assert named <= targets


def test_the_links_of_the_readme_exist() -> None:
    links = re.findall(r"\]\(([^):]+)\)", README.read_text())
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]
