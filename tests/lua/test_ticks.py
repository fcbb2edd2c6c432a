"""schedule_put, schedule_drop, schedules_expire, schedules, ticks_due and tick: schedules and their items."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.space import NOW, Held, Space, State, batched, data_of, lease_keys, picture

ONCE = "1 once every 1000 -"
ALL = "1 all every 1000 -"


def plan(name: str, due: int, definition: str = ONCE) -> State:
    """Return the state of one schedule. Its data is that of an item of its name in a picture."""
    return {"schedules": {name: definition}, "ticks": {name: float(due)}, f"schedule:{name}": data_of(name)}


def added(*item_ids: str, name: str = "s") -> State:
    """Return the state of items that the schedule has added."""
    return picture(waiting=item_ids) | {f"item:{item_id}": data_of(name) for item_id in item_ids}


def row(
    due: int, item_id: str, following: int, *, name: str = "s", definition: str = ONCE
) -> tuple[Any, ...]:
    return (name, definition, due, item_id, following)


async def put(space: Space, definition: str = ONCE, data: str = data_of("s"), due: int | None = None) -> Any:
    due_ms = b"" if due is None else due
    return await space.run("schedule_put", schedule="s", definition=definition, data=data, due_ms=due_ms)


async def declare(space: Space, definition: str, due: int | None = NOW + 1, forget: int = 300) -> Any:
    due_ms = b"" if due is None else due
    return await space.run(
        "schedule_put",
        schedule="s",
        definition=definition,
        data=data_of("s"),
        due_ms=due_ms,
        forget_ms=forget,
    )


def noted(*lines: tuple[int, int, str]) -> State:
    """Return the state of declarations: first, last, definition."""
    return {"declared": {"s": "\n".join(f"{first} {last} {what}" for first, last, what in lines)}}


# ------------------------------------------------------------------------------------------- putting


async def test_a_new_schedule_needs_its_first_due_time(space: Space) -> None:
    assert await put(space) == [-1, NOW, 0]
    assert await space.snapshot() == {}
    assert await put(space, due=NOW + 7) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 7)


async def test_other_data_or_another_policy_does_not_change_the_due_time(space: Space) -> None:
    await space.seed(plan("s", NOW - 5))
    assert await put(space, data="other") == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW - 5) | {"schedule:s": "other"}
    assert await put(space, ALL, due=NOW + 9) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW - 5, ALL)
    assert await put(space, ALL, data="") == [1, NOW, 0]
    assert await space.snapshot() == {"schedules": {"s": ALL}, "ticks": {"s": NOW - 5.0}}
    assert await put(space, ALL, data="") == [0, NOW, 0]


@pytest.mark.parametrize(("due", "owed"), [(NOW - 5, 1), (NOW, 1), (NOW + 1, 0)])
async def test_another_interval_needs_a_due_time_and_the_reply_says_whether_a_tick_is_due(
    space: Space, due: int, owed: int
) -> None:
    await space.seed(plan("s", due))
    assert await put(space, "1 once every 2000 -") == [-1, NOW, owed]
    assert await space.snapshot() == plan("s", due)
    assert await put(space, "1 once every 2000 -", due=NOW + 2000) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 2000, "1 once every 2000 -")


async def test_a_schedule_without_a_due_time_or_of_another_version_is_repaired(space: Space) -> None:
    await space.seed({"schedules": {"s": ONCE}, "schedule:s": data_of("s")})
    assert await put(space) == [-1, NOW, 0]
    assert await put(space, due=NOW + 7) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 7)
    await space.seed(plan("s", NOW - 7, "future"))
    assert await put(space) == [-1, NOW, 1]
    assert await put(space, due=NOW + 7) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 7)


# ----------------------------------------------------------------------------------------- declaring


async def test_a_declaration_without_a_due_time_stores_and_notes_nothing(space: Space) -> None:
    assert await declare(space, ONCE, None) == [-1, NOW, 0]
    assert await space.snapshot() == {}


async def test_a_declaration_is_noted_with_its_first_and_last_time(space: Space) -> None:
    assert await declare(space, ONCE) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 1) | noted((NOW, NOW, ONCE))
    await space.seed(noted((NOW - 500, NOW - 300, ONCE)))
    assert await declare(space, ONCE) == [0, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 1) | noted((NOW - 500, NOW, ONCE))


async def test_the_definition_that_was_declared_first_at_the_latest_time_counts(space: Space) -> None:
    newer = (NOW - 10, NOW - 9, ALL)
    await space.seed(plan("s", NOW + 5, ALL) | noted((NOW - 500, NOW - 60, ONCE), newer))
    assert await declare(space, ONCE, None) == [0, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 5, ALL) | noted(newer, (NOW - 500, NOW, ONCE))
    every = "1 once every 7 -"
    assert await declare(space, every) == [1, NOW, 0]
    assert await space.snapshot() == plan("s", NOW + 1, every) | noted(
        newer, (NOW - 500, NOW, ONCE), (NOW, NOW, every)
    )


@pytest.mark.parametrize(("last", "counts"), [(NOW - 300, 0), (NOW - 301, 1)])
async def test_a_definition_that_is_declared_no_more_is_forgotten(
    space: Space, last: int, counts: int
) -> None:
    await space.seed(plan("s", NOW + 5, ALL) | noted((NOW - 500, NOW, ONCE), (NOW - 400, last, ALL)))
    assert await declare(space, ONCE) == [counts, NOW, 0]


@pytest.mark.parametrize("order", [(ALL, ONCE), (ONCE, ALL)])
async def test_of_two_declarations_at_the_same_time_the_same_one_counts_in_any_order(
    space: Space, order: tuple[str, str]
) -> None:
    for definition in (*order, *order):
        await declare(space, definition)
    assert (await space.snapshot())["schedules"] == {"s": ONCE}


async def test_what_is_stored_by_hand_is_not_declared(space: Space) -> None:
    for data in (data_of("s"), "other"):
        await space.seed(plan("s", NOW + 5) | noted((NOW, NOW, ONCE)))
        await put(space, data=data)
        assert await space.snapshot() == plan("s", NOW + 5) | {"schedule:s": data}


@pytest.mark.parametrize(("last", "expired"), [(NOW - 60, 0), (NOW - 61, 1)])
async def test_a_schedule_that_is_declared_no_more_expires(space: Space, last: int, expired: int) -> None:
    state = plan("s", NOW - 5) | noted((NOW - 500, last, ONCE), (NOW - 400, NOW - 100, ALL))
    await space.seed(state | picture(waiting=["s@1"]))
    reply = await space.run("schedules_expire", cursor="0", keep_ms=60)
    assert reply == [b"0", *([b"s"] * expired)]
    assert await space.snapshot() == picture(waiting=["s@1"]) | ({} if expired else state)


async def test_a_schedule_that_was_stored_by_hand_never_expires(space: Space) -> None:
    await space.seed(plan("s", NOW - 5))
    assert await space.run("schedules_expire", cursor="0", keep_ms=0) == [b"0"]
    assert await space.snapshot() == plan("s", NOW - 5)


async def test_a_declared_schedule_can_be_dropped(space: Space) -> None:
    await space.seed(plan("s", NOW - 5) | noted((NOW, NOW, ONCE)))
    assert await space.run("schedule_drop", [("s",)]) == [1]
    assert await space.snapshot() == {}


# ------------------------------------------------------------------------------------------- looking


async def test_schedules_are_returned_with_their_data(space: Space) -> None:
    drawn = plan("s", NOW + 5)
    drawn["schedules"] = {"s": ONCE, "t": ALL}
    await space.seed(drawn)
    cursor, *shown = await space.run("schedules", cursor="0")
    assert cursor == b"0"
    data = data_of("s").encode()
    assert sorted(batched(shown, 5)) == [
        [b"s", ONCE.encode(), NOW + 5, len(data), data],
        [b"t", ALL.encode(), -1, 0, b""],
    ]
    _, *without = await space.run("schedules", cursor="0", max_bytes=len(data) - 1)
    assert [s[3:] for s in sorted(batched(without, 5))] == [[len(data), None], [0, b""]]
    assert await space.snapshot() == drawn


async def test_schedules_are_returned_in_steps_and_none_is_missed(space: Space) -> None:
    names = {f"s{n}": f"{ONCE} {'x' * 80}" for n in range(1000)}
    await space.seed({"schedules": names, "ticks": dict.fromkeys(names, 1.0)})
    cursor, steps, seen = b"0", 0, set()
    while cursor != b"0" or not steps:
        cursor, *shown = await space.run("schedules", cursor=cursor, count=50)
        steps += 1
        assert len(shown) <= 5 * 200
        seen |= {name.decode() for name in shown[::5]}
    assert seen == names.keys()
    assert steps > 5


async def test_due_schedules_are_returned_the_longest_due_first(space: Space) -> None:
    ticks = {"a": NOW, "b": NOW - 9, "c": NOW + 4, "d": NOW + 1, "gone": NOW - 1}
    await space.seed(
        {"schedules": dict.fromkeys("abcd", ONCE), "ticks": {k: float(v) for k, v in ticks.items()}}
    )
    once = ONCE.encode()
    b, gone, a = [b"b", NOW - 9, once], [b"gone", NOW - 1, None], [b"a", NOW, once]
    assert await space.run("ticks_due", start=0, count=9) == [NOW, 1, *b, *gone, *a]
    assert await space.run("ticks_due", start=0, count=1) == [NOW, 1, *b]
    assert await space.run("ticks_due", start=1, count=1) == [NOW, 1, *gone]
    assert await space.run("ticks_due", start=3, count=1) == [NOW, 1]
    assert await space.run("ticks_due", now_ms=NOW + 9, start=9, count=1) == [NOW + 9, -1]
    assert (await space.run("ticks_due", now_ms="", start=9))[0] > NOW, "the server's clock"


# ------------------------------------------------------------------------------------------- ticking


async def test_a_tick_adds_its_item_and_sets_the_next_time(space: Space) -> None:
    await space.seed(plan("s", NOW - 3) | picture(waiting=["w"]))
    assert await space.run("tick", [row(NOW - 3, "s@1", NOW + 997)]) == [1]
    after = plan("s", NOW + 997) | added("s@1") | picture(waiting=["w", "s@1"]) | {"item:s@1": data_of("s")}
    assert await space.snapshot() == after
    assert await space.run("tick", [row(NOW - 3, "s@1", NOW + 997)]) == [0], "once"
    assert await space.snapshot() == after


@pytest.mark.parametrize(
    "row_",
    [
        row(NOW - 4, "s@1", NOW + 1),
        row(NOW - 3, "s@1", NOW + 1, definition=ALL),
        row(NOW - 3, "s@1", NOW + 1, name="t"),
    ],
    ids=["another time", "another definition", "another schedule"],
)
async def test_a_row_is_ignored_if_the_schedule_is_not_as_it_was_read(
    space: Space, row_: tuple[Any, ...]
) -> None:
    assert await space.apply(plan("s", NOW - 3), "tick", [row_]) == ([0], plan("s", NOW - 3))


async def test_a_schedule_that_is_not_due_by_the_server_s_clock_adds_nothing(space: Space) -> None:
    await space.seed(plan("s", NOW + 1))
    assert await space.run("tick", [row(NOW + 1, "s@1", NOW + 1000)]) == [0]
    assert await space.snapshot() == plan("s", NOW + 1)
    assert await space.run("tick", [row(NOW + 1, "s@1", NOW + 1000)], now_ms=NOW + 1) == [1]


async def test_a_skipped_tick_only_sets_the_next_due_time(space: Space) -> None:
    assert await space.apply(plan("s", NOW), "tick", [row(NOW, "", NOW + 5)]) == ([2], plan("s", NOW + 5))


@pytest.mark.parametrize(
    "there",
    [
        picture(waiting=["s@1"]),
        picture(leased={"s@1": Held(3)}, fence=3),
        picture(scheduled={"s@1": NOW + 1}),
        {"item:s@1": ["of another type"]},
    ],
    ids=["waiting", "leased", "scheduled", "spoiled"],
)
async def test_a_tick_does_not_change_an_existing_item(space: Space, there: State) -> None:
    await space.seed(plan("s", NOW) | there)
    assert await space.run("tick", [row(NOW, "s@1", NOW + 5)]) == [2]
    assert await space.snapshot() == plan("s", NOW + 5) | there


async def test_an_item_that_two_rows_of_a_call_would_add_is_added_once(space: Space) -> None:
    drawn = plan("s", NOW)
    await space.seed(drawn | {"schedules": {"s": ONCE, "t": ONCE}, "ticks": dict.fromkeys("st", float(NOW))})
    rows = [row(NOW, "s@1", NOW + 5), row(NOW, "s@1", NOW + 5, name="t")]
    assert await space.run("tick", rows) == [1, 2]
    state = await space.snapshot()
    assert (state["queue"], state["ticks"]) == (["s@1"], {"s": NOW + 5.0, "t": NOW + 5.0})


async def test_bookkeeping_that_a_foreign_client_has_left_is_removed(space: Space) -> None:
    left = {k: v for k, v in picture(leased={"s@1": Held(2)}).items() if k != "item:s@1"}
    await space.seed(plan("s", NOW) | left | lease_keys("s@1", "foreign") | {"fence": "2"})
    assert await space.run("tick", [row(NOW, "s@1", NOW + 5)]) == [1]
    assert await space.snapshot() == plan("s", NOW + 5) | added("s@1") | {"fence": "2"}


async def test_a_schedule_without_data_adds_items_without_data(space: Space) -> None:
    await space.seed({"schedules": {"s": ONCE}, "ticks": {"s": float(NOW)}})
    assert await space.run("tick", [row(NOW, "s@1", NOW + 5)]) == [1]
    assert await space.run("tick", [row(NOW + 5, "s@1", NOW + 9)], now_ms=NOW + 5) == [2]
    after = picture(waiting=["s@1"]) | {"item:s@1": ""}
    assert await space.snapshot() == after | {"schedules": {"s": ONCE}, "ticks": {"s": NOW + 9.0}}


async def test_ticking_stops_before_the_limit_of_data(space: Space) -> None:
    await space.seed(plan("s", NOW - 2, ALL))
    size = len(data_of("s"))
    rows = [row(NOW - 2 + n, f"s@{n}", NOW - 1 + n, definition=ALL) for n in range(3)]
    assert await space.run("tick", rows, max_bytes=2 * size) == [1, 1, -2]
    assert await space.run("tick", rows[2:], max_bytes=size - 1) == [1], "the first is always added"
    assert await space.snapshot() == plan("s", NOW + 1, ALL) | added("s@0", "s@1", "s@2")


async def test_after_the_limit_of_data_no_row_is_applied(space: Space) -> None:
    drawn = plan("s", NOW)
    drawn |= {"schedules": {"s": ONCE, "t": ONCE, "u": ONCE}, "ticks": dict.fromkeys("stu", float(NOW))}
    drawn["schedule:t"] = "much"
    await space.seed(drawn)
    rows = [row(NOW, f"{name}@1", NOW + 1, name=name) for name in "stu"]
    assert await space.run("tick", rows, max_bytes=len(data_of("s"))) == [1, -2, -2]
    after = drawn | added("s@1") | {"ticks": {"s": NOW + 1.0, "t": float(NOW), "u": float(NOW)}}
    assert await space.snapshot() == after
