"""No committed file names a machine or a package registry, or is merged by half."""

from __future__ import annotations

import re
from pathlib import Path

#: Written so that this file does not match.
FORBIDDEN = {
    "a path of one machine": re.compile(r"/(?:opt(?!/homebrew)|home|root|Users)/\w"),
    "a package registry": re.compile(r"files[.]pythonhosted|pypi[.]org|registry[.](?:npmjs|yarnpkg)"),
    "the mark of a conflict": re.compile(r"^(?:<{7}|>{7}) "),
    "an address with a password": re.compile(r"(?:https?|ssh)://[^\s/@:]+:[^\s/@]+@"),
}


def test_nothing_committed_names_a_machine_or_a_registry_or_has_a_conflict(
    root: Path, house_files: list[Path]
) -> None:
    here = re.compile("|".join(re.escape(f"{place}/") for place in (root, Path.home())))
    found = [
        f"{path.relative_to(root)}:{number}: {what}: {line.strip()[:100]}"
        for path in house_files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        for what, pattern in {**FORBIDDEN, "a path of this machine": here}.items()
        if pattern.search(line)
    ]
    assert not found
