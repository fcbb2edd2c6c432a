"""The files that the demo works on, and the line that a worker writes about each."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue.item import MAX_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

#: Folders to leave out: installed packages and compiled files, which lie beside the standard library.
SKIPPED = {"__pycache__", "dist-packages", "site-packages"}


def find_files(folder: Path, *, output: Path, on_error: Callable[[OSError], None]) -> dict[str, bytes]:
    """Find the regular files below a folder, without following symlinks.

    `output`, that of an earlier demo, is left out; `on_error` gets the errors of unreadable folders.

    Returns:
        For each item id the path below the folder, in the order of the paths.
    """
    folder, output = folder.resolve(), output.resolve()
    paths = []
    for parent, folders, names in os.walk(folder, onerror=on_error):
        folders[:] = set(folders) - SKIPPED
        found = [Path(parent, name) for name in names]
        files = (path for path in found if stat.S_ISREG(path.lstat().st_mode) and path != output)
        paths += [os.fsencode(path.relative_to(folder)) for path in files]
    return {id_of(path): path for path in sorted(paths)}


def id_of(path: bytes) -> str:
    """Return a file's item id: its path, or a hash of it if the path is too long or not UTF-8.

    No path below a folder begins with a slash, so the two kinds of ids cannot collide.
    """
    try:
        if len(path) <= MAX_ID_BYTES:
            return path.decode()
    except UnicodeDecodeError:
        pass
    return f"/sha256/{hashlib.sha256(path).hexdigest()}"


def describe(folder: Path, path: bytes) -> dict[str, Any]:
    """Read a file; return its SHA-256, bytes and lines, or an error if it cannot be read."""
    line = {"id": id_of(path), "path": path.decode(errors="backslashreplace")}
    digest, size, lines = hashlib.sha256(), 0, 0
    try:
        with (folder / os.fsdecode(path)).open("rb") as file:
            while chunk := file.read(1 << 18):
                digest.update(chunk)
                size += len(chunk)
                lines += chunk.count(b"\n")
    except OSError as error:
        return line | {"error": f"{type(error).__name__}: {error.strerror}"}
    return line | {"sha256": digest.hexdigest(), "bytes": size, "lines": lines}
