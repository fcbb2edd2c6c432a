"""No committed file names a machine or a package registry."""

from __future__ import annotations

import re
from pathlib import Path

#: Written so that this file does not match.
FORBIDDEN = {
    "a path of one machine": re.compile(r"/(?:opt(?!/homebrew)|home|root|Users)/\w"),
    "a package registry": re.compile(r"files[.]pythonhosted|pypi[.]org|registry[.](?:npmjs|yarnpkg)"),
    "an address with a password": re.compile(r"(?:https?|ssh)://[^\s/@:]+:[^\s/@]+@"),
}


def test_nothing_committed_names_a_machine_or_a_registry(root: Path, house_files: list[Path]) -> None:
    here = re.compile("|".join(re.escape(f"{place}/") for place in (root, Path.home())))
    found = [
        f"{path.relative_to(root)}:{number}: {what}: {line.strip()[:100]}"
        for path in house_files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for what, pattern in {**FORBIDDEN, "a path of this machine": here}.items()
        if pattern.search(line)
    ]
    assert not found
