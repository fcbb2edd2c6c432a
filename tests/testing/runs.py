"""Run pytest on files of a user, in a separate process or in this one."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The settings of a usual project; warnings are errors.
SETTINGS = """\
[pytest]
asyncio_mode = {mode}
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""
_REMOVED_VARIABLES = ("COV_", "LEASEHOLD_", "PYTEST_", "REDIS_URL")
#: Plugins that act on the whole process, so that they cannot run inside of another run of pytest.
_NOT_IN_PROCESS = ("cacheprovider", "faulthandler", "timeout", "xdist", "pytester")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class PytestRun:
    """The output of a run of pytest."""

    output: str

    def counts(self) -> dict[str, int]:
        """Return the number of tests that passed, failed and so on, from the last line."""
        last = self.output.rstrip().splitlines()[-1]
        return {what.rstrip("s"): int(count) for count, what in re.findall(r"(\d+) ([a-z]+)", last)}


def run_pytest(
    folder: Path, files: Mapping[str, str], *arguments: str, env: dict[str, str], settings: str = SETTINGS
) -> PytestRun:
    """Run pytest on files in a separate process, with the plugins that are installed."""
    names = _write(folder, files, settings.format(mode="strict"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED_VARIABLES)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, *names],
        cwd=folder,
        env={**kept, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return PytestRun(done.stdout)


def run_pytest_in_process(
    folder: Path,
    files: Mapping[str, str],
    *arguments: str,
    mode: str = "strict",
    env: Mapping[str, str] | None = None,
) -> PytestRun:
    """Run pytest on files in this process, with the plugins that are installed.

    The names of the modules must not be those of modules that are imported. They are removed afterwards.
    """
    names = _write(folder, files, SETTINGS.format(mode=mode))
    disabled = [option for plugin in _NOT_IN_PROCESS for option in ("-p", f"no:{plugin}")]
    output = io.StringIO()
    imported = {name.removesuffix(".py") for name in files}
    assert not imported & sys.modules.keys()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        for name in os.environ:
            if name.startswith(_REMOVED_VARIABLES) and name != "PYTEST_CURRENT_TEST":
                patch.delenv(name)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            pytest.main(["-q", *disabled, *arguments, *names])
        finally:
            for module in imported & sys.modules.keys():
                del sys.modules[module]
    return PytestRun(output.getvalue())


def file_of(tests: str) -> dict[str, str]:
    """Return a file of tests with a name that was not used before."""
    return {f"test_users_{next(_numbers)}.py": tests}


def _write(folder: Path, files: Mapping[str, str], settings: str) -> list[str]:
    """Write the files and the settings, and return the names of the files of tests."""
    (folder / "pytest.ini").write_text(settings)
    for name, text in files.items():
        (folder / name).write_text(text)
    return [name for name in files if name.startswith("test_")]
