"""Virtual environments for tests of what users install."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
        """Return the variables of its programs. pip installs only the releases of requirements.lock."""
        unclean = ("PYTHON", "COV_", "REDIS_URL")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(unclean)}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {**clean, "PATH": path, "PIP_CONSTRAINT": str(self.bin.parents[1] / "pins.txt")}

    def scripts_found(self) -> set[str]:
        """Return the names of the Lua scripts that the installed catalogue writes."""
        folder = self.elsewhere / "composed"
        self.run("python", "-W", "error", "-m", "leasequeue.scripting", "--dump", folder)
        names = {path.name for path in folder.iterdir()}
        for path in folder.iterdir():
            path.unlink()
        return names


def new_environment(root: Path, home: Path) -> Environment:
    """Make a clean environment, which installs only the releases of requirements.lock."""
    venv.create(home / "venv", with_pip=True, symlinks=True)
    pins = re.findall(r"^(\S+==\S+(?: *;.*?)?) *\\$", (root / "requirements.lock").read_text(), re.MULTILINE)
    (home / "pins.txt").write_text("\n".join(pins))
    (home / "elsewhere").mkdir()
    return Environment(home / "venv" / "bin", home / "elsewhere")
