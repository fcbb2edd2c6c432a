"""clean_turn: of any number of clients, one cleans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import ME, Expiring, Space

if TYPE_CHECKING:
    from tests.lua.space import State

pytestmark = pytest.mark.core

MINUTE = 60_000


async def turn(space: Space, session: str = ME, *, deep: int = 0, every_ms: int = MINUTE) -> bool:
    """Call clean_turn."""
    return bool(await space.run("clean_turn", session=session, deep=deep, every_ms=every_ms))


async def test_the_client_that_cleaned_last_goes_on_and_others_leave_it_to_that(space: Space) -> None:
    assert await turn(space)
    assert not await turn(space, "lh:other")
    assert await turn(space)
    assert await space.snapshot() == {"cleaner": Expiring(ME)}


async def test_another_client_takes_over_when_that_has_missed_its_turns(space: Space) -> None:
    assert await turn(space)
    assert 1.9 * MINUTE < await space.send("PTTL", space.key("cleaner")) <= 2 * MINUTE
    await space.send("UNLINK", space.key("cleaner"))  # as the server does when that time has passed
    assert await turn(space, "lh:other")
    assert not await turn(space)


async def test_light_and_deep_cleans_are_apart(space: Space) -> None:
    assert await turn(space)
    assert await turn(space, "lh:other", deep=1)
    assert await space.snapshot() == {"cleaner": Expiring(ME), "deep_cleaner": Expiring("lh:other")}


async def test_a_client_that_cleans_more_often_takes_over(space: Space) -> None:
    assert await turn(space)
    assert await turn(space, "lh:often", every_ms=MINUTE // 4)
    assert not await turn(space)


@pytest.mark.parametrize("endless", [False, True])
async def test_a_time_that_cannot_be_blocks_no_client(space: Space, *, endless: bool) -> None:
    """After a step of the server's clock, or an edit by hand."""
    before: State = {"cleaner": "lh:gone"}
    await space.seed(before)
    if not endless:
        await space.send("PEXPIRE", space.key("cleaner"), 100 * MINUTE)
    assert await turn(space)
    assert await space.snapshot() == {"cleaner": Expiring(ME)}
