"""Notices that code has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchfiles import PythonFilter, awatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def code_changes(*folders: Path) -> AsyncIterator[str]:
    """Give the path of a `.py` file that has changed, been made or removed; of several at once, only one.

    Args:
        folders: Where to look, at any depth; environments, caches and hidden folders are left out.
    """
    async for changes in awatch(*folders, watch_filter=PythonFilter(), raise_interrupt=False):
        yield min(path for _, path in changes)
