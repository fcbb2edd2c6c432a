"""A missing or failing foreign client is an error; no test is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.interop import foreign

if TYPE_CHECKING:
    from tests.interop.conftest import StartForeign


def test_a_node_client_that_is_missing_is_an_error_that_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign, "_NODE_CLIENT", Path("nowhere"))
    with pytest.raises(foreign.ForeignMissing, match="npm ci --prefix tests/interop"):
        foreign.program("node")


async def test_an_error_of_a_foreign_client_is_raised(start: StartForeign, library: foreign.Library) -> None:
    client = await start(library)
    await client.add("a", b"data")
    with pytest.raises(foreign.ForeignFailed, match="invalid expire"):
        await client.lease(-1)
    await client.kill()
    with pytest.raises(foreign.ForeignFailed, match="ended during"):
        await client.queue_len()
