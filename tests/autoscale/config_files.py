"""A file of the autoscaler for tests, and a way to load another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from leasequeue.autoscale import Config, load_config
from leasequeue.errors import InvalidConfig

if TYPE_CHECKING:
    from pathlib import Path

#: The smallest file.
SMALLEST = """
name = "media"

[jobs.resize]

[deployments.resize]
backend = "processes"
processes = { command = ["leasequeue", "worker", "app:worker"] }
"""


class Load(Protocol):
    """Load a file with this text."""

    def __call__(self, text: str) -> Config: ...


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Give a function that loads a text, without the variables that name a server."""
    monkeypatch.delenv("LEASEQUEUE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)

    def load_text(text: str) -> Config:
        path = tmp_path / "autoscale.toml"
        path.write_text(text)
        return load_config(path)

    return load_text


def problems(load: Load, text: str) -> list[str]:
    """Return what is wrong in a file, without its path."""
    with pytest.raises(InvalidConfig) as caught:
        load(text)
    return [line.split("autoscale.toml, ", 1)[-1] for line in str(caught.value).splitlines()]


def only_problem(load: Load, text: str) -> str:
    """Return the only thing that is wrong in a file."""
    [problem] = problems(load, text)
    return problem
