"""Items of a group that gathers wait for each other, and are leased together, decided by the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import ME, NOW, Expiring, Space, items_of, received
from tests.lua.test_lanes import add, lease, row

if TYPE_CHECKING:
    from tests.lua.space import Given

#: Three items, or what is there 5 s after the first.
ANN, BOB = "batch:3:5000:ann", "batch:3:5000:bob"


async def whole(space: Space, wanted: int = 1, **arguments: Any) -> tuple[list[str], int]:
    """Lease as a worker does whose handler takes batches; return the ids, and when to call again."""
    given, wait = await given_to(space, wanted, **arguments)
    return [one.id for one in given], wait


async def given_to(space: Space, wanted: int, **arguments: Any) -> tuple[list[Given], int]:
    reply = await space.run("lease_many", [(wanted, 60_000)], whole=1, **arguments)
    return items_of(reply), reply[1]


async def test_a_batch_is_leased_when_its_first_item_has_waited(space: Space) -> None:
    await add(space, row("a1", group=ANN), now_ms=NOW)
    await add(space, row("a2", group=ANN), row("b1", group=BOB), now_ms=NOW + 1000)
    assert await whole(space, 9, now_ms=NOW + 2000) == ([], 3000)
    assert await whole(space, 9, now_ms=NOW + 4999) == ([], 1)
    assert await whole(space, now_ms=NOW + 5000) == (["a1", "a2"], 0)
    assert await whole(space, now_ms=NOW + 5000) == ([], 1000)
    assert await whole(space, now_ms=NOW + 6000) == (["b1"], 0)
    assert await space.run("counts") == [0, 3, 0, 0]


async def test_a_batch_that_is_full_is_leased_at_once_and_the_others_gather_anew(space: Space) -> None:
    await add(space, *(row(f"a{n}", group=ANN) for n in range(8)))
    assert [(await whole(space))[0] for _ in range(2)] == [["a0", "a1", "a2"], ["a3", "a4", "a5"]]
    assert await whole(space) == ([], 5000)
    await add(space, row("a8", group=ANN), now_ms=NOW + 1)
    assert await whole(space, now_ms=NOW + 1) == (["a6", "a7", "a8"], 0)


async def test_an_item_that_another_client_pushes_once_more_counts_once(space: Space) -> None:
    await add(space, *(row(f"a{n}", group=ANN) for n in range(4)))
    await space.redis.lpush(space.key("queue"), "a3", "a1")
    assert await whole(space) == (["a0", "a1", "a2"], 0)
    await add(space, row("a4", group=ANN))
    assert await whole(space, 9) == ([], 5000), "two of three are there"
    await space.redis.lpush(space.key("queue"), "a4")
    assert await whole(space, 9) == ([], 5000)
    assert await whole(space, 9, now_ms=NOW + 5000) == (["a3", "a4"], 0)


async def test_a_batch_is_not_cut_and_comes_with_others_only_if_there_is_room(space: Space) -> None:
    await add(space, row("first", 1), *(row(f"a{n}", group=ANN) for n in range(3)), row("last"))
    assert await whole(space, 3) == (["first", "last"], 0), "not one of the batch: call again"
    assert await whole(space, 2) == (["a0", "a1", "a2"], 0)
    await add(space, row("next", 1), *(row(f"b{n}", group=BOB) for n in range(3)))
    assert await whole(space, 4) == (["next", "b0", "b1", "b2"], 0)


async def test_a_call_for_single_items_gets_those_of_a_batch_one_by_one(space: Space) -> None:
    await add(space, *(row(f"a{n}", group=ANN) for n in range(3)))
    assert await lease(space, 1) == ["a0"]
    assert await lease(space, 1) == []
    assert await lease(space, 9, now_ms=NOW + 5000) == ["a1", "a2"]


@pytest.mark.parametrize("return_front", ["", 1])
async def test_a_batch_that_dies_is_a_batch_again_before_later_items(space: Space, return_front: Any) -> None:
    await add(space, *(row(f"a{n}", group=ANN) for n in range(3)))
    await whole(space)
    await add(space, row("later1", group=ANN), row("later2", group=ANN), now_ms=NOW + 59_000)
    late = {"now_ms": NOW + 60_000, "return_front": return_front}
    given, _ = await given_to(space, 1, **late)
    assert [(one.id, one.attempt) for one in given] == [("a0", 2), ("a1", 2), ("a2", 2)]
    assert await whole(space, **late) == ([], 4000)
    assert await whole(space, now_ms=NOW + 64_000) == (["later1", "later2"], 0)


async def test_a_small_batch_that_dies_in_two_steps_is_whole_again(space: Space) -> None:
    await add(space, row("a1", group=ANN), row("a2", group=ANN))
    given, _ = await given_to(space, 1, now_ms=NOW + 5000)
    await space.run("renew_many", [(given[1].id, given[1].token, 60_100)], now_ms=NOW + 5000)
    assert await whole(space, now_ms=NOW + 65_000) == ([], 100), "the first waits for the other"
    assert await whole(space, now_ms=NOW + 65_100) == ([], 4900)
    again, _ = await whole(space, now_ms=NOW + 70_000)
    assert sorted(again) == ["a1", "a2"]


async def test_a_batch_that_is_released_to_the_front_does_not_gather_again(space: Space) -> None:
    await add(space, row("a1", group=ANN), row("a2", group=ANN))
    for at, later in enumerate(([], ["a3"], [], ["a4", "a5"])):
        now_ms = NOW + 5000 + 10 * at
        given, _ = await given_to(space, 9, now_ms=now_ms)
        assert [one.id for one in given][:2] == ["a1", "a2"]
        # Those that come meanwhile begin to gather.
        await add(space, *(row(one, group=ANN) for one in later), now_ms=now_ms)
        released = [(one.id, one.token, 0, 1) for one in given]
        assert set(await space.run("release_many", released, now_ms=now_ms)) == {1}
    assert await whole(space, now_ms=NOW + 5030) == (["a1", "a2", "a3"], 0)
    assert await whole(space, now_ms=NOW + 5030) == ([], 5000)
    assert await whole(space, now_ms=NOW + 10_030) == (["a4", "a5"], 0)


async def test_what_is_released_to_the_end_gathers_again(space: Space) -> None:
    await add(space, row("a1", group=ANN))
    [one], _ = await given_to(space, 9, now_ms=NOW + 5000)
    assert await space.run("release_many", [(one.id, one.token, 0, 0)], now_ms=NOW + 5000) == [1]
    assert await whole(space, now_ms=NOW + 5000) == ([], 5000)


async def test_a_limit_of_the_queue_cuts_a_batch_and_one_of_each_group_does_not(space: Space) -> None:
    await space.run("set_limits", [("concurrency/*", 1, "concurrency", 5)])
    await add(
        space, *(row(f"a{n}", group=ANN) for n in range(3)), *(row(f"b{n}", group=BOB) for n in range(3))
    )
    assert (await whole(space))[0] == ["a0", "a1", "a2"]
    assert (await whole(space))[0] == ["b0", "b1"]


async def test_a_batch_does_not_wait_longer_because_the_clock_was_set_back(space: Space) -> None:
    await add(space, row("a1", group=ANN), now_ms=NOW + 500_000)
    await space.run("light_clean", now_ms=NOW)
    assert await whole(space, now_ms=NOW) == (["a1"], 0)


@pytest.mark.parametrize(
    "group", ["batch:3:5000", "batch:0:5000:a", "batch:3::a", "a batch:3:5000:a", "batch:x:1:a"]
)
async def test_a_group_of_another_form_does_not_gather(space: Space, group: str) -> None:
    await add(space, row("a1", group=group))
    assert await whole(space) == (["a1"], -1)


async def test_no_batch_is_larger_than_a_call_may_lease(space: Space) -> None:
    await add(space, *(row(f"a{n:03}", group="batch:9999:5000:ann") for n in range(260)))
    ids, _ = await whole(space)
    assert ids == [f"a{n:03}" for n in range(250)]


@pytest.mark.parametrize("rows", [1, 3], ids=["the first", "the last"])
async def test_a_session_that_waits_is_notified_to_ask_and_the_batch_stays_whole(
    space: Space, rows: int
) -> None:
    await space.run("register", keep_ms=600_000)
    await add(space, *(row(f"a{n}", group=ANN) for n in range(3 - rows)))
    async with space.redis.pubsub() as channel:
        await channel.subscribe(space.key("due"))
        await received(channel)
        await add(space, *(row(f"a{n}", group=ANN) for n in range(3 - rows, 3)))
        assert await received(channel) == b"0"
    assert not {"queue", "promoted"} & (await space.snapshot()).keys()
    assert (await whole(space))[0] == ["a0", "a1", "a2"]


async def test_a_session_asks_when_the_time_of_a_batch_has_passed(space: Space) -> None:
    await space.run("register", keep_ms=600_000)
    await add(space, row("a1", group=ANN))
    assert await whole(space) == ([], 5000)
    assert (await space.snapshot())["alarm"] == Expiring(f"{NOW + 5000} {ME}")
    other = await space.run("lease_many", [(1, 60_000)], session="lh:other")
    assert other[1] == -1, "one asks"


async def test_an_item_that_another_client_returns_waits_in_its_lane_again(space: Space) -> None:
    await add(space, row("a1", group="g"), row("b1", group="h"))
    assert await lease(space, 1) == ["a1"]
    await space.redis.zrem(space.key("deadlines"), "a1")
    await space.redis.unlink(space.key("lease:a1"), space.key("leased_by_session:a1"))
    await space.redis.lpush(space.key("queue"), "a1")
    assert sorted(await lease(space, 9)) == ["a1", "b1"]
