"""complete_many: one holder of each incarnation completes the item, and nothing of it stays."""

from __future__ import annotations

import pytest

from tests.lua.space import ME, NOW, Held, Space, State, data_of, picture

DONE, BEFORE, REFUSED = 1, 0, -1

#: An item in its third attempt of this incarnation, with token 5; tokens 3 and 4 were earlier.
THIRD = Held(5, first=3, attempt=3)

WAITING = picture(waiting=["w", "a", "v"], past={"a": THIRD}, fence=5)
LEASED = picture(waiting=["w", "v"], leased={"a": THIRD}, fence=5)
EXPIRED = picture(waiting=["w", "v"], leased={"a": Held(5, first=3, attempt=3, ends=NOW - 1)}, fence=5)
SCHEDULED = picture(waiting=["w", "v"], scheduled={"a": NOW + 1}, past={"a": THIRD}, fence=5)
REST = picture(waiting=["w", "v"], fence=5)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(LEASED, id="leased"),
        pytest.param(EXPIRED, id="expired"),
        pytest.param(WAITING, id="waiting again"),
        pytest.param(SCHEDULED, id="scheduled again"),
    ],
)
@pytest.mark.parametrize("token", [3, 4, 5])
@pytest.mark.seed("RWQ-G6", "RWQ-O18", "RWQ-G7", "RWQ-G11", "WRQ-B8", "WRQ-T5", "RRQ-B6", "RRQ-G5", "RWQ-B8")
async def test_every_holder_of_this_incarnation_can_complete_first(
    space: Space, before: State, token: int
) -> None:
    assert await space.apply(before, "complete_many", [("a", token, 0)]) == ([DONE], REST)
    assert await space.run("complete_many", [("a", 3, 0), ("a", 4, 0), ("a", 5, 1)]) == [BEFORE] * 3
    assert await space.snapshot() == REST


@pytest.mark.parametrize("token", [1, 2, 6])
@pytest.mark.parametrize("fenced", [0, 1])
@pytest.mark.seed("RWQ-B3", "RRQ-B8")
async def test_a_token_of_another_incarnation_is_always_rejected(
    space: Space, token: int, fenced: int
) -> None:
    assert await space.apply(LEASED, "complete_many", [("a", token, fenced)]) == ([REFUSED], LEASED)


@pytest.mark.parametrize(
    ("before", "token"),
    [(LEASED, 3), (LEASED, 4), (WAITING, 5), (SCHEDULED, 5)],
    ids=["first", "second", "returned", "released"],
)
@pytest.mark.seed("GLD-G8")
async def test_fenced_rejects_every_other_holder(space: Space, before: State, token: int) -> None:
    assert await space.apply(before, "complete_many", [("a", token, 1)]) == ([REFUSED], before)


@pytest.mark.parametrize("before", [LEASED, EXPIRED], ids=["leased", "expired"])
async def test_fenced_accepts_the_current_holder(space: Space, before: State) -> None:
    assert await space.apply(before, "complete_many", [("a", 5, 1)]) == ([DONE], REST)


async def test_an_item_that_was_never_leased_cannot_be_completed(space: Space) -> None:
    before = picture(waiting=["a"], fence=3)
    await space.seed(before)
    assert await space.run("complete_many", [("a", 1, 0), ("a", 4, 1)]) == [REFUSED, REFUSED]
    assert await space.snapshot() == before


async def test_equal_rows_in_one_call_are_completed_once(space: Space) -> None:
    await space.seed(LEASED)
    assert await space.run("complete_many", [("a", 5, 0), ("a", 4, 0), ("a", 5, 1)]) == [DONE, BEFORE, BEFORE]
    assert await space.snapshot() == REST


@pytest.mark.seed("GLD-B2")
async def test_each_row_has_its_answer(space: Space) -> None:
    leases = {"a": Held(1), "b": Held(2), "c": Held(3)}
    await space.seed(picture(leased=leases, fence=3))
    rows = [("b", 2, 1), ("x", 9, 0), ("c", 1, 0), ("a", 1, 0)]
    assert await space.run("complete_many", rows) == [DONE, BEFORE, REFUSED, DONE]
    assert await space.snapshot() == picture(leased={"c": Held(3)}, fence=3)


@pytest.mark.parametrize("token", [5, 1])
@pytest.mark.seed("RWQ-G1")
async def test_an_item_that_a_foreign_client_has_completed_is_answered_so_and_forgotten(
    space: Space, token: int
) -> None:
    before = dict(LEASED)
    del before["item:a"]
    assert await space.apply(before, "complete_many", [("a", token, 0)]) == ([BEFORE], REST)


async def test_a_completed_item_on_its_way_to_a_process_leaves_a_ghost_that_is_never_leased(
    space: Space,
) -> None:
    on_its_way = picture(past={"a": THIRD}, fence=5) | {f"inbox:{ME}": ["a"], "item:a": data_of("a")}
    await space.seed(on_its_way)
    assert await space.run("complete_many", [("a", 5, 0)]) == [DONE]
    assert await space.snapshot() == picture(fence=5) | {f"inbox:{ME}": ["a"]}
    assert await space.run("lease_many", [(1, 60_000)]) == [NOW, -1, 0]
    assert await space.snapshot() == picture(fence=5)


@pytest.mark.parametrize(("before_it", "behind_it"), [(255, 600), (600, 255), (0, 0), (255, 255)])
@pytest.mark.seed("RWQ-B8")
async def test_a_waiting_item_near_an_end_of_the_list_is_removed(
    space: Space, before_it: int, behind_it: int
) -> None:
    ahead, behind = [f"i{n}" for n in range(before_it)], [f"j{n}" for n in range(behind_it)]
    await space.seed(picture(waiting=[*ahead, "a", *behind], past={"a": THIRD}, fence=5))
    assert await space.run("complete_many", [("a", 3, 0)]) == [DONE]
    assert await space.snapshot() == picture(waiting=[*ahead, *behind], fence=5)


async def test_deep_in_the_list_a_ghost_stays_behind_until_it_is_found(space: Space) -> None:
    around = [f"i{n}" for n in range(600)]
    await space.seed(picture(waiting=[*around[:300], "a", *around[300:]], past={"a": THIRD}, fence=5))
    assert await space.run("complete_many", [("a", 3, 0)]) == [DONE]
    ghost = picture(waiting=around, fence=5)
    ghost["queue"] = [*around[300:][::-1], "a", *around[:300][::-1]]
    assert await space.snapshot() == ghost
    assert [given.id for given in await space.lease_all(len(around))] == around


async def test_only_one_of_several_entries_of_a_waiting_item_is_removed(space: Space) -> None:
    """The others are ghosts."""
    await space.seed(picture(waiting=["a", "b"], past={"a": THIRD}, fence=5) | {"queue": ["a", "b", "a"]})
    assert await space.run("complete_many", [("a", 3, 0)]) == [DONE]
    assert await space.snapshot() == picture(waiting=["b"], fence=5) | {"queue": ["b", "a"]}
