"""promote: a scheduled item waits from now on, and nothing else of it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import NOW, Expiring, Held, picture

if TYPE_CHECKING:
    from tests.lua.space import Space, State


async def test_a_scheduled_item_is_the_next_one_and_keeps_its_attempts_and_its_error(space: Space) -> None:
    about: State = {"errors": {"s": "an error"}}
    await space.seed(picture(waiting=["w"], scheduled={"s": NOW + 9}, past={"s": Held(3)}, fence=3) | about)
    assert await space.run("promote", item="s") == 1
    assert await space.snapshot() == picture(waiting=["s", "w"], past={"s": Held(3)}, fence=3) | about
    assert await space.run("promote", item="s") == 0, "once"


async def test_an_item_of_a_level_is_before_those_of_its_level(space: Space) -> None:
    await space.run("add_items", [("low", "x", 0, '0:{"level":-1}'), ("none", "x", 0, 0)])
    await space.run("add_items", [("later", "x", 99, '0:{"level":-1}')])
    assert await space.run("promote", item="later") == 1
    assert [one.id for one in await space.lease_all(9)] == ["none", "later", "low"]


@pytest.mark.parametrize(
    "state",
    [
        picture(waiting=["a"]),
        picture(leased={"a": Held(1)}, fence=1),
        picture(leased={"a": Held(1)}, fence=1) | {"scheduled": {"a": NOW + 9.0}},
        picture(scheduled={"a": NOW + 9}) | {"lease:a": Expiring("a client of another library")},
        {"scheduled": {"a": NOW + 9.0}},
        {},
    ],
    ids=["waits", "leased", "a double", "leased by another library", "a ghost", "unknown"],
)
async def test_what_is_not_scheduled_stays_as_it_is(space: Space, state: State) -> None:
    assert await space.apply(state, "promote", item="a") == (0, state)


async def test_nothing_is_promoted_in_a_queue_that_is_being_deleted(space: Space) -> None:
    await space.seed(picture(scheduled={"s": NOW + 9}) | {"control": {"closed": "1"}})
    before = await space.snapshot()
    with pytest.raises(Exception, match="QUEUEDELETED"):
        await space.run("promote", item="s")
    assert await space.snapshot() == before


async def test_the_event_says_that_it_went_to_the_front(space: Space) -> None:
    await space.run("events_keep", count=9, age_ms=0, publish=0)
    await space.run("add_items", [("s", "x", 99, 0)])
    await space.run("promote", item="s")
    entries: Any = await space.redis.xrange(space.key("events"))
    event = entries[-1][1]
    assert (event[b"what"], event[b"id"], event[b"front"]) == (b"due", b"s", b"1")
