"""Type checkers see the arguments and the results of tasks. mypy checks typed.py with all tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TYPED = Path(__file__).parent / "typed.py"


@pytest.mark.slow
def test_pyright_sees_the_types_of_tasks() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, TYPED],
        cwd=TYPED.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
