"""Ending the processes of handlers at the end of a test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def processes() -> AsyncIterator[None]:
    """End the processes of handlers, which otherwise end with the event loop."""
    yield
    for task in asyncio.all_tasks():
        if "process pool" in task.get_name():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
