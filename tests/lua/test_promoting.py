"""promote and set_priority: where a delayed or waiting item waits from now on; nothing else of it changes."""

from __future__ import annotations

import json
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


async def test_a_new_level_places_an_item_behind_the_others_of_it_and_of_its_group(space: Space) -> None:
    for one, how in (("a", 0), ("b", 0), ("c", '0:{"level":2}'), ("g", '0:{"group":"g","tags":["t"]}')):
        await space.run("add_items", [(one, "x", 0, how)])
    await space.run("add_items", [("h", "x", 0, '0:{"group":"g","level":2}'), ("d", "x", 99, 0)])
    for one in ("a", "g", "d", "c"):
        assert await space.run("set_priority", item=one, new_level=2) == 1
    options = (await space.snapshot())["options"]
    assert isinstance(options, dict)
    assert json.loads(str(options["g"])) == {"group": "g", "level": 2, "tags": ["t"]}
    assert await space.run("promote", item="d") == 1
    assert [one.id for one in await space.lease_all(9)] == ["d", "h", "c", "g", "a", "b"]


async def test_a_queue_is_plain_again_when_no_item_has_a_level(space: Space) -> None:
    await space.run("add_items", [("a", "x", 0, 0), ("b", "x", 0, 0)])
    before = await space.snapshot()
    assert await space.run("set_priority", item="b", new_level=-4) == 1
    assert await space.run("set_priority", item="b", new_level=0) == 1
    assert await space.snapshot() == before
    assert await space.run("set_priority", item="a", new_level=0) == 1
    assert await space.snapshot() == before, "it has the level: it keeps its place"


@pytest.mark.parametrize(
    "state",
    [
        picture(leased={"a": Held(1)}, fence=1),
        picture(waiting=["a"]) | {"lease:a": Expiring("a client of another library")},
        {"queue": ["a"]},
        {},
    ],
    ids=["leased", "leased by another library", "a ghost", "unknown"],
)
async def test_the_level_of_what_is_leased_or_gone_stays(space: Space, state: State) -> None:
    assert await space.apply(state, "set_priority", item="a", new_level=3) == (0, state)


async def test_an_id_deep_in_the_queue_is_leased_once_at_its_new_level(space: Space) -> None:
    ids = [f"i{number}" for number in range(700)]
    await space.run("add_items", [(one, "x", 0, 0) for one in ids])
    assert await space.run("set_priority", item="i350", new_level=1) == 1
    assert await space.run("set_priority", item="i351", new_level=-1) == 1
    leased = [one.id for one in await space.lease_all(700)]
    assert leased == ["i350", *(one for one in ids if one not in ("i350", "i351")), "i351"]


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
