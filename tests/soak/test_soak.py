"""The short form of `make soak`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.soak.__main__ import report
from tests.soak.run import soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_short_soak_finds_no_violation(tmp_path: Path) -> None:
    seed = os.environ.get("SEED", "short")
    verdict = await soak(15, seed, tmp_path, workers=4, producers=2, rate=60)
    message = "\n".join([f"seed {seed}, logs in {tmp_path}", *report(verdict)])
    assert not verdict.wrong, message
    assert not verdict.violations, message
    assert verdict.events["complete True"], message
