"""What the tests of the house share: where the checkout is, and which files belong to it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def house_files(root: Path) -> list[Path]:
    """All files that are committed, or would be by `git add`."""
    # The checkout may belong to somebody else than the one who runs the tests, as in many CI systems.
    git = ["git", "-c", "safe.directory=*", "-C", str(root)]
    listed = subprocess.run(
        [*git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        check=True,
    )
    files = [root / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in files if path.is_file()]
