"""counts, inspect, find_many and list_ids: they read, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.space import LONG, NOW, Expiring, Held, Space, State, batched, data_of, picture

HELD = Held(7, first=5, attempt=3, ends=NOW + 20, at=NOW - 100)
PAST = Held(6, first=6, at=NOW - 200)
QUEUE = picture(
    waiting=["a", "b", "c", "d"],
    leased={"l1": Held(4, ends=NOW + 90), "l2": HELD},
    scheduled={"s1": NOW + 60, "s2": NOW + 30},
    past={"b": PAST},
    fence=7,
)
INBOXES: State = {
    "sessions": {"lh:one": NOW + 1.0, "lh:two": NOW - 1.0},
    "inbox:lh:one": ["x"],
    "inbox:lh:two": ["y", "z"],
}


async def look(
    space: Space, script: str, rows: Any = (), more: State | None = None, **arguments: object
) -> Any:
    """Run a script on the queue and `more` keys; check that it changes nothing."""
    before = QUEUE | INBOXES | (more or {})
    reply, after = await space.apply(before, script, rows, **arguments)
    assert after == before
    return reply


async def inspect(
    space: Space, state: str, start: int = 0, count: int = 9, more: State | None = None, **arguments: object
) -> list[list[Any]]:
    now, *fields = await look(space, "inspect", (), more, state=state, start=start, count=count, **arguments)
    assert now == NOW
    return batched(fields, 11)


async def find(
    space: Space, *item_ids: str, more: State | None = None, **arguments: object
) -> list[list[Any]]:
    now, *fields = await look(space, "find_many", [(item_id,) for item_id in item_ids], more, **arguments)
    assert now == NOW
    return batched(fields, 12)


async def test_counts_has_inboxes_in_waiting_and_takes_what_is_leased_from_the_deadlines(
    space: Space,
) -> None:
    """Foreign clients remove entries of `processing`, and leave others behind."""
    others: list[State] = [{}, {"processing": ["x"]}, {"processing": ["x"], "gone": {"l1": NOW - 1.0}}]
    for more in others:
        assert await look(space, "counts", (), more) == [4 + 3, 2, 2, 0]


async def test_an_empty_queue_has_no_items(space: Space) -> None:
    assert await space.run("counts") == [0, 0, 0, 0]
    assert await space.run("list_ids", state="leased", cursor="0") == [b"0", 0]


async def test_a_waiting_item_shows_its_last_lease_and_a_ghost_nothing(space: Space) -> None:
    never, before = data_of("a").encode(), data_of("b").encode()
    assert await inspect(space, "waiting", count=3, more={"queue": ["b", "ghost", "a"]}) == [
        [b"a", len(never), never, -1, None, 0, 0, 0, None, None, None],
        [b"ghost", -1, None, -1, None, 0, 0, 0, None, None, None],
        [b"b", len(before), before, -1, None, 6, 1, NOW - 200, None, None, None],
    ]


async def test_leased_items_are_returned_in_the_order_in_which_their_leases_expire(space: Space) -> None:
    second, first = data_of("l1").encode(), data_of("l2").encode()
    assert await inspect(space, "leased") == [
        [b"l2", len(first), first, NOW + 20, b"lh:me", 7, 3, NOW - 100, None, None, None],
        [b"l1", len(second), second, NOW + 90, b"lh:me", 4, 1, NOW, None, None, None],
    ]


async def test_scheduled_items_are_returned_in_the_order_in_which_they_fall_due(space: Space) -> None:
    found = await inspect(space, "scheduled")
    assert [(item_id, due, holder) for item_id, _, _, due, holder, *_ in found] == [
        (b"s2", NOW + 30, b"lh:scheduled"),
        (b"s1", NOW + 60, b"lh:scheduled"),
    ]


@pytest.mark.parametrize(("max_bytes", "given"), [(-1, 0), (0, 0), (9, 1), (17, 1), (18, 2), (10_000, 4)])
async def test_items_beyond_the_limit_of_data_come_without_data(
    space: Space, max_bytes: int, given: int
) -> None:
    views = await inspect(space, "waiting", max_bytes=max_bytes)
    found = [view[1:] for view in await find(space, *"abcd", max_bytes=max_bytes)]
    assert views == found
    assert [size for _, size, *_ in views] == [9, 9, 9, 9]
    assert [data is not None for _, _, data, *_ in views] == [True] * given + [False] * (4 - given)


@pytest.mark.parametrize("kind", ["lease", "leased_by_session"])
async def test_an_item_that_a_foreign_client_holds_is_leased_and_its_holder_is_named(
    space: Space, kind: str
) -> None:
    endless: State = {f"{kind}:a": "foreign"}
    assert (await inspect(space, "waiting", count=1, more=endless))[0][4] == b"foreign"
    [[state, _, _, _, due, holder, *_]] = await find(space, "a", more=endless)
    assert (state, due, holder) == (b"leased", -1, b"foreign")
    [[state, _, _, _, due, holder, *_]] = await find(space, "a", more={f"{kind}:a": Expiring("foreign")})
    assert (state, holder) == (b"leased", b"foreign")
    assert NOW < due <= NOW + LONG


@pytest.mark.parametrize(("state", "ids"), [("waiting", "abcd"), ("leased", ["l1"]), ("scheduled", ["s1"])])
async def test_find_many_returns_the_same_values_as_inspect(space: Space, state: str, ids: list[str]) -> None:
    views = {view[0].decode(): view for view in await inspect(space, state)}
    assert await find(space, *ids) == [[state.encode(), *views[item_id]] for item_id in ids]


@pytest.mark.seed("GLD-B15")
async def test_find_many_returns_the_items_that_exist_in_the_order_of_the_ids(space: Space) -> None:
    """The id `x` is in an inbox, without data."""
    assert [view[:2] for view in await find(space, "s1", "missing", "b", "x", "l2", "b")] == [
        [b"scheduled", b"s1"],
        [b"waiting", b"b"],
        [b"leased", b"l2"],
        [b"waiting", b"b"],
    ]


#: Ids that were added again after they died, one that was not, and one without a time of death.
DIED: State = {
    f"dead:{item_id}": {"data": f"old {item_id}", "error": f"of {item_id}", "attempt": "2", "token": "3"}
    for item_id in ("b", "l1", "gone", "odd")
}
DIED["dead"] = {"b": NOW - 50.0, "l1": NOW - 60.0, "gone": NOW - 70.0}


async def test_find_many_returns_an_item_and_a_dead_letter_of_the_same_id(space: Space) -> None:
    ids = ("b", "missing", "gone", "l1", "odd", "s1")
    living, dead = [await find(space, *ids, more=DIED, which=which) for which in ("living", "dead")]
    assert [view[:2] for view in living] == [[b"waiting", b"b"], [b"leased", b"l1"], [b"scheduled", b"s1"]]
    assert dead == [
        [b"dead", b"b", 5, b"old b", -1, None, 3, 2, NOW - 50, b"of b", None, None],
        [b"dead", b"gone", 8, b"old gone", -1, None, 3, 2, NOW - 70, b"of gone", None, None],
        [b"dead", b"l1", 6, b"old l1", -1, None, 3, 2, NOW - 60, b"of l1", None, None],
        [b"dead", b"odd", 7, b"old odd", -1, None, 3, 2, 0, b"of odd", None, None],
    ]
    assert await find(space, *ids, more=DIED) == living + dead
    cut = await find(space, *ids, more=DIED, max_bytes=sum(view[2] for view in living) + 6)
    assert [view[3] is None for view in cut] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(
    ("state", "ids"),
    [
        ("waiting", ["d", "c", "b", "a", "y", "z", "x"]),
        ("processing", ["l2", "l1"]),
        ("leased", ["l2", "l1"]),
        ("scheduled", ["s2", "s1"]),
        ("dead", []),
    ],
)
async def test_the_ids_of_a_state_are_listed(space: Space, state: str, ids: list[str]) -> None:
    cursor, used, *listed = await look(space, "list_ids", state=state, cursor="0")
    assert (cursor, used, [item_id.decode() for item_id in listed]) == (b"0", 1, ids)


@pytest.mark.seed("GLD-B19")
async def test_a_list_is_walked_in_steps(space: Space) -> None:
    cursor, met = b"0", []
    for _ in range(3):
        cursor, _, *ids = await look(space, "list_ids", state="waiting", cursor=cursor, count=2)
        met += ids
    assert (cursor, met[:2] + met[-2:]) == (b"0", [b"d", b"c", b"b", b"a"])
