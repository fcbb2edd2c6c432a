"""The docs build without a warning, and their pages load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LOADED_FROM_ELSEWHERE = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>"
)


def test_docs_build_strictly_and_load_nothing_from_elsewhere(root: Path, tmp_path: Path) -> None:
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
    assert not [hit for page in pages for hit in LOADED_FROM_ELSEWHERE.findall(page.read_text())]
