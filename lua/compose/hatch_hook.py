"""Lets hatchling compose the scripts before it builds a wheel or an editable install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ComposeScripts(BuildHookInterface[Any]):
    """Composes in its own process: this one may have imported another release of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Compose the scripts, if a file has changed since they were composed."""
        command = [sys.executable, str(Path(self.root, "lua", "compose"))]
        subprocess.run(command, check=True)  # noqa: S603 - no shell
