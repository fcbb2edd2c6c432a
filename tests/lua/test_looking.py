"""counts, inspect, find_many and list_ids: they read, and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import NOW, Held, Space, State, batched, data_of, picture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.core

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


@pytest.fixture(autouse=True)
async def untouched(space: Space) -> AsyncIterator[None]:
    await space.seed(QUEUE | INBOXES)
    before = await space.snapshot()
    yield
    assert await space.snapshot() == before


async def look(
    space: Space, state: str, start: int = 0, count: int = 9, max_bytes: int = 8 << 20
) -> list[list[Any]]:
    now, *fields = await space.run("inspect", state=state, start=start, count=count, max_bytes=max_bytes)
    assert now == NOW
    return batched(fields, 8)


async def test_counts_includes_ids_in_inboxes_in_waiting(space: Space) -> None:
    assert await space.run("counts") == [4 + 3, 2, 2, 0]


async def test_counts_leaves_out_entries_that_are_noted_as_gone(space: Space) -> None:
    await space.redis.sadd(space.key("gone"), "l1")
    try:
        assert await space.run("counts") == [7, 1, 2, 0]
    finally:
        await space.redis.delete(space.key("gone"))


async def test_counts_is_never_below_0(space: Space) -> None:
    await space.redis.sadd(space.key("gone"), *"abcdef")
    try:
        assert await space.run("counts") == [7, 0, 2, 0]
    finally:
        await space.redis.delete(space.key("gone"))


async def test_counts_of_an_empty_queue(space: Space) -> None:
    assert await Space(space.redis, f"{space.prefix}-empty").run("counts") == [0, 0, 0, 0]


async def test_a_waiting_item_that_was_never_leased(space: Space) -> None:
    data = data_of("a").encode()
    assert (await look(space, "waiting"))[0] == [b"a", len(data), data, -1, None, 0, 0, 0]


async def test_a_waiting_item_that_was_leased_before(space: Space) -> None:
    data = data_of("b").encode()
    assert (await look(space, "waiting"))[1] == [b"b", len(data), data, -1, None, 6, 1, NOW - 200]


async def test_leased_items_are_returned_in_the_order_in_which_their_leases_expire(space: Space) -> None:
    second, first = data_of("l1").encode(), data_of("l2").encode()
    assert await look(space, "leased") == [
        [b"l2", len(first), first, NOW + 20, b"lh:me", 7, 3, NOW - 100],
        [b"l1", len(second), second, NOW + 90, b"lh:me", 4, 1, NOW],
    ]


async def test_scheduled_items_are_returned_in_the_order_in_which_they_fall_due(space: Space) -> None:
    found = await look(space, "scheduled")
    assert [(item_id, due, holder) for item_id, _, _, due, holder, *_ in found] == [
        (b"s2", NOW + 30, b"lh:scheduled"),
        (b"s1", NOW + 60, b"lh:scheduled"),
    ]


@pytest.mark.parametrize(
    ("start", "count", "ids"),
    [
        (0, 2, "ab"),
        (1, 2, "bc"),
        (3, 9, "d"),
        (4, 9, ""),
        (99, 9, ""),
        (-1, 1, "d"),
        (-1, 9, "d"),
        (-3, 2, "bc"),
        (-4, 9, "abcd"),
        (2**53, 1, ""),
    ],
)
async def test_the_first_place_of_a_slice_of_waiting_items(
    space: Space, start: int, count: int, ids: str
) -> None:
    found = [item_id for item_id, *_ in await look(space, "waiting", start, count)]
    assert found == [item_id.encode() for item_id in ids]


@pytest.mark.parametrize(
    ("start", "count", "ids"),
    [
        (0, 1, ["l2"]),
        (1, 9, ["l1"]),
        (2, 9, []),
        (-1, 9, ["l1"]),
        (-2, 1, ["l2"]),
        (-2, 2, ["l2", "l1"]),
        (-2, 3, ["l2", "l1"]),
        (-2, 9, ["l2", "l1"]),
        (2**53, 9, []),
    ],
)
async def test_the_first_place_of_a_slice_of_leased_items(
    space: Space, start: int, count: int, ids: list[str]
) -> None:
    found = [item_id.decode() for item_id, *_ in await look(space, "leased", start, count)]
    assert found == ids


async def test_a_ghost_is_returned_as_a_ghost(space: Space) -> None:
    await space.redis.rpush(space.key("queue"), "ghost")
    assert (await look(space, "waiting", 0, 1)) == [[b"ghost", -1, None, -1, None, 0, 0, 0]]
    await space.redis.rpop(space.key("queue"))


@pytest.mark.parametrize(("max_bytes", "given"), [(-1, 0), (0, 0), (9, 1), (17, 1), (18, 2), (10_000, 4)])
async def test_items_beyond_the_limit_of_data_come_without_data(
    space: Space, max_bytes: int, given: int
) -> None:
    assert {len(data_of(item_id)) for item_id in "abcd"} == {9}
    found = await look(space, "waiting", max_bytes=max_bytes)
    assert [size for _, size, *_ in found] == [9, 9, 9, 9]
    assert [data is not None for _, _, data, *_ in found] == [True] * given + [False] * (4 - given)


async def test_a_foreign_holder_is_named_with_either_lease_key(space: Space) -> None:
    key = space.key("leased_by_session:a")
    await space.redis.set(key, "foreign")
    assert (await look(space, "waiting", 0, 1))[0][4] == b"foreign"
    await space.redis.delete(key)


async def found(space: Space, item_id: str, max_bytes: int = 8 << 20) -> list[Any]:
    now, *fields = list(await space.run("find_many", [(item_id,)], max_bytes=max_bytes))
    assert now == NOW
    return fields


@pytest.mark.parametrize(("state", "ids"), [("waiting", "abcd"), ("leased", ["l1"]), ("scheduled", ["s1"])])
async def test_find_many_returns_the_same_values_as_inspect(space: Space, state: str, ids: list[str]) -> None:
    views = {view[0].decode(): view for view in await look(space, state)}
    for item_id in ids:
        assert await found(space, item_id) == [state.encode(), *views[item_id]]


@pytest.mark.parametrize("item_id", ["missing", "x"])
async def test_an_id_without_data_is_not_found(space: Space, item_id: str) -> None:
    assert await found(space, item_id) == []


async def test_an_item_beyond_the_limit_of_data_is_found_without_data(space: Space) -> None:
    assert (await found(space, "a", 8))[2:4] == [9, None]
    assert (await found(space, "a", 9))[2:4] == [9, data_of("a").encode()]


@pytest.mark.parametrize("kind", ["lease", "leased_by_session"])
async def test_an_item_that_a_foreign_client_holds_is_leased(space: Space, kind: str) -> None:
    key = space.key(f"{kind}:a")
    await space.redis.set(key, "foreign", px=60_000)
    state, _, _, _, due, holder, *_ = await found(space, "a")
    assert (state, holder) == (b"leased", b"foreign")
    assert NOW < due <= NOW + 60_000
    await space.redis.persist(key)
    assert (await found(space, "a"))[4] == -1, "without an end"
    await space.redis.delete(key)


@pytest.mark.seed("GLD-B15")
async def test_find_many_returns_the_items_that_exist_in_the_order_of_the_ids(space: Space) -> None:
    now, *fields = await space.run("find_many", [("s1",), ("missing",), ("b",), ("l2",), ("b",)])
    assert now == NOW
    assert [(state, item_id) for state, item_id, *_ in batched(fields, 9)] == [
        (b"scheduled", b"s1"),
        (b"waiting", b"b"),
        (b"leased", b"l2"),
        (b"waiting", b"b"),
    ]


@pytest.fixture
async def died_and_live(space: Space) -> AsyncIterator[None]:
    """Seed ids that were added again after they died, one that was not, and one without a time of death."""
    letters = {"b": NOW - 50, "l1": NOW - 60, "gone": NOW - 70, "odd": None}
    for item_id, died in letters.items():
        facts = ("data", f"old {item_id}", "error", f"of {item_id}", "attempt", 2, "token", 3)
        await space.send("HSET", space.key(f"dead:{item_id}"), *facts)
        if died is not None:
            await space.redis.zadd(space.key("dead"), {item_id: died})
    yield
    await space.redis.delete(space.key("dead"), *(space.key(f"dead:{item_id}") for item_id in letters))


@pytest.mark.usefixtures("died_and_live")
async def test_find_many_returns_an_item_and_a_dead_letter_of_the_same_id(space: Space) -> None:
    ids = [(item_id,) for item_id in ("b", "missing", "gone", "l1", "odd", "s1")]

    async def read(which: str, max_bytes: int = 10_000) -> list[list[Any]]:
        now, *fields = await space.run("find_many", ids, which=which, max_bytes=max_bytes)
        assert now == NOW
        return batched(fields, 9)

    living, dead = await read("living"), await read("dead")
    assert [view[:2] for view in living] == [[b"waiting", b"b"], [b"leased", b"l1"], [b"scheduled", b"s1"]]
    assert dead == [
        [b"dead", b"b", 5, b"old b", -1, b"of b", 3, 2, NOW - 50],
        [b"dead", b"gone", 8, b"old gone", -1, b"of gone", 3, 2, NOW - 70],
        [b"dead", b"l1", 6, b"old l1", -1, b"of l1", 3, 2, NOW - 60],
        [b"dead", b"odd", 7, b"old odd", -1, b"of odd", 3, 2, 0],
    ]
    assert await read("all") == living + dead
    sizes = sum(view[2] for view in living)
    cut = await read("all", sizes + 6)
    assert [view[3] is None for view in cut] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(("max_bytes", "given"), [(-1, 0), (9, 1), (17, 1), (18, 2), (10_000, 4)])
async def test_the_limit_of_data_holds_for_all_items_of_a_reply(
    space: Space, max_bytes: int, given: int
) -> None:
    _, *fields = await space.run("find_many", [(item_id,) for item_id in "abcd"], max_bytes=max_bytes)
    assert [view[3] is not None for view in batched(fields, 9)] == [True] * given + [False] * (4 - given)


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
    cursor, used, *listed = await space.run("list_ids", state=state, cursor="0")
    assert (cursor, used, [item_id.decode() for item_id in listed]) == (b"0", 1, ids)


@pytest.mark.seed("GLD-B19")
async def test_a_list_is_walked_in_steps(space: Space) -> None:
    cursor, met = b"0", []
    for _ in range(3):
        cursor, _, *ids = await space.run("list_ids", state="waiting", cursor=cursor, count=2)
        met += ids
    assert (cursor, met[:2] + met[-2:]) == (b"0", [b"d", b"c", b"b", b"a"])


async def test_a_queue_from_which_no_item_was_leased_is_reported_so(space: Space) -> None:
    elsewhere = Space(space.redis, f"{space.prefix}-empty")
    assert await elsewhere.run("list_ids", state="leased", cursor="0") == [b"0", 0]
