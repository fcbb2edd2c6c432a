"""Watching code for changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchfiles import PythonFilter, awatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def code_changes(*folders: Path) -> AsyncIterator[str]:
    """Yield the path of a `.py` file that was changed, created or removed; one path for several at once.

    Args:
        folders: The folders to watch, with their subfolders; not environments, caches and hidden folders.
    """
    async for changes in awatch(*folders, watch_filter=PythonFilter(), raise_interrupt=False):
        yield min(path for _, path in changes)
