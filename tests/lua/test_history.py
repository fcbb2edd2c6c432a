"""The history of a queue: scripts count in cells of a minute, an hour and a day, and never fail for it."""

from __future__ import annotations

import pytest

from tests.lua.space import NOW, Contents, Held, Space, State, picture

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
SPANS = {"minute": MINUTE, "hour": HOUR, "day": DAY}
COUNTED: State = {"events:keep": {"last": "7", "count": "0", "age_ms": "0", "live": "", "rollup": "1"}}
#: The slots of a cell.
ADDED, COMPLETED, FAILED, DIED, EXPIRED, RUNS, WAITS, OLDEST = 0, 1, 2, 3, 4, 5, 12, 19
#: The names of the keys that have the cells of `NOW`.
KEYS_NOW = ("rollup:minute:0", "rollup:hour:0", "rollup:day:0")


async def cells(space: Space, which: str = "minute", count: int = 1, now: int = NOW) -> list[dict[int, int]]:
    """Return the last cells: of each the numbers that are not 0, by their slots."""
    at, length, _, text = await space.run("history_read", which=which, cells=count, now_ms=now)
    assert (at, length, len(text)) == (now, SPANS[which], 100 * count)
    numbers = [int.from_bytes(text[at : at + 5], "big") for at in range(0, len(text), 5)]
    return [
        {slot: number for slot, number in enumerate(numbers[at : at + 20]) if number}
        for at in range(0, len(numbers), 20)
    ]


async def add(space: Space, now: int, *ids: str) -> None:
    assert await space.run("add_items", [(one, "x", 0, 0) for one in ids], now_ms=now) == [1] * len(ids)


async def test_each_change_is_counted_in_its_minute_hour_and_day(space: Space) -> None:
    held = {one: Held(token, at=NOW - 500) for token, one in enumerate("abcd", 1)}
    held["d"] = Held(4, ends=NOW - 1, at=NOW - 500)
    await space.seed(picture(leased=held, fence=4) | COUNTED)
    await add(space, NOW, "e", "f", "g")
    assert await space.run("complete_many", [("a", 1, 0), ("a", 1, 0), ("x", 1, 0)]) == [1, 0, 0]
    assert await space.run("fail_many", [("b", 2, 0, "e"), ("c", 3, -1, "e")]) == [1, 1]
    await space.lease_all(9)
    for which in SPANS:
        assert await cells(space, which) == [
            {ADDED: 3, COMPLETED: 1, FAILED: 2, DIED: 1, EXPIRED: 1, RUNS + 2: 3}
        ]


@pytest.mark.parametrize(
    ("ran", "place"),
    [
        *((0, 0), (10, 0), (11, 1), (100, 1), (101, 2), (1_000, 2), (10_000, 3), (10_001, 4)),
        *((60_000, 4), (60_001, 5), (600_000, 5), (600_001, 6), (-5, 0)),
    ],
)
async def test_a_run_is_counted_by_how_long_it_took(space: Space, ran: int, place: int) -> None:
    await space.seed(picture(leased={"a": Held(1, at=NOW - ran)}, fence=1) | COUNTED)
    await space.run("complete_many", [("a", 1, 0)])
    assert await cells(space) == [{COMPLETED: 1, RUNS + place: 1}]


@pytest.mark.parametrize("which", SPANS)
async def test_cells_are_read_in_order_over_several_keys(space: Space, which: str) -> None:
    span = SPANS[which]
    last_of_a_key = {"minute": 119, "hour": 47, "day": 63}[which] * span
    await space.seed(COUNTED)
    await add(space, last_of_a_key + span - 1, "a")
    await add(space, last_of_a_key + span, "b", "c")
    await add(space, last_of_a_key + 3 * span, "d")
    found = await cells(space, which, 5, last_of_a_key + 3 * span)
    assert found == [{}, {ADDED: 1}, {ADDED: 2}, {}, {ADDED: 1}]


async def test_the_time_of_each_call_says_which_cell_also_after_the_clock_has_gone_back(space: Space) -> None:
    await space.seed(COUNTED)
    await add(space, 10 * HOUR, "a", "b")
    await add(space, 9 * HOUR, "c")
    await add(space, 10 * HOUR, "d")
    assert await cells(space, "hour", 2, 10 * HOUR) == [{ADDED: 1}, {ADDED: 3}]


async def test_a_key_has_its_whole_size_and_its_time_to_live_from_the_first_cell_on(space: Space) -> None:
    await space.seed(COUNTED)
    await add(space, 0, "a")
    for key, size, kept in zip(
        KEYS_NOW, (6000, 2400, 3200), (2 * DAY + HOUR, 32 * DAY, 398 * DAY), strict=True
    ):
        assert await space.send("STRLEN", space.key(key)) == size
        left = await space.send("PTTL", space.key(key))
        await add(space, 1, f"again {key}")  # which changes no time to live
        assert kept - MINUTE < left <= kept
        assert await space.send("PTTL", space.key(key)) <= left


