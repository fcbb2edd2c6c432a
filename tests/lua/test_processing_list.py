"""Ids leave `processing` without a search: those far from its old end are noted and removed later."""

from __future__ import annotations

import random
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from tests.lua.space import NOW, Call, Held, Space, State, batched, items_of, listed, new, picture

if TYPE_CHECKING:
    from collections.abc import Callable


#: The longest list that is searched.
SHORT = 128


def leases(count: int) -> dict[str, Held]:
    """Return leases of ids in the order of their tokens."""
    return {f"i{n:04}": Held(n) for n in range(1, count + 1)}


def without(held: dict[str, Held], *item_ids: str) -> State:
    """Return the state after some leases have ended, except `processing` and `gone`."""
    rest = {item_id: lease for item_id, lease in held.items() if item_id not in item_ids}
    state = picture(leased=rest, fence=len(held))
    state.pop("processing", None)
    return state


@pytest.mark.parametrize("which", ["i0001", "i0064", "i0128"])
async def test_a_short_list_is_searched(space: Space, which: str) -> None:
    held = leases(SHORT)
    await space.seed(picture(leased=held, fence=SHORT))
    assert await space.run("complete_many", [(which, held[which].token, 0)]) == [1]
    processing = [item_id for item_id in [*held][::-1] if item_id != which]
    assert await space.snapshot() == without(held, which) | {"processing": processing}


async def test_in_a_long_list_the_old_are_removed_in_place(space: Space) -> None:
    held = leases(200)
    await space.seed(picture(leased=held, fence=200))
    assert await space.run("complete_many", [("i0002", 2, 0), ("i0001", 1, 0)]) == [1, 1]
    processing = [*held][::-1][:-2]
    assert await space.snapshot() == without(held, "i0001", "i0002") | {"processing": processing}


@pytest.mark.seed("GLD-T2", "RRQ-B5")
async def test_in_a_long_list_young_ids_are_noted_and_old_ones_move(space: Space) -> None:
    held = leases(200)
    await space.seed(picture(leased=held, fence=200))
    assert await space.run("complete_many", [("i0200", 200, 0)]) == [1]
    state = await space.snapshot()
    processing = listed(state.pop("processing"))
    assert state == without(held, "i0200") | {"gone": {"i0200": NOW}}
    assert sorted(processing) == [*held], "no entry was lost, and that of the item is still there"
    assert {*processing[:11]} == {*[*held][:11]}, "3 for the one, and 8, moved to the young end"


async def test_a_noted_entry_is_dropped_when_it_is_found(space: Space) -> None:
    held = leases(200)
    await space.seed(
        without(held, "i0003") | {"processing": [*held][::-1], "gone": {"i0003": NOW - 5.0, "x": NOW - 5.0}}
    )
    assert await space.run("complete_many", [("i0001", 1, 0)]) == [1]
    state = await space.snapshot()
    processing = listed(state.pop("processing"))
    assert state == without(held, "i0001", "i0003") | {"gone": {"x": NOW - 5.0}}
    assert sorted(processing) == [item_id for item_id in held if item_id not in {"i0001", "i0003"}]


async def test_all_noted_entries_are_dropped_when_the_list_is_short_again(space: Space) -> None:
    held = leases(SHORT + 1)
    await space.seed(without(held, "i0129") | {"processing": [*held][::-1], "gone": {"i0129": NOW - 5.0}})
    assert await space.run("complete_many", [("i0001", 1, 0)]) == [1]
    assert (await space.snapshot())["gone"] == {"i0129": NOW - 5.0}
    assert await space.run("complete_many", [("i0100", 100, 0)]) == [1]
    processing = [item_id for item_id in [*held][::-1] if item_id not in {"i0001", "i0100", "i0129"}]
    assert await space.snapshot() == without(held, "i0001", "i0100", "i0129") | {"processing": processing}


