"""Fixtures of this folder: the checkout and its files."""

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
    """Return all files that are committed, or that `git add` would add."""
    # In many CI systems the checkout belongs to another user.
    git = ["git", "-c", "safe.directory=*", "-C", str(root)]
    listed = subprocess.run(
        [*git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        check=True,
    )
    files = [root / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in files if path.is_file()]
