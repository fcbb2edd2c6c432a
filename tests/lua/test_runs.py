"""Flow runs: what follows what, and how the runs end."""

from __future__ import annotations

import pytest

from tests.lua.runs import Runs
from tests.lua.space import Space


@pytest.fixture
def runs(space: Space) -> Runs:
    return Runs(space)


async def test_a_chain(runs: Runs) -> None:
    assert await runs.start(runs.stage("a"), runs.stage("b", "a"), result="b") == 1
    assert await runs.start(runs.stage("a"), runs.stage("b", "a"), result="b") == 0
    print(await runs.space.snapshot())
    [row] = await runs.lease()
    assert await runs.finish(row.done()) == [1]
    print(await runs.hash())
    assert await runs.step() == ["b"]
    print(await runs.space.snapshot())
    assert 0
