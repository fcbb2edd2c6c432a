"""Limits and pauses: no item too many or too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import ME, NOW, Held, Space, items_of, listed, picture
from tests.lua.test_lanes import add, complete, lease, leases, row

if TYPE_CHECKING:
    from collections.abc import Iterable


async def limit(space: Space, **fields: object) -> None:
    """Set limits: `rate="<interval in µs>:<burst>"`, `concurrency=…`; `__` stands for `/`, `ALL` for `*`."""
    rows = [(name.replace("__", "/").replace("ALL", "*"), value) for name, value in fields.items()]
    assert (await space.run("set_limits", rows))[0] == 0


async def pause(space: Space, until: object = "inf", group: str = "") -> int:
    done: int
    done, *_ = await space.run("pause_queue", of_group=group, until_ms=until, reason="why")
    return done


async def granted(space: Space, times: Iterable[int], wanted: int = 100) -> list[int]:
    """Lease at these times (ms after NOW); return when each item was leased."""
    found: list[int] = []
    for at in times:
        found += [at] * len(await lease(space, wanted, now_ms=NOW + at))
    return found


def exceeds(times: list[int], interval: float, burst: int) -> list[tuple[int, int]]:
    """Return between which times more was leased than a rate permits."""
    return [
        (first, last)
        for i, first in enumerate(times)
        for j, last in enumerate(times[i:], 1)
        if j > burst + (last - first) / interval
    ]


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize(("interval", "burst"), [(100, 1), (100, 5), (33, 3), (1000, 10)])
@pytest.mark.seed("GLD-B13", "GLD-B14")
async def test_a_rate_is_kept_exactly_over_any_window_and_used_up(
    space: Space, interval: int, burst: int, group: str
) -> None:
    """Neither drift nor windows of twice the rate: GCRA by the server's clock."""
    await add(space, *(row(f"i{n}", len(group), group) for n in range(100)))
    await limit(space, rate=f"{interval * 1000}:{burst}")
    step = interval // 4 + 1
    times = await granted(space, range(0, 30 * interval, step))
    assert exceeds(times, interval, burst) == []
    assert len(times) >= burst + (29 * interval - 2 * step) // interval - 1


async def test_a_lease_says_when_a_rate_permits_the_next_item(space: Space) -> None:
    await add(space, *(row(f"i{n}") for n in range(5)))
    await limit(space, rate="100000:2")
    reply = await space.run("lease_many", [(5, 60_000)])
    assert len(items_of(reply)) == 2
    assert reply[1] == 100
    assert (await space.run("lease_many", [(5, 60_000)], now_ms=NOW + 40))[1] == 60
    reply = await space.run("lease_many", [(5, 60_000)], now_ms=NOW + 100)
    assert len(items_of(reply)) == 1
    await lease(space, now_ms=NOW + 1_000)
    # Nothing waits any more: only a lease expires.
    assert (await space.run("lease_many", [(5, 60_000)], now_ms=NOW + 1_000))[1] == 59_000


async def test_groups_have_rates_of_their_own_and_do_not_hold_up_others(space: Space) -> None:
    await add(space, *(row(f"{group}{n}", 0, group) for n in range(5) for group in "abc"), row("p"))
    await limit(space, rate__ALL="1000000:1", rate__a="1000000:3")
    assert sorted(await lease(space)) == ["a0", "a1", "a2", "b0", "c0", "p"]
    assert await lease(space, now_ms=NOW + 999) == []
    assert sorted(await lease(space, now_ms=NOW + 1_000)) == ["a3", "b1", "c1"]


