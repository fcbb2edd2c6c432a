"""The outcome of a step of a stage is stored once, by the current holder of the stage's item."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.runs import Runs
from tests.lua.space import NOW

if TYPE_CHECKING:
    from tests.lua.runs import Row
    from tests.lua.space import Space

pytestmark = pytest.mark.core


async def store(space: Space, row: Row, outcome: str, *, at: int = NOW) -> tuple[int, bytes]:
    """Store the outcome of a step."""
    accepted, stored = await space.run(
        "run_once",
        item=row.id,
        lease=row.token,
        of_stage=row.reference,
        step="charge",
        outcome=outcome,
        now_ms=at,
    )
    return accepted, stored


@pytest.mark.seed("GLD-B4")
async def test_the_first_outcome_stays_and_a_stale_holder_stores_none(space: Space) -> None:
    runs = Runs(space)
    await runs.start(runs.stage("a"))
    [row] = await runs.lease()
    later = NOW + 60_001
    [again] = await runs.lease(at=later)
    assert await store(space, row, "9", at=later) == (0, b"")
    assert "o:a\0charge" not in await runs.fields()
    assert await store(space, again, '{"n":1.10}', at=later) == (1, b'{"n":1.10}')
    assert await store(space, again, "2", at=later) == (1, b'{"n":1.10}')
    assert (await runs.fields())["o:a\0charge"] == '{"n":1.10}'
    assert await runs.finish(again.done(), at=later) == [1]
    assert await store(space, again, "3", at=later) == (0, b"")


async def test_no_outcome_is_stored_for_a_run_that_is_gone(space: Space) -> None:
    runs = Runs(space)
    await runs.start(runs.stage("a"))
    [row] = await runs.lease()
    await space.redis.delete(f"{space.prefix}:run:r")
    before = await space.snapshot()
    assert await store(space, row, "1") == (0, b"")
    assert await store(space, row._replace(reference=b"no reference"), "1") == (0, b"")
    assert await space.snapshot() == before
