"""`recover` and `end_leases`: rows that come twice, and tokens that are not the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import ME, NOW, Held, items_of, picture

if TYPE_CHECKING:
    from tests.lua.space import Space

pytestmark = pytest.mark.core


@pytest.mark.seed("RRQ-B4")
async def test_an_item_that_comes_twice_is_leased_once(space: Space) -> None:
    before = picture(leased={"a": Held(1, at=NOW - 50, by="lh:dead"), "b": Held(2, by="lh:dead")}, fence=2)
    rows = [("a", 1), ("a", 1), ("b", 2), ("a", 1)]
    reply, after = await space.apply(before, "recover", rows, elapsed_ms=0, hold_ms=60_000)
    assert [(given.id, given.token, given.attempt) for given in items_of(reply)] == [("a", 3, 2), ("b", 4, 2)]
    assert reply[1] == 4
    held = {"a": Held(3, first=1, attempt=2), "b": Held(4, first=2, attempt=2)}
    assert after == picture(leased=held, fence=4)


async def test_only_the_last_token_of_a_lease_that_is_old_enough_is_recovered(space: Space) -> None:
    before = picture(
        waiting=["w"],
        leased={"new": Held(5, at=NOW - 49), "again": Held(6, first=2, attempt=2, at=NOW - 90)},
        scheduled={"s": NOW + 9_000},
        past={"w": Held(3)},
        fence=6,
    )
    rows = [("new", 5), ("again", 2), ("w", 3), ("s", 1), ("none", 4)]
    reply, after = await space.apply(before, "recover", rows, elapsed_ms=50, hold_ms=60_000)
    assert reply[1:] == [5, 0]
    assert after == before


async def test_leases_are_ended_by_their_last_token_only(space: Space) -> None:
    before = picture(waiting=["w"], leased={"a": Held(1), "b": Held(4, first=2, attempt=2)}, fence=4)
    rows = [("b", 2), ("a", 1), ("a", 1), ("w", 0), ("a", 0)]
    reply, after = await space.apply(before, "end_leases", rows)
    assert reply == [0, 1, 0, 0, 0]
    expected = picture(
        waiting=["a", "w"],
        leased={"b": Held(4, first=2, attempt=2)},
        past={"a": Held(1, by=ME)},
        fence=4,
    )
    assert after == expected
