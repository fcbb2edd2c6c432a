"""A private temporary folder, and a check of what a server leaves behind."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Traces:
    """Finds what servers leave: private folders in `base`, and processes that name them."""

    base: Path

    def folders(self) -> list[Path]:
        return list(self.base.iterdir())

    def processes(self) -> list[str]:
        listed = subprocess.check_output(["ps", "-A", "-ww", "-o", "args="], text=True)
        return [line for line in listed.splitlines() if str(self.base) in line]

    def gone(self) -> bool:
        return not self.folders() and not self.processes()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Give servers a private temporary folder, with a path short enough for sockets."""
    tmp_path_factory.getbasetemp()  # made now, it is not in there
    base = Path(tempfile.mkdtemp(prefix="lh-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    monkeypatch.setenv("TMPDIR", str(base))
    yield Traces(base)
    shutil.rmtree(base)
