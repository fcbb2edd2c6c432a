"""The docs build without a warning, and load nothing from other sites."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

LOADED_FROM_OTHER_SITES = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>"
)


@pytest.mark.slow
def test_the_docs_build_without_a_warning_and_load_nothing_from_other_sites(
    root: Path, tmp_path: Path
) -> None:
    # The command of `make docs`, into another folder.
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "docs/mkdocs.yml"]
    result = subprocess.run(
        [*build, "--site-dir", str(tmp_path)],
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr

    pages = list(tmp_path.rglob("*.html"))
    assert pages
    assert not [hit for page in pages for hit in LOADED_FROM_OTHER_SITES.findall(page.read_text())]
