"""Runs of pytest as users have them: their files, in a process and a folder of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: What every run is started with: a warning is an error, and the settings are those of a usual project.
SETTINGS = """\
[pytest]
asyncio_mode = {mode}
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
_OURS = ("COV_", "LEASEHOLD_", "PYTEST_", "REDIS_URL")


@dataclass(frozen=True)
class PytestRun:
    """How a run of pytest ended."""

    output: str

    def counts(self) -> dict[str, int]:
        """How many tests passed, failed, and so on, by the last line."""
        last = self.output.rstrip().splitlines()[-1]
        return {what.rstrip("s"): int(count) for count, what in re.findall(r"(\d+) ([a-z]+)", last)}


def run_pytest(
    folder: Path,
    tests: str,
    *arguments: str,
    mode: str = "strict",
    env: dict[str, str] | None = None,
    settings: str = SETTINGS,
) -> PytestRun:
    """Run pytest on one file of tests, with the plugins that are installed."""
    (folder / "test_users.py").write_text(tests)
    (folder / "pytest.ini").write_text(settings.format(mode=mode))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return PytestRun(done.stdout)
