"""The short form of `make soak`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests import servers
from tests.soak.__main__ import report
from tests.soak.run import Setting, soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["plain", "controlled"])
async def test_a_short_soak_finds_no_violation(kind: str, tmp_path: Path) -> None:
    seed = os.environ.get("SEED", "short")
    setting = Setting(servers.wanted(), kind, workers=4, round=10)
    verdict = await soak(20, seed, tmp_path, setting)  # a round of each sort
    message = "\n".join([f"seed {seed}, logs in {tmp_path}", *report(verdict)])
    assert not verdict.wrong, message
    assert not verdict.violations, message
    assert verdict.events["complete True"], message
