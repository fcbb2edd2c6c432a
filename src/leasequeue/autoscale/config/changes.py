"""Notices that a configuration's file has changed since it was read."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class FileChanges:
    """Compares a file with what it contained.

    Args:
        path: The file; None: there is none, and it never changes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._used = self._seen = self._digest()

    def found(self) -> bool:
        """Return whether the file contains other than what is used; True once for each change.

        A file that cannot be read has not changed.
        """
        now = self._digest()
        if now is None or now == self._seen:
            return False
        self._seen = now
        return now != self._used

    def _digest(self) -> bytes | None:
        try:
            return None if self._path is None else hashlib.sha256(self._path.read_bytes()).digest()
        except OSError:
            return None