ENDS: dict[str, tuple[str, list[object], dict[str, object]]] = {
    "completed": ("complete_many", ["x", 1, 0], {}),
    "retried": ("fail_many", ["x", 1, 0, "why"], {}),
    "retried later": ("fail_many", ["x", 1, 9_000, "why"], {}),
    "dead": ("fail_many", ["x", 1, -1, "why"], {}),
    "released": ("release_many", ["x", 1, 0, 0], {}),
    "cancelled": ("cancel_many", ["x", 1_000], {}),
    "lease ended": ("end_leases", ["x", 1], {}),
    "session failed": ("fail_session", ["x"], {"worker": ME, "expired": 0, "connections": "", "ends": 0}),
    "expired": ("light_clean", [], {"now_ms": NOW + 60_000}),
    "added again": ("add_items", ["x", "other data", 5_000, "0"], {}),
}


@pytest.mark.parametrize("of", ["queue", "group", "shared"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_slot_is_free_however_a_lease_ends(space: Space, end: str, of: str) -> None:
    fields = {"queue": {"concurrency": 1}, "group": {"concurrency__g": 1}}
    await limit(space, **fields.get(of, {"shared": "pool", "shared__concurrency": 1}))
    await add(space, row("x", 0, "g"))
    assert await lease(space) == ["x"]
    await add(space, row("y", 0, "g"))
    assert await lease(space) == []
    await space.seed({"heartbeats": {ME: 1e15}})
    if end == "added again":
        await space.redis.delete(space.key("item:x"))  # as other clients complete
    script, values, arguments = ENDS[end]
    await space.run(script, [values], **arguments)
    now = NOW + 60_000 if end == "expired" else NOW
    assert len(await lease(space, now_ms=now)) == 1
    assert await lease(space, now_ms=now) == []


async def test_a_concurrency_limit_counts_the_leases_that_were_there_before(space: Space) -> None:
    await add(space, *(row(f"i{n}", 0, "g") for n in range(10)))
    before = await leases(space, 4)
    await limit(space, concurrency__g=3)
    assert await lease(space) == []
    await complete(space, before[:2])
    assert len(await lease(space)) == 1
    await limit(space, concurrency__g=5)
    assert len(await lease(space)) == 2
    await limit(space, concurrency__g="")
    assert len(await lease(space)) == 3


async def test_slots_are_not_lost_with_an_interrupted_call(space: Space) -> None:
    """Entries of items that are not leased are dropped when their time has come."""
    await add(space, *(row(f"i{n}", 0, "g") for n in range(3)))
    await limit(space, concurrency__g=1)
    await space.seed({"running:g": {"lost": NOW + 100.0}})
    assert await lease(space) == []
    assert await lease(space, now_ms=NOW + 99) == []
    await space.run("light_clean", now_ms=NOW + 100)
    assert await lease(space, now_ms=NOW + 101) == ["i0"]


async def test_a_paused_queue_leases_nothing_and_goes_on_in_its_order(space: Space) -> None:
    await add(space, *(row(f"i{n}") for n in range(3)), row("high", 5))
    assert await pause(space) == 1
    assert await lease(space) == []
    assert (await space.run("lease_many", [(1, 60_000)]))[1] == -1
    await add(space, row("later"))
    assert await lease(space) == []
    assert await space.run("counts") == [5, 0, 0, 0]
    assert await pause(space, "") == 1
    assert await pause(space, "") == 0
    assert await lease(space) == ["high", "i0", "i1", "i2", "later"]
    assert not {"control", "held", "levels"} & (await space.snapshot()).keys()


async def test_a_pause_with_an_end_ends_then(space: Space) -> None:
    await add(space, row("i"), row("g", 0, "g"))
    await pause(space, NOW + 500)
    await pause(space, NOW + 900, "g")
    reply = await space.run("lease_many", [(2, 60_000)])
    assert reply[1:] == [500, 0]
    reply = await space.run("lease_many", [(2, 60_000)], now_ms=NOW + 500)
    assert [one.id for one in items_of(reply)] == ["i"]
    assert reply[1] == 400
    assert await lease(space, now_ms=NOW + 900) == ["g"]


async def test_a_paused_group_leases_nothing_and_others_go_on(space: Space) -> None:
    await add(space, row("a1", 0, "a"), row("b1", 0, "b"), row("a2", 3, "a"), row("p"))
    await pause(space, group="a")
    assert sorted(await lease(space)) == ["b1", "p"]
    assert await lease(space) == []
    await pause(space, "", "a")
    assert await lease(space) == ["a2", "a1"]


async def test_ids_in_the_queue_and_in_inboxes_are_held_while_it_is_paused(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"]) | {f"inbox:{ME}": ["i"], "item:i": "x"})
    await pause(space)
    assert await lease(space) == []
    await space.redis.lpush(space.key("queue"), "foreign")
    await space.redis.set(space.key("item:foreign"), "x")
    assert await lease(space) == []
    state = await space.snapshot()
    assert {*listed(state["held"])} == {"a", "b", "i", "foreign"}
    await pause(space, "")
    assert {*await lease(space)} == {"a", "b", "i", "foreign"}


@pytest.mark.seed("GLD-B9")
async def test_ageing_lets_a_low_level_have_its_turn(space: Space) -> None:
    """Without ageing, a busy high level would starve the lower ones."""
    await add(space, *(row(f"low{n}", -2) for n in range(3)))
    await limit(space, ageing=1_000)
    order: list[str] = []
    for n in range(20):
        await add(space, row(f"high{n}", 2), now_ms=NOW + 500 * n)
        order += await lease(space, 1, now_ms=NOW + 500 * n)
    assert [one for one in order if one.startswith("low")] == ["low0", "low1"]
    assert order.index("low0") <= 10
    assert await lease(space, 1, now_ms=NOW + 10_000) == ["high18"]


@pytest.mark.seed("GLD-B9")
async def test_without_ageing_levels_are_strict(space: Space) -> None:
    await add(space, row("low", -9), *(row(f"high{n}", 9) for n in range(5)))
    for n in range(5):
        assert await lease(space, 1, now_ms=NOW + 10_000_000 * n) != ["low"]
        await space.run("add_items", [row(f"more{n}", 9)])


async def test_limits_come_and_go_in_one_step_however_long_the_queue_is(space: Space) -> None:
    ids = [f"i{n}" for n in range(5_000)]
    await space.seed(picture(waiting=ids))
    await limit(space, concurrency=2)
    assert (await space.run("counts"))[0] == 5_000
    given = await leases(space)
    assert [one.id for one in given] == ids[:2]
    await limit(space, concurrency="")
    assert listed((await space.snapshot())["queue"])[::-1] == ids[2:]
    assert await lease(space, 250) == ids[2:252]


async def test_limits_that_queues_share_count_the_leases_of_all(space: Space) -> None:
    other = Space(space.redis, f"{space.prefix}-2")
    for one in (space, other):
        await add(one, *(row(f"i{n}") for n in range(5)))
        await limit(one, shared="pool", shared__concurrency=3)
    first = await leases(space, 2)
    assert len(await lease(other)) == 1
    assert await lease(space) == []
    await complete(space, first[:1])
    assert len(await lease(other)) == 1
    assert await lease(space) == []
    for one in (space, other):
        await limit(one, shared="")
    assert not await space.redis.exists("pool:limits", "pool:queues", "pool:running")


async def sharers(space: Space, count: int, slots: int) -> list[Space]:
    """Return queues that share so many slots; in each a session waits."""
    spaces = [space, *(Space(space.redis, f"{space.prefix}-{n}") for n in range(1, count))]
    for one in spaces:
        await one.run("register", session="lh:waits", keep_ms=1_000_000)
        await limit(one, shared="pool", shared__concurrency=slots)
    return spaces


async def woken(spaces: Iterable[Space]) -> list[int]:
    """Return in which queues a session was woken, and have it lease."""
    found = [n for n, one in enumerate(spaces) if await one.redis.exists(one.key("queue"))]
    for n, one in enumerate(spaces):
        if n in found:
            await lease(one, 1, session="lh:waits", now_ms=NOW + 10)
    return found


@pytest.mark.seed("GLD-B14")
async def test_each_slot_that_becomes_free_wakes_the_queue_that_has_waited_longest(space: Space) -> None:
    spaces = await sharers(space, 4, 2)
    await add(space, row("first"), row("second"))
    held = await leases(space, 2)
    for at, n in enumerate((2, 1, 3, 0), 1):
        await add(spaces[n], row(f"a{n}"), row(f"b{n}", 1, "g"), now_ms=NOW + at)
    assert await woken(spaces) == [], "no slot is free"
    assert await space.run("complete_many", [("first", held[0].token, 0)], now_ms=NOW + 5) == [1]
    assert await woken(spaces) == [2]
    # One that waits in a paused queue is passed over, and so is one without a session.
    await pause(spaces[1])
    await spaces[3].run("leave", session="lh:waits", stays=0)
    rows = [("second", held[1].token, -1, "why")]
    assert await space.run("fail_many", rows, now_ms=NOW + 6) == [1]
    assert await woken(spaces) == [1], "it finds out that it may not lease"
    assert await woken(spaces) == [0]
    assert await woken(spaces) == []
    # All slots are freed at once by a new limit: each waiting queue has one session woken.
    await pause(spaces[1], "")
    await limit(spaces[3], shared__concurrency=9)
    assert await woken(spaces) == [0, 1, 2]


@pytest.mark.seed("GLD-B14")
async def test_a_slot_of_a_paused_queue_is_for_others_and_their_keys_cannot_fail_it(space: Space) -> None:
    spaces = await sharers(space, 3, 1)
    await add(space, row("first"))
    held = await leases(space)
    for one in spaces[1:]:
        await add(one, row("a"))
    await pause(space)
    await spaces[1].redis.delete(spaces[1].key("sessions"))
    await spaces[1].redis.set(spaces[1].key("sessions"), "not a sorted set")
    await complete(space, held)
    assert await woken(spaces[2:]) == [0]


@pytest.mark.seed("GLD-B14")
async def test_a_shared_rate_is_kept_by_all_together(space: Space) -> None:
    other = Space(space.redis, f"{space.prefix}-2")
    for one in (space, other):
        await add(one, *(row(f"i{n}") for n in range(50)))
        await limit(one, shared="pool", shared__rate="100000:2")
    times: list[int] = []
    for at in range(0, 2_000, 10):
        for one in (space, other):
            times += [at] * len(await lease(one, 3, now_ms=NOW + at))
    assert exceeds(times, 100, 2) == []
    assert len(times) >= 20
    for one in (space, other):
        await limit(one, shared="")


async def test_limits_are_read(space: Space) -> None:
    await limit(space, rate="5:6", concurrency__g=2, ageing=9)
    await pause(space, group="x")
    cursor, now, leased, *rest = await space.run("read_control", cursor="0")
    assert (cursor, now, leased) == (b"0", NOW, 0)
    assert dict(zip(rest[::2], rest[1::2], strict=True)) == {
        b"rate": b"5:6",
        b"concurrency/g": b"2",
        b"ageing": b"9",
        b"paused/x": b"inf %d why" % NOW,
        b"leased/g": b"0",
    }


async def test_a_held_item_with_a_group_obeys_the_limits_of_the_group(space: Space) -> None:
    """Such as one that was replaced while it waited."""
    await space.seed(
        picture(waiting=["a", "b"], leased={"x": Held(1)}, fence=1) | {"running:g": {"x": NOW + 60_000.0}}
    )
    await space.redis.hset(space.key("options"), "a", '{"group":"g"}')
    await limit(space, concurrency__g=1)
    assert await lease(space) == ["b"]
    assert await lease(space) == []
    assert (await space.run("counts"))[:2] == [1, 2]


async def test_one_of_the_waiting_sessions_asks_when_a_rate_permits_more(space: Space) -> None:
    """If it does not, another one does as soon as it registers; if it leaves, another one is woken."""
    for session in ("lh:1", "lh:2"):
        await space.run("register", session=session, keep_ms=10_000)
    await add(space, row("i0"), row("i1"))
    await limit(space, rate="100000:1")

    async def ask(session: str, at: int = 0) -> list[int]:
        _, wait, sessions, *_ = await space.run("lease_many", [(2, 60_000)], session=session, now_ms=NOW + at)
        return [wait, sessions]

    assert await ask("lh:1") == [100, -2]
    assert await ask("lh:2", 10) == [59_990, 2]
    assert await ask("lh:1", 20) == [80, -2]
    assert await ask("lh:unregistered", 20) == [59_980, 2]
    # It leaves: an id wakes another one.
    assert "queue" not in await space.snapshot()
    await space.run("leave", session="lh:1", stays=1, now_ms=NOW + 30)
    assert listed((await space.snapshot())["queue"]) == ["i1"]
    assert await ask("lh:2", 40) == [60, -2]
    # It does not ask in time.
    for at, wait in ((149, 59_851), (151, 0)):
        assert await space.run("register", session="lh:1", keep_ms=10_000, now_ms=NOW + at) == wait


async def test_another_session_asks_if_that_which_was_to_ask_is_failed(space: Space) -> None:
    for session in ("lh:1", "lh:2"):
        await space.run("register", session=session, keep_ms=100_000)
    await space.redis.zadd(space.key("heartbeats"), {"lh:1": NOW - 1.0})
    await add(space, row("i0"), row("i1"))
    await limit(space, rate="60000000:1")
    assert (await space.run("lease_many", [(2, 90_000)], session="lh:1"))[1:3] == [60_000, -2]
    assert "queue" not in await space.snapshot()
    failed = await space.run("fail_session", worker="lh:1", expired=1, connections="", ends=1, now_ms=NOW + 9)
    assert failed >= 0
    assert len(listed((await space.snapshot())["queue"])) == 1


async def test_a_cancelled_item_takes_no_slot_of_its_group(space: Space) -> None:
    await limit(space, concurrency__g=1)
    await add(space, row("x", 3, "g"), row("y", 0, "g"), row("low", -1))
    await space.run("cancel_many", [("x", 0)])
    given = await leases(space)
    assert [one.id for one in given] == ["y", "low"], "what is cancelled takes no slot"
    await complete(space, given)


async def test_an_id_that_comes_twice_takes_one_slot(space: Space) -> None:
    """As after another client has pushed it: what waits behind it is leased before a lower level is."""
    await limit(space, concurrency__g=2)
    await add(space, row("x", 3, "g"), row("y", 3, "g"), row("z", 3, "g"), row("low", -1))
    await space.redis.lpush(space.key("queue"), "x")
    first = await leases(space, 2)
    assert [one.id for one in first] == ["x", "y"]
    await complete(space, first[1:])
    await space.redis.lpush(space.key("queue"), "x")
    assert [one.id for one in await leases(space, 2)] == ["z", "low"]


async def test_an_item_that_is_replaced_while_it_waits_uses_up_no_slot_of_its_old_group(space: Space) -> None:
    await limit(space, concurrency__g=1)
    for n, how in enumerate(("replace", "cancel")):
        await add(space, row("x", 3, "g"))
        if how == "cancel":
            await space.run("cancel_many", [("x", 0)])
        assert await space.run("add_items", [("x", "new", 0, 2)]) == [1]
        await add(space, row(f"y{n}", 0, "g"))
        both = items_of(await space.run("lease_many", [(2, 60_000)]))
        assert {one.id for one in both} == {f"y{n}", "x"}
        await complete(space, both)
        assert not await space.redis.exists(space.key("running:g"))