@pytest.mark.parametrize("step", ["release_many", "expire"])
async def test_an_item_that_returns_leaves_an_entry_that_its_next_lease_reuses(
    space: Space, step: str
) -> None:
    """An entry without a note, or a note that is used for the wrong entry, would stay forever."""
    held = leases(200)
    await space.seed(picture(leased=held, fence=200))
    for token in range(200, 260):
        if step == "expire":
            await space.redis.zadd(space.key("deadlines"), {"i0200": NOW - 1})
        else:
            assert await space.run("release_many", [("i0200", token, 0, 0)]) == [1]
        assert [given.id for given in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["i0200"]
    assert await space.run("counts") == [0, 200, 0, 0]
    await _complete_all(space, {item_id: lease.token for item_id, lease in held.items()}, 1)
    assert await space.snapshot() == picture(fence=260)


async def test_an_id_that_is_added_and_completed_again_and_again_leaves_no_entries(space: Space) -> None:
    """The documentation recommends equal ids for equal jobs."""
    held = leases(500)
    await space.seed(picture(leased=held, fence=500))
    for token in range(501, 601):
        calls = [Call("add_items", [new("same")]), Call("lease_many", [(1, 60_000)]), Call("counts")]
        replies = await space.run_all([*calls, Call("complete_many", [("same", token, 0)])])
        assert replies[2:] == [[0, 501, 0, 0], [1]]
    assert await space.run("counts") == [0, 500, 0, 0]
    await _complete_all(space, {item_id: lease.token for item_id, lease in held.items()}, 1)
    assert await space.snapshot() == picture(fence=600)


ORDERS: dict[str, Callable[[list[str]], list[str]]] = {
    "in order": lambda ids: ids,
    "in reverse": lambda ids: ids[::-1],
    "at random": lambda ids: random.Random(7).sample(ids, len(ids)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("in_flight", "at_once"), [(500, 1), (2_000, 7), (2_000, 100), (3_000, 1_000)])
async def test_garbage_stays_in_bounds_and_all_keys_end_empty(
    space: Space, order: str, in_flight: int, at_once: int
) -> None:
    ids = [f"i{n}" for n in range(in_flight)]
    tokens = await _lease_all(space, ids)
    rows = [(item_id, tokens[item_id], 0) for item_id in ORDERS[order](ids)]
    pieces = batched(rows, at_once)
    left = in_flight
    for some in batched(pieces, 50):
        steps = [(Call("complete_many", piece), ("LLEN", space.key("processing"))) for piece in some]
        replies = await space.run_all(chain.from_iterable(steps))
        for piece, (answers, length) in zip(some, batched(replies, 2), strict=True):
            assert answers == [1] * len(piece)
            left -= len(piece)
            assert left <= SHORT or length / left < 1.7
    assert await space.snapshot() == picture(fence=in_flight)


async def test_garbage_stays_in_bounds_while_items_are_added_and_completed(space: Space) -> None:
    """2,000 items are in flight; each round adds and leases 50, and completes any 50."""
    shuffle = random.Random(3)
    held = [*(await _lease_all(space, [f"i{n}" for n in range(2_000)])).items()]
    for turn in range(60):
        held += (await _lease_all(space, [f"t{turn}-{n}" for n in range(50)])).items()
        shuffle.shuffle(held)
        held, over = held[50:], held[:50]
        assert await space.run("complete_many", [(*row, 0) for row in over]) == [1] * 50
        assert await space.redis.llen(space.key("processing")) < 1.7 * 2_000
        assert await space.run("counts") == [0, 2_000, 0, 0]
    await _complete_all(space, dict(held), 500)
    assert await space.snapshot() == picture(fence=5_000)


async def test_renewing_and_waiting_do_not_touch_the_list(space: Space) -> None:
    before = picture(leased=leases(200), fence=200)
    await space.seed(before)
    await space.run("renew_many", [("i0100", 100, 60_000)])
    await space.run("lease_many", [(1, 60_000)])
    assert (await space.snapshot())["processing"] == before["processing"]


async def _lease_all(space: Space, ids: list[str]) -> dict[str, int]:
    tokens: dict[str, int] = {}
    for start in range(0, len(ids), 1_000):
        piece = ids[start : start + 1_000]
        assert await space.run("add_items", [new(item_id) for item_id in piece]) == [1] * len(piece)
        given = await space.lease_all(len(piece))
        tokens |= {item.id: item.token for item in given}
    assert [*tokens] == ids
    return tokens


async def _complete_all(space: Space, tokens: dict[str, int], at_once: int) -> None:
    rows = [(item_id, token, 0) for item_id, token in tokens.items()]
    replies = await space.run_all(Call("complete_many", piece) for piece in batched(rows, at_once))
    assert [answer for answers in replies for answer in answers] == [1] * len(rows)


async def test_a_completion_keeps_a_noted_entry_if_its_item_waits_nowhere(space: Space) -> None:
    """It may be the entry of a foreign client which has taken the id and has not leased it yet."""
    held = leases(200)
    taken: State = {"item:taken": "x", "item:released": "y", "queue": ["released"]}
    marks = {"taken": NOW - 9.0, "released": NOW - 9.0}
    state = picture(leased=held, fence=200) | taken | {"gone": marks}
    await space.seed(state | {"processing": [*listed(state["processing"]), "taken", "released"]})
    assert await space.run("complete_many", [("i0200", 200, 0)]) == [1]
    after = await space.snapshot()
    assert "taken" in listed(after["processing"])
    assert "released" not in listed(after["processing"])
    assert after["gone"] == {"taken": NOW - 9.0, "i0200": NOW}


async def test_the_note_of_an_entry_stays_as_long_as_the_entry(space: Space) -> None:
    """Its item waits deep in the queue: the entry may be that of a client that has just taken it."""
    waiting = [f"w{n}" for n in range(300)]
    noted: State = {"processing": ["a", "deep"], "gone": {"deep": float(NOW)}}
    before = picture(
        waiting=[*waiting, "deep", *(f"v{n}" for n in range(300))], leased={"a": Held(1)}, fence=1
    )
    reply, after = await space.apply(before | noted, "complete_many", [("a", 1, 0)])
    assert reply == [1]
    assert (after["processing"], after["gone"]) == (["deep"], {"deep": float(NOW)})
