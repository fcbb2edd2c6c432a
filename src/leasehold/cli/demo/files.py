"""The demo's work: every file under a folder, and the name that each goes by in the queue."""

from __future__ import annotations

import hashlib
import os
import stat
import sysconfig
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.item import MAX_ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Folders beside the standard library that are none of it: what else was installed, and what Python writes
#: while it runs.
NOT_STANDARD = frozenset({"__pycache__", "dist-packages", "site-packages"})


@dataclass(frozen=True, slots=True)
class File:
    """One file to work on.

    Attributes:
        id: Its name in the queue and in the output.
        path: Its path below the folder, as the bytes that the system knows it by.
        stamp: When it was last written (ns) and its size, to notice that somebody changes it meanwhile.
    """

    id: str
    path: bytes
    stamp: tuple[int, int]

    def below(self, folder: Path) -> Path:
        """Return where it is."""
        return folder / os.fsdecode(self.path)


def standard_library() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(folder: Path, *, but: Path, leave_out: frozenset[str] = frozenset()) -> tuple[list[File], int]:
    """Find the regular files under a folder. Symlinks are not followed, pipes and devices are passed over.

    Args:
        folder: Where to look.
        but: A file that is not looked at: the output of the run before.
        leave_out: Names of folders that are not entered.

    Returns:
        The files, in the order of their paths, and how many folders could not be read.
    """
    unreadable: list[OSError] = []
    output = stamp_of(but)
    files: list[File] = []
    for full in _walk(folder, leave_out, unreadable):
        stamp = stamp_of(full)
        if stamp is not None and not (stamp == output and full.samefile(but)):
            path = os.fsencode(full.relative_to(folder))
            files.append(File(id_of(path), path, stamp))
    return sorted(files, key=attrgetter("path")), len(unreadable)


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Return when a file was last written and its size; None if it is no regular file, or not there."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def id_of(path: bytes) -> str:
    """Name a file in the queue: by its path below the folder, if that can be an id, else by a hash of it.

    An id is text of at most 512 bytes; paths may be longer, and any bytes. No path below a folder begins
    with a slash, so no file is taken for another one.
    """
    try:
        name = path.decode()
    except UnicodeDecodeError:
        name = ""
    if name and len(path) <= MAX_ID_BYTES:
        return name
    return f"/sha256/{hashlib.sha256(path).hexdigest()}"


def shown(name: str) -> str:
    """Write an id or a path so that a terminal can take it: both may hold newlines and control codes."""
    return name if name.isprintable() else ascii(name)


def _walk(folder: Path, leave_out: frozenset[str], unreadable: list[OSError]) -> Iterator[Path]:
    for where, folders, names in os.walk(folder, onerror=unreadable.append):
        folders[:] = [name for name in folders if name not in leave_out]
        for name in names:
            yield Path(where, name)
