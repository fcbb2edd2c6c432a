"""Whether the programs that a configuration names can be started on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The settings of each back end that are a program and its arguments.
PROGRAMS = {"processes": ("command",), "command": ("request", "ready")}


def program_problems(backend: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting of a back end whose program cannot be started here, with its problem and what to do.

    Args:
        backend: The kind of back end.
        settings: Its settings, but those that are missing or wrong.
    """
    directory = settings.get("directory")
    if directory is not None and not os.path.isdir(directory):  # noqa: PTH112 - Path fails if it is too long
        yield "directory", f"there is no folder {directory!r}", "a folder on this machine"
        return
    for name in PROGRAMS.get(backend, ()):
        words = settings.get(name)
        # `leasequeue worker` is run by the Python that runs this.
        is_own = backend == "processes" and words and words[0] == "leasequeue"
        if words and not is_own and "{" not in words[0]:
            problem = _problem(words[0], directory or os.curdir, settings.get("env") or {})
            if problem:
                yield name, problem, "a program on this machine: a name in PATH, or a path"


def _problem(program: str, directory: str, env: Mapping[str, str]) -> str:
    """Return why a program cannot be started, as the system looks for it; empty: it can."""
    if os.sep not in program:
        folders = os.get_exec_path({**os.environ, **env})
        path = os.pathsep.join(str(Path(directory, one)) for one in folders)
        return "" if shutil.which(program, path=path) else f"there is no program {program!r} in PATH"
    place = Path(directory, program)
    if not os.path.isfile(place):  # noqa: PTH113 - as above
        return f"there is no file {program!r}"
    return "" if os.access(place, os.X_OK) else f"{program!r} is not executable"
