"""Items with a level or a group wait in lanes: high levels first, and groups of a level in turn."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.lua.space import NOW, Call, Given, Held, Letter, Space, data_of, items_of, listed, picture

if TYPE_CHECKING:
    from collections.abc import Iterable


def row(item_id: str, level: int = 0, group: str = "", **others: object) -> tuple[object, ...]:
    """Return a row of `add_items` with options."""
    options = {"level": level, "group": group, **others}
    return (item_id, data_of(item_id), 0, "0:" + json.dumps({k: v for k, v in options.items() if v}))


async def add(space: Space, *rows: tuple[object, ...], **arguments: object) -> None:
    """Add items, which are new."""
    assert await space.run("add_items", rows, **arguments) == [1] * len(rows)


async def lease(space: Space, wanted: int = 100, **arguments: object) -> list[str]:
    """Lease items; return their ids."""
    return [given.id for given in await leases(space, wanted, **arguments)]


async def leases(space: Space, wanted: int = 100, **arguments: object) -> list[Given]:
    return items_of(await space.run("lease_many", [(wanted, 60_000)], **arguments))


async def complete(space: Space, given: Iterable[Given]) -> None:
    rows = [(one.id, one.token, 0) for one in given]
    assert await space.run("complete_many", rows) == [1] * len(rows)


async def test_higher_levels_are_leased_first_and_plain_items_are_level_0(space: Space) -> None:
    await add(
        space, row("p1"), row("low", -3), row("p2"), row("h1", 5), row("h2", 5), row("top", 9), row("p3")
    )
    assert await space.run("counts") == [7, 0, 0, 0]
    assert [given for _ in range(7) for given in await lease(space, 1)] == [
        *("top", "h1", "h2"),
        *("p1", "p2", "p3"),
        "low",
    ]
    assert await lease(space) == []


async def test_an_item_of_a_lane_under_a_foreign_lease_is_watched_instead_of_leased(space: Space) -> None:
    await add(space, row("a", 0, "g"), row("b", 0, "g"))
    await space.redis.set(space.key("lease:a"), "foreign", px=60_000)
    assert await lease(space) == ["b"]
    deadlines = (await space.snapshot())["deadlines"]
    assert isinstance(deadlines, dict)
    assert set(deadlines) == {"a", "b"}


async def test_what_is_held_returns_to_the_queue_in_its_order(space: Space) -> None:
    plain = [f"p{n}" for n in range(300)]
    await add(space, *map(row, plain))
    await add(space, row("first", 1))
    assert "queue" not in await space.snapshot()
    assert await lease(space, 1) == ["first"]
    state = await space.snapshot()
    assert listed(state["queue"])[::-1] == plain
    assert "held" not in state
    assert await lease(space, 300) == plain[:250]


@pytest.mark.parametrize("at_once", [1, 2, 7, 100])
async def test_the_groups_of_a_level_take_turns(space: Space, at_once: int) -> None:
    """One tenant with many items does not hold up the others."""
    await add(space, *(row(f"a{n}", 0, "a") for n in range(30)))
    await add(space, *(row(f"b{n}", 0, "b") for n in range(3)), *(row(f"p{n}") for n in range(4)))
    got: list[str] = []
    while some := await lease(space, at_once):
        got += some
    assert sorted(got) == sorted([f"a{n}" for n in range(30)] + ["b0", "b1", "b2", "p0", "p1", "p2", "p3"])
    assert [one[0] for one in got[:12]] == [*"abpabpabpapa"] or Counter(one[0] for one in got[:9]) == {
        "a": 3,
        "b": 3,
        "p": 3,
    }
    for group in "abp":
        own = [one for one in got if one[0] == group]
        assert own == sorted(own, key=lambda one: int(one[1:]))


async def test_items_that_return_together_to_the_front_of_a_lane_keep_their_order(space: Space) -> None:
    await add(space, row("z1", 0, "g"), row("z2", 0, "g"), row("a", 0, "g"))
    held = await leases(space, 2)
    rows = [(one.id, one.token, 0, 1) for one in held]
    assert await space.run("release_many", rows) == [1, 1]
    assert await lease(space) == ["z1", "z2", "a"]


async def test_a_level_is_kept_over_retry_release_expiry_and_a_dead_letter(space: Space) -> None:
    await add(space, row("x", 4, "g"), row("p"))
    [given] = await leases(space, 1)
    assert await space.run("fail_many", [("x", given.token, 0, "why")]) == [1]
    [given] = await leases(space, 1)
    assert given.id == "x"
    assert await space.run("release_many", [("x", given.token, 0, 1)]) == [1]
    assert await lease(space, 1) == ["x"]
    # Its lease expires.
    [given] = await leases(space, 1, now_ms=NOW + 70_000)
    assert given.id == "x"
    assert await space.run("fail_many", [("x", given.token, -1, "why")]) == [1]
    assert await space.run("requeue_many", [("x",)]) == [1]
    [given] = await leases(space, 1)
    assert (given.id, given.attempt) == ("x", 1)
    assert await space.run("fail_many", [("x", given.token, 5_000, "why")]) == [1]
    [given] = await leases(space, 1, now_ms=NOW + 100_000)
    assert given.id == "x"


async def test_waiting_items_of_lanes_carry_a_lease_key_that_is_gone_with_them(space: Space) -> None:
    await add(space, row("x", 4))
    assert (await space.snapshot())["lease:x"] == "lh:waiting 5000000000000000"
    [given] = await leases(space, 1)
    assert await space.run("release_many", [("x", given.token, 0, 1)]) == [1]
    assert (await space.snapshot())["lease:x"] == "lh:waiting 5000000000000000"
    await complete(space, await leases(space, 1))
    assert await space.snapshot() == picture(fence=2)


async def test_a_light_clean_drops_the_entry_of_an_item_that_waits_in_a_lane(space: Space) -> None:
    await add(space, row("a", 4))
    before = await space.snapshot()
    await space.send("RPUSH", space.key("processing"), "a")
    assert (await space.run("light_clean"))[:5] == [0, 0, 1, 0, 0]
    assert await space.snapshot() == before


async def test_an_item_that_is_moved_to_where_a_session_waits_has_no_such_key(space: Space) -> None:
    await space.seed({"sessions": {"lh:asleep": NOW + 90_000.0}})
    await add(space, row("x", 4))
    state = await space.snapshot()
    assert state["queue"] == ["x"]
    assert not {"lease:x", "lanes"} & state.keys()


WAKING = {
    "add_items": Call("add_items", [("new", "data", 0, 0)]),
    "add_items, replaced": Call("add_items", [("s", "data", 0, 2)]),
    "release_many": Call("release_many", [("l", 2, 0, 0)]),
    "fail_many": Call("fail_many", [("l", 2, 0, "why")]),
    "requeue_many": Call("requeue_many", [("d",)]),
    "end_leases": Call("end_leases", [("l", 2)]),
    "promote": Call("promote", arguments={"item": "s"}),
    "light_clean": Call("light_clean", arguments={"now_ms": NOW + 70_000}),
    "deep_clean_restore": Call("deep_clean_restore", [("lost",)], {"started_ms": NOW}),
    "move_items": Call(
        "move_items", [("theirs",)], {"source": "another", "spot": "ids", "left_out": 0, "count": 9}
    ),
}


@pytest.mark.parametrize("call", WAKING.values(), ids=WAKING.keys())
async def test_each_script_after_which_an_item_waits_wakes_a_session(space: Space, call: Call) -> None:
    """In a controlled queue an id is moved to where a session waits for it."""
    await space.seed(
        picture(leased={"l": Held(2)}, scheduled={"s": NOW + 60_000}, dead={"d": Letter(1)}, fence=2)
        | {"control": {"concurrency": "9"}, "sessions": {"lh:asleep": NOW + 90_000.0}, "item:lost": "data"}
    )
    other = f"{space.prefix}-other"
    await space.redis.set(f"{other}:item:theirs", "data")
    arguments = {**call.arguments, **({"source": other} if "source" in call.arguments else {})}
    await space.run(call.script, call.rows, **arguments)
    state = await space.snapshot()
    assert len(listed(state["queue"])) == 1
    assert "promoted" in state


async def by_level(
    space: Space, wanted: int = 100, **arguments: object
) -> tuple[list[str], int, bytes | None]:
    """Lease items of one level; return their ids, when to call again, and the level of what is next."""
    reply = await space.run("lease_many", [(wanted, 60_000)], by_level=1, **arguments)
    level = reply.pop() if isinstance(reply[-1], bytes) else None
    return [given.id for given in items_of(reply)], reply[1], level


async def test_a_call_by_level_leases_one_level_and_says_which_is_next(space: Space) -> None:
    await add(space, row("p1"), row("low", -3), row("h1", 5), row("p2"), row("h2", 5), row("top", 9))
    assert await by_level(space) == (["top"], 0, b"5")
    assert await by_level(space, 1) == (["h1"], -1, b"5")
    assert await by_level(space, 1) == (["h2"], -1, b"0"), "what is held"
    assert await by_level(space, 1) == (["p1"], -1, b"0")
    assert await by_level(space) == (["p2"], 0, b"-3")
    await add(space, row("last", 2))
    assert await by_level(space) == (["last"], 0, b"-3")
    await add(space, row("last again", 2))
    assert await lease(space) == ["last again", "low"], "another call leases all levels"
    assert await by_level(space) == ([], 60_000, None)


async def test_a_call_by_level_of_a_plain_queue_has_the_same_reply(space: Space) -> None:
    await add(space, row("a"), row("b"), row("c"))
    assert (await space.run("lease_many", [(2, 60_000)], by_level=1))[-4:] == [b"b", b"data of b", 2, 1]
    assert await by_level(space) == (["c"], 60_000, None)


async def test_a_call_by_level_passes_over_what_may_not_be_leased(space: Space) -> None:
    """Of a level that has nothing but ghosts, and of groups that are paused."""
    await add(space, row("ghost", 9), row("stopped", 8, "g"), row("a", 7), row("b", 7), row("low"))
    await space.redis.delete(space.key("item:ghost"))
    await space.run("pause_queue", of_group="g", until_ms="inf", reason="")
    assert await by_level(space, 1) == (["a"], -1, b"7"), "not 8, which may not be leased"
    assert await by_level(space) == (["b"], 0, b"0")


async def test_a_call_by_level_that_ageing_gives_to_a_low_level_says_that_a_higher_one_is_next(
    space: Space,
) -> None:
    await space.run("set_limits", [("ageing", 1000)])
    await add(space, *(row(f"h{n}", 1) for n in range(3)), row("l1", 0, "g"), row("l2", 0, "g"))
    assert await by_level(space, 1, now_ms=NOW) == (["h0"], -1, b"1")
    assert await by_level(space, now_ms=NOW + 3000) == (["l1"], 0, b"1")


async def test_a_call_by_level_that_stops_before_large_data_says_what_is_next(space: Space) -> None:
    await add(space, *(row(f"h{n}", 1) for n in range(3)))
    assert await by_level(space, max_bytes=1) == (["h0"], 0, b"1")
