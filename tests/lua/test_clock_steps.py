"""A step of the server's clock: ahead for one call, and right again. What was stored then is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import NOW, Held, Space, State, data_of, items_of, new, picture

if TYPE_CHECKING:
    from collections.abc import Sequence


#: How far the clock is ahead, in ms: two hours.
STEP = 7_200_000
AHEAD = NOW + STEP


async def lease(space: Space, now_ms: int, count: int = 10, lease_ms: int = 1_000) -> list[str]:
    """Lease items; return their ids."""
    given: list[str] = []
    while True:
        reply = await space.run("lease_many", [(count - len(given), lease_ms)], now_ms=now_ms)
        given += [one.id for one in items_of(reply)]
        if reply[1] != 0 or len(given) == count:
            return given


async def wait(space: Space, now_ms: int, session: str = "lh:other") -> int:
    """Register a session that is about to wait; return in how many ms it has to ask."""
    asks_in: int = await space.run("register", session=session, keep_ms=10_000, now_ms=now_ms)
    return asks_in


async def check(space: Space, which: Sequence[str], now_ms: int) -> list[bytes]:
    """Check keys as `fsck` does; return the problems that were found."""
    found: list[bytes] = []
    scripts = {"deadlines": "fsck_leases", "sessions": "fsck_entries", "heartbeats": "fsck_entries"}
    for key in which:
        _, repairs = await space.run(scripts.get(key, "fsck_lanes"), which=key, now_ms=now_ms)
        found += repairs[::2]
    return found


@pytest.mark.parametrize("by", ["a waiting session", "a light clean", "fsck"])
@pytest.mark.parametrize("renewed", [False, True])
async def test_a_lease_that_was_given_ahead_ends_in_its_time(space: Space, by: str, *, renewed: bool) -> None:
    """Its holder has died. A renewal ahead finds the lease expired."""
    await space.run("add_items", [new("a")])
    began = NOW if renewed else AHEAD
    [token] = [one.token for one in items_of(await space.run("lease_many", [(1, 1_000)], now_ms=began))]
    if renewed:
        assert await space.run("renew_many", [("a", token, 1_000)], now_ms=AHEAD) == [AHEAD + 1_000]
    assert await lease(space, NOW + 5_000) == []

    if by == "a waiting session":
        assert await wait(space, NOW + 5_000) == 1_000
    elif by == "a light clean":
        await space.run("light_clean", now_ms=NOW + 5_000)
    else:
        assert await check(space, ["deadlines"], NOW + 5_000) == [b"wrong_lease_end"]
    await space.run("register", session="lh:other", keep_ms=10_000, now_ms=NOW + 5_500)
    assert await lease(space, NOW + 5_999) == []
    assert await lease(space, NOW + 6_001) == ["a"]


async def test_leases_in_time_are_left_alone(space: Space) -> None:
    """Also long ones, and one that was given when the clock was a little ahead."""
    held = {
        "long": Held(1, ends=NOW + STEP, at=NOW - 5),
        "ahead": Held(2, ends=NOW + STEP + 999, at=NOW + 999),
        "short": Held(3),
    }
    before = picture(leased=held, fence=3)
    await space.seed(before)
    await wait(space, NOW)
    await space.run("light_clean")
    assert await check(space, ["deadlines"], NOW) == []
    assert await space.snapshot() == before | {"sessions": {"lh:other": NOW + 10_000.0}}


async def test_a_lease_of_another_client_is_not_watched_for_longer_than_it_lasts(space: Space) -> None:
    """The client had taken the id, and had not leased it, when the clock was ahead. Then it died."""
    await space.seed({"item:a": data_of("a"), "processing": ["a"]})
    await space.run("light_clean", now_ms=AHEAD)
    assert (await space.snapshot())["deadlines"] == {"a": AHEAD + 2_000.5}
    await wait(space, NOW)
    assert await lease(space, NOW + 1) == ["a"]


async def test_an_item_in_no_list_is_restored_although_it_was_leased_ahead(space: Space) -> None:
    lost: State = {"item:a": data_of("a"), "ledger": {"a": Held(1, at=AHEAD).entry}}
    await space.seed(lost)
    assert (await space.run("deep_clean_restore", [("a",)], started_ms=NOW))[0] == 1


@pytest.mark.parametrize("by", ["a waiting session", "a clean"])
async def test_an_inbox_of_a_session_that_registered_ahead_is_returned(space: Space, by: str) -> None:
    await wait(space, AHEAD, "lh:dead")
    await space.seed({"item:a": data_of("a"), "inbox:lh:dead": ["a"]})
    if by == "a waiting session":
        await wait(space, NOW)
    else:
        assert await check(space, ["sessions"], NOW) == [b"endless_session"]
    assert await lease(space, NOW + 9_999) == []
    assert await lease(space, NOW + 10_001) == ["a"]


@pytest.mark.parametrize("field", ["rate", "rate/g", "rate/*", "shared/rate"])
async def test_a_rate_that_was_used_ahead_permits_more_in_its_time(space: Space, field: str) -> None:
    """Five at once, and one more each second."""
    fields = [("shared", "pool-{x}")] if field == "shared/rate" else []
    await space.run("set_limits", [*fields, (field, "1000000:5")])
    row = '0:{"group":"g"}' if "/" in field and not fields else "0"
    await space.run("add_items", [(f"i{n}", "x", 0, row) for n in range(30)])
    assert len(await lease(space, AHEAD)) == 5

    leased: list[int] = []
    for at in range(0, 12_000, 500):
        await wait(space, NOW + at)  # an id that wakes the session
        leased += [at] * len(await lease(space, NOW + at, lease_ms=60_000))
    # At the first look the burst counts as used up.
    assert leased[0] <= 1_500
    assert 10 <= len(leased) <= 12


async def test_levels_and_groups_that_were_served_ahead_have_their_turn(space: Space) -> None:
    await space.run(
        "add_items",
        [
            (f"{group}{n}", "x", 0, f'0:{{"group":"{group}","level":{level}}}')
            for group, level in (("a", 0), ("b", 1))
            for n in range(9)
        ],
    )
    assert len(await lease(space, AHEAD, count=3)) == 3
    await wait(space, NOW)
    await space.run("set_limits", [("concurrency/a", "5")])
    assert len(await lease(space, NOW + 1, count=15)) > 5
    levels = (await space.snapshot())["levels"]
    assert isinstance(levels, dict)
    assert max(map(float, levels.values())) < NOW + 1_000


@pytest.mark.parametrize("group", ["", "g"])
async def test_a_pause_that_was_begun_ahead_lasts_as_long_from_now_on(space: Space, group: str) -> None:
    await space.run("add_items", [("a", "x", 0, '0:{"group":"g"}')])
    await space.run("pause_queue", of_group=group, until_ms="+2000", reason="why not", now_ms=AHEAD)
    await (check(space, ["control"], NOW) if group else wait(space, NOW))
    assert await lease(space, NOW + 1_999) == []
    field = "paused/g" if group else "paused"
    assert (await space.snapshot())["control"] == {field: f"{NOW + 2000} 0{NOW} why not"}
    assert await lease(space, NOW + 2_001) == ["a"]


async def test_a_pause_until_a_time_is_left_alone(space: Space) -> None:
    await space.run("add_items", [new("a")])
    until = AHEAD + 60_000
    await space.run("pause_queue", of_group="", until_ms=str(until), reason="", now_ms=AHEAD)
    assert await lease(space, NOW + 60_001) == []
    assert await lease(space, until - 1) == []
    assert await lease(space, until) == ["a"]


async def declare(space: Space, interval: int, now_ms: int) -> int:
    """Declare a schedule for an hour; return whether the definition was stored."""
    reply = await space.run(
        "schedule_put",
        schedule="s",
        definition=f"1 skip every {interval} -",
        due_ms=now_ms + interval,
        data="",
        forget_ms=3_600_000,
        now_ms=now_ms,
    )
    return int(reply[0])


async def test_a_declaration_ahead_does_not_count_longer_than_a_newer_one(space: Space) -> None:
    assert await declare(space, 1_000, AHEAD) == 1
    assert await declare(space, 5_000, NOW) == 1
    assert await declare(space, 1_000, NOW + 1) == 0
    definitions = (await space.snapshot())["schedules"]
    assert definitions == {"s": "1 skip every 5000 -"}


async def test_a_declaration_ahead_is_forgotten_like_one_of_now(space: Space) -> None:
    assert await declare(space, 1_000, AHEAD) == 1
    assert await declare(space, 5_000, NOW) == 1
    assert await declare(space, 5_000, NOW + 1_000_000) == 0
    assert await declare(space, 1_000, NOW + 3_600_001) == 1


async def test_notes_from_ahead_are_removed_by_a_light_clean(space: Space) -> None:
    leases = {f"i{n}": Held(n) for n in range(1, 10)}
    await space.seed(picture(leased=leases, fence=9) | {"gone": {"x": AHEAD - 0.0}})
    await space.run("light_clean", count=3)
    assert "gone" not in await space.snapshot()
