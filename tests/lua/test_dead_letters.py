"""requeue_many, drop_many, drop_old and dead_list: requeuing, dropping and listing dead letters."""

from __future__ import annotations

import pytest

from tests.lua.space import NOW, Held, Letter, Space, State, batched, data_of, lease_keys, new, picture

LETTERS = {"a": Letter(1, at=NOW - 300), "b": Letter(2, at=NOW - 200), "c": Letter(3, at=NOW - 100)}
DEAD = picture(waiting=["w"], dead=LETTERS, fence=3)


async def test_dead_letters_return_to_the_end_in_the_order_of_the_rows(space: Space) -> None:
    await space.seed(DEAD)
    assert await space.run("requeue_many", [("c",), ("missing",), ("a",), ("c",)]) == [1, 0, 1, -1]
    after = picture(waiting=["w", "c", "a"], dead={"b": LETTERS["b"]}, fence=3)
    assert await space.snapshot() == after
    assert await space.run("requeue_many", [("c",), ("a",)]) == [0, 0], "once"
    assert await space.snapshot() == after


@pytest.mark.parametrize(
    "there",
    [picture(waiting=["a"]), picture(leased={"a": Held(3)}), picture(scheduled={"a": NOW + 1})],
    ids=["waiting", "leased", "scheduled"],
)
async def test_a_dead_letter_whose_id_is_in_the_queue_again_stays(space: Space, there: State) -> None:
    before = picture(dead={"a": Letter(1)}, fence=3) | there
    assert await space.apply(before, "requeue_many", [("a",)]) == ([-1], before)


async def test_bookkeeping_that_a_foreign_client_has_left_is_removed(space: Space) -> None:
    """A foreign client had added the id, which we leased, and completed it."""
    left = {k: v for k, v in picture(leased={"a": Held(2)}).items() if k != "item:a"}
    await space.seed(picture(dead={"a": Letter(1)}, fence=2) | left | lease_keys("a", "foreign"))
    assert await space.run("requeue_many", [("a",)]) == [1]
    assert await space.snapshot() == picture(waiting=["a"], fence=2)


async def test_requeuing_stops_before_the_limit_of_data(space: Space) -> None:
    await space.seed(DEAD)
    size = len(data_of("a"))
    rows = [("a",), ("b",), ("c",)]
    assert await space.run("requeue_many", rows, max_bytes=2 * size) == [1, 1, -2]
    assert await space.run("requeue_many", rows[2:], max_bytes=size - 1) == [1], (
        "the first is always requeued"
    )
    assert await space.snapshot() == picture(waiting=["w", "a", "b", "c"], fence=3)


@pytest.mark.seed("WRQ-B7")
async def test_the_id_of_a_dead_letter_is_free(space: Space) -> None:
    await space.seed(DEAD)
    assert await space.run("add_items", [new("a")]) == [1]
    assert await space.snapshot() == picture(waiting=["w", "a"], dead=LETTERS, fence=3)


@pytest.mark.parametrize(
    ("age_ms", "count", "left"), [(301, 9, "abc"), (200, 9, "c"), (0, 9, ""), (0, 2, "c")]
)
async def test_old_dead_letters_are_dropped_the_oldest_first(
    space: Space, age_ms: int, count: int, left: str
) -> None:
    await space.seed(DEAD)
    assert await space.run("drop_old", age_ms=age_ms, count=count) == 3 - len(left)
    assert await space.snapshot() == picture(waiting=["w"], dead={i: LETTERS[i] for i in left}, fence=3)


async def test_dead_letters_are_found_by_their_ids(space: Space) -> None:
    await space.seed(DEAD)
    reply = batched(await space.run("dead_list", [("b",), ("w",)]), 7)
    assert reply[0][:4] == [b"b", NOW - 200, 9, b"data of b"]
    assert reply[1] == [b"w", 0, -1, None, b"", 0, 0]


@pytest.mark.parametrize(("max_bytes", "given"), [(-1, 0), (9, 1), (26, 2), (27, 3)])
async def test_a_list_returns_no_more_data_than_asked_for(space: Space, max_bytes: int, given: int) -> None:
    await space.seed(DEAD)
    reply = batched(await space.run("dead_list", max_bytes=max_bytes), 7)
    assert [one[2] for one in reply] == [9, 9, 9]
    assert sum(one[3] is not None for one in reply) == given


@pytest.mark.seed("GLD-B4", "GLD-B5")
async def test_a_result_is_kept_for_a_time_and_replaces_an_older_one(space: Space) -> None:
    await space.seed(
        picture(leased={"a": Held(1), "b": Held(2), "c": Held(3)}, fence=3) | {"result:a": "old"}
    )
    rows = [("a", 1, "0:60000:1:2\n"), ("b", 2, "1:60000:"), ("c", 2, "0:60000:never"), ("a", 1, "0:9:x")]
    assert await space.run("complete_many", rows) == [1, 1, -1, 0]
    assert 50_000 < await space.redis.pttl(space.key("result:a")) <= 60_000
    assert await space.run("result", [("a",), ("b",), ("c",)]) == [b"1:2\n", b"", None]


async def test_an_item_may_be_added_for_a_time_by_the_clock_of_the_server(space: Space) -> None:
    rows = [("a", data_of("a"), f"@{NOW + 5}", 0), ("b", data_of("b"), f"@{NOW}", 0), ("c", "", "@-5", 0)]
    assert await space.run("add_items", rows) == [1, 1, 1]
    after = picture(waiting=["b", "c"], scheduled={"a": NOW + 5}) | {"item:c": ""}
    found = await space.snapshot()
    found.setdefault("lease:a", after["lease:a"])  # it lives for 5 ms of real time
    assert found == after
