"""The short form of `make soak`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.soak.__main__ import report
from tests.soak.play import soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_nothing_goes_wrong_however_much_does(tmp_path: Path) -> None:
    seed = os.environ.get("SEED", "short")
    verdict = await soak(15, seed, tmp_path, workers=4, producers=2, rate=60)
    told = "\n".join([f"seed {seed}, logs in {tmp_path}", *report(verdict)])
    assert not verdict.wrong, told
    assert not verdict.violations, told
    assert verdict.events["complete True"], told