async def test_nothing_is_counted_while_it_is_off(space: Space) -> None:
    await space.seed(COUNTED)
    assert await space.run("events_keep", count="", age_ms="", rollup=0) == -1
    await add(space, NOW, "a")
    await sample(space, NOW)
    await sample(space, NOW + 5_000)
    assert not [key for key in await space.snapshot() if key.startswith(("rollup", "events"))]
    assert (await space.run("history_read", which="minute", cells=1))[2] == 0


async def test_counting_is_switched_beside_events(space: Space) -> None:
    assert await space.run("events_keep", count=100, age_ms="", rollup="") > 0
    assert await space.run("events_keep", count="", age_ms="", rollup=1) > 0
    assert (await space.run("history_read", which="day", cells=1))[2] == 1
    assert await space.run("events_keep", count=0, age_ms=0) > 0
    await add(space, NOW, "a")
    assert await cells(space) == [{ADDED: 1}]
    assert not await space.send("EXISTS", space.key("events"))
    assert await space.run("events_keep", count=100, age_ms="", rollup=0) > 0
    await add(space, NOW, "b")
    assert await space.send("XLEN", space.key("events")) == 1
    assert await cells(space) == [{ADDED: 1}]


async def test_a_reader_of_events_notices_those_that_were_only_counted(space: Space) -> None:
    last = await space.run("events_keep", count="", age_ms="", rollup=1)
    await add(space, NOW, "a", "b")
    assert await space.run("events_keep", count=100, age_ms="") == last + 2


async def test_a_number_stays_at_its_highest(space: Space) -> None:
    await space.seed(COUNTED)
    place = str(NOW // MINUTE * 100)
    await space.send("SETRANGE", space.key(KEYS_NOW[0]), place, b"\xff" * 5)
    await add(space, NOW, "a", "b")
    assert await cells(space) == [{ADDED: 2**40 - 1}]


@pytest.mark.parametrize("contents", ["", "x", "\xff" * 9_000, ["x"], {"x": "y"}, {"x": 1.0}])
async def test_what_another_client_has_written_there_disturbs_nothing(
    space: Space, contents: Contents
) -> None:
    seeded = picture(leased={"a": Held(1), "b": Held(2)}, waiting=["c"], fence=2) | COUNTED
    await space.seed(seeded | dict.fromkeys(KEYS_NOW, contents))
    assert await space.run("complete_many", [("a", 1, 0)]) == [1]
    assert await space.run("fail_many", [("b", 2, -1, "e")]) == [1]
    assert (await space.run("sample_queue", note=1))[:5] == [NOW, 1, 0, 0, 1]
    for which in SPANS:
        await cells(space, which, 300)
    if not isinstance(contents, str):
        assert await cells(space) == [{}]


async def sample(space: Space, now: int, every_ms: int | str = "") -> int | list[int]:
    found: int | list[int] = await space.run("sample_queue", note=1, now_ms=now, every_ms=every_ms)
    return found


async def test_a_sample_counts_waits_and_keeps_the_highest_age_of_the_oldest(space: Space) -> None:
    await space.seed(COUNTED)
    await add(space, NOW, "a", "b")
    for later in (0, 4_000, 9_000):
        await sample(space, NOW + later)
    await space.run("lease_many", [(2, 60_000)], now_ms=NOW + 9_500)
    await sample(space, NOW + 10_000)
    await add(space, NOW + 10_000, "c")
    for later in (10_500, 11_000):  # a lower age changes nothing
        await sample(space, NOW + later)
    for which in SPANS:
        [found] = await cells(space, which, 1, NOW + 11_000)
        assert found == {ADDED: 3, OLDEST: 9_000, WAITS + 3: 1}


async def test_a_sample_of_a_queue_in_which_nothing_waits_takes_no_memory(space: Space) -> None:
    await space.seed(COUNTED)
    await sample(space, NOW)
    assert not [key for key in await space.snapshot() if key.startswith("rollup")]


async def test_one_client_samples_within_a_time_and_none_if_nothing_is_counted(space: Space) -> None:
    await space.seed(picture(waiting=["a"]))
    assert await sample(space, NOW, 10_000) == 0
    assert await space.snapshot() == picture(waiting=["a"])
    await space.seed(COUNTED)
    assert await sample(space, NOW, 600_000) == 1
    assert await sample(space, NOW + 5_000, 600_000) == 1
    assert await cells(space, now=NOW + 5_000) == [{}]
    await space.send("PEXPIRE", space.key("sample"), 2_900_000)  # as 700 s later
    assert await sample(space, NOW + 5_000, 600_000) == 1
    assert await cells(space, now=NOW + 5_000) == [{OLDEST: 5_000}]
