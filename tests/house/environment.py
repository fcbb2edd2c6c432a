"""Virtual environments for tests of what users install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


#: Prints the names of all scripts that the package can load.
PRINT_SCRIPTS = "from leasequeue.wire.scripts import load; print(*load())"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with nothing of the checkout in it."""

    bin: Path
    elsewhere: Path

    def run(self, program: str, *arguments: object) -> str:
        result = subprocess.run(
            [self.bin / program, *map(str, arguments)],
            cwd=self.elsewhere,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{program} {arguments}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def variables(self) -> dict[str, str]:
        """Return the variables of its programs. pip installs releases of requirements.lock, uncompiled."""
        unclean = ("PYTHON", "COV_", "REDIS_URL")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(unclean)}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        pip = {"PIP_CONSTRAINT": str(self.bin.parents[1] / "pins.txt"), "PIP_COMPILE": "0"}
        return {**clean, "PATH": path, **pip}

    def scripts_found(self) -> set[str]:
        """Return the names of the scripts that the installed package finds."""
        return {*self.run("python", "-W", "error", "-c", PRINT_SCRIPTS).split()}


def new_environment(root: Path, home: Path, python: str = sys.executable) -> Environment:
    """Make a clean environment, which installs only the releases of requirements.lock."""
    subprocess.run([python, "-m", "venv", home / "venv"], check=True)
    pins = re.findall(r"^(\S+==\S+(?: *;.*?)?) *\\$", (root / "requirements.lock").read_text(), re.MULTILINE)
    (home / "pins.txt").write_text("\n".join(pins))
    (home / "elsewhere").mkdir()
    return Environment(home / "venv" / "bin", home / "elsewhere")
