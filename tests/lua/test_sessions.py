"""register and leave: a waiting process is registered, and no id in its inbox is lost."""

from __future__ import annotations

import pytest

from tests.lua.space import ME, NOW, Space, State, data_of, picture

pytestmark = pytest.mark.core


async def test_a_waiting_session_is_registered(space: Space) -> None:
    assert await space.run("register", keep_ms=35_000) == -1, "no item will fall due"
    assert await space.snapshot() == {"sessions": {ME: NOW + 35_000.0}}


async def test_a_session_that_keeps_waiting_stays_registered(space: Space) -> None:
    before: State = {"sessions": {ME: NOW + 1.0, "lh:other": NOW + 2.0}, f"inbox:{ME}": ["a"]}
    await space.seed(before)
    assert await space.run("register", keep_ms=35_000) == -1
    assert await space.snapshot() == before | {"sessions": {ME: NOW + 35_000.0, "lh:other": NOW + 2.0}}


@pytest.mark.parametrize("state", ["deadlines", "scheduled"])
async def test_registering_returns_when_the_next_item_falls_due(space: Space, state: str) -> None:
    await space.seed({state: {"a": NOW + 900.0, "b": NOW + 1_000.0}})
    assert await space.run("register", keep_ms=35_000) == 900


async def test_leaving_returns_the_inbox_to_the_front_and_unregisters_the_session(space: Space) -> None:
    others = {"lh:other": NOW + 1.0}
    mine: State = {f"inbox:{ME}": ["b", "ghost", "a"], "sessions": {ME: NOW + 1.0, **others}}
    await space.seed(picture(waiting=["w"]) | mine | {f"item:{i}": data_of(i) for i in "ab"})
    assert await space.run("leave", stays=0) == [3]
    after = picture(waiting=["a", "b", "w"]) | {"queue": ["w", "b", "ghost", "a"], "sessions": others}
    assert await space.snapshot() == after
    assert await space.run("leave", stays=0) == [0]
    assert await space.snapshot() == after


async def test_a_session_with_a_long_inbox_stays_registered_until_it_is_empty(space: Space) -> None:
    ids = [f"i{n}" for n in range(1_500)]
    inbox: State = {f"inbox:{ME}": ids[::-1], "sessions": {ME: NOW + 1.0}}
    await space.seed({f"item:{item_id}": data_of(item_id) for item_id in ids} | inbox)
    assert await space.run("leave", stays=0) == [1_000]
    assert (await space.snapshot())["sessions"] == {ME: NOW + 1}
    assert await space.run("leave", stays=0) == [500]
    assert await space.snapshot() == picture(waiting=ids)


async def test_a_session_without_an_inbox_can_leave(space: Space) -> None:
    assert await space.apply({"sessions": {ME: NOW + 1.0}}, "leave", stays=0) == ([0], {})


async def test_a_session_can_return_its_inbox_and_stay_registered(space: Space) -> None:
    await space.seed({"queue": ["w"], f"inbox:{ME}": ["a"], "item:a": "data", "sessions": {ME: NOW + 100.0}})
    assert await space.run("leave", stays=1) == [1]
    assert await space.snapshot() == {"queue": ["w", "a"], "item:a": "data", "sessions": {ME: NOW + 100.0}}


@pytest.mark.parametrize(("ends", "wait"), [(NOW - 1, 0), (NOW, 0), (NOW + 1, -1)])
async def test_registering_returns_at_once_when_another_session_has_expired(
    space: Space, ends: int, wait: int
) -> None:
    """Its inbox has to be reclaimed, which leasing does."""
    await space.seed({"sessions": {"lh:other": float(ends)}})
    assert await space.run("register", keep_ms=35_000) == wait
