"""Sets of leased items: leased once, read while they are held, completed, dropped; and their failures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis.exceptions import ResponseError

from tests.lua.space import NOW, Call, Expiring, Held, Space, State, batched, data_of, items_of, new, picture

#: The arguments of the scripts that name the stream.
STREAM: dict[str, object] = {"stream": "s", "reader": "r"}
SESSION = "lh:s"


async def lease(
    space: Space, number: int = 1, *, known: int = 0, count: int = 10, reader: str = "r", **more: object
) -> Any:
    arguments: dict[str, object] = {"set": f"s:{number}", "known": known, "count": count, "session": SESSION}
    arguments |= {"hold_ms": 60_000, "keep_ms": 600_000, "stream": "s", "reader": reader}
    return await space.run("lease_set", (), **arguments | more)


async def lease_new(space: Space, *item_ids: str) -> None:
    """Add items and lease them into the set `s:1`, with tokens from 1."""
    await space.run("add_items", [new(item_id) for item_id in item_ids])
    await lease(space)


async def read(space: Space, start: int = 0, **more: object) -> Any:
    return await space.run(
        "set_read", (), **STREAM | {"set": "s:1", "start": start, "peek": 0, "give_up": 1} | more
    )


async def hold(space: Space, *sets: tuple[str, int], reader: str = "r", take: int = 0) -> Any:
    return await space.run("stream_hold", sets, stream="s", reader=reader, take=take, keep_ms=600_000)


def ids_of(reply: list[Any]) -> list[str]:
    return [row[0].decode() for row in batched(reply[3:], 8)]


def drawn(entries: dict[str, int], *, waiting: list[str] | None = None) -> State:
    """Return the state of a queue with one set, of ids and their tokens."""
    leased = {item_id: Held(token, by=SESSION) for item_id, token in entries.items()}
    places = [f"{token} {item_id}" for item_id, token in entries.items()]
    state = picture(leased=leased, waiting=waiting or [], fence=max(entries.values()))
    return state | {"set:s:1": Expiring(places)}


async def test_the_next_in_line_are_leased_into_a_set(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b", "c"]))
    assert await lease(space, count=2) == [1, 0, 2, 1, 1]
    assert await space.snapshot() == drawn({"a": 1, "b": 2}, waiting=["c"])


async def test_an_existing_set_is_found_and_not_changed(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b", "c"]))
    await lease(space, count=2)
    before = await space.snapshot()
    assert await lease(space, count=5) == [1, 2, 2, 0, 1]
    assert await space.snapshot() == before


async def test_a_set_grows_only_from_what_the_caller_knows(space: Space) -> None:
    """So repeating a call whose reply was lost leases nothing twice."""
    await space.seed(picture(waiting=["a", "b", "c"]))
    await lease(space, count=1)
    assert await lease(space, known=1, count=1) == [1, 1, 2, 1, 1]
    assert await lease(space, known=1, count=1) == [1, 2, 2, 0, 1]
    assert await lease(space, known=2, count=9) == [1, 2, 3, 0, 0]
    assert await space.snapshot() == drawn({"a": 1, "b": 2, "c": 3})


async def test_an_empty_queue_gives_no_set(space: Space) -> None:
    assert await lease(space) == [1, 0, 0, 0, 0]
    assert await space.snapshot() == {}


async def test_due_items_are_reclaimed_first_and_ghosts_and_doubles_are_dropped(space: Space) -> None:
    state = picture(
        waiting=["a"], leased={"held": Held(1), "expired": Held(2, ends=NOW)}, scheduled={"due": NOW}, fence=2
    )
    listed = ["held", "ghost", "a"]
    await space.seed(state | {"queue": listed})
    assert await lease(space, count=9) == [1, 0, 3, 0, 0]
    assert ids_of(await read(space)) == ["a", "expired", "due"]
    assert (await space.snapshot())["set:s:1"] == Expiring(["3 a", "4 expired", "5 due"])


async def test_a_call_that_only_reclaims_asks_for_another(space: Space) -> None:
    due = {f"i{n}": Held(n + 1, ends=NOW) for n in range(600)}
    await space.seed(picture(leased=due, fence=600))
    assert await lease(space, count=0) == [1, 0, 0, 1, 500]
    assert await lease(space, count=0) == [1, 0, 0, 0, 600]


async def test_empty_data_odd_ids_and_large_data_are_leased_too(space: Space) -> None:
    odd = b"with spaces\n\x00 and \xff"
    await space.run("add_items", [(odd, b"", 0, 0), ("large", b"x" * 3_000_000, 0, 0)])
    assert await lease(space) == [1, 0, 2, 0, 0]
    rows = batched((await read(space))[3:], 8)
    assert [row[:4] for row in rows] == [[odd, 0, b"", 1], [b"large", 3_000_000, b"x" * 3_000_000, 2]]
    answers = await space.run("set_complete", [(odd, 1, 1), ("large", 2, 1)], **STREAM)
    assert answers == [1, 1, 1]


async def test_an_item_whose_data_is_no_string_ends_a_set(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"]) | {"item:b": ["a list"]})
    assert (await lease(space))[:3] == [1, 0, 1]
    with pytest.raises(ResponseError, match=r"WRONGTYPE .*item:b is no data"):
        await lease(space, known=1)


async def test_a_set_is_read_in_pages_by_count_and_by_bytes(space: Space) -> None:
    await lease_new(space, *"abcde")
    held = [b"a", 9, data_of("a").encode(), 1, 1, NOW + 60_000, NOW, None]
    assert await read(space, count=1) == [1, 1, NOW, *held]
    assert await read(space, count=1, max_bytes=-1) == [1, 1, NOW, *held[:2], None, *held[3:]]
    page = await read(space, max_bytes=20)
    assert (page[1], ids_of(page)) == (2, ["a", "b"])
    page = await read(space, 2, max_bytes=1)
    assert (page[1], ids_of(page)) == (1, ["c"])
    assert await read(space, 5) == [1, 0, NOW]


async def test_the_options_of_an_item_are_read_with_it(space: Space) -> None:
    await space.run("add_items", [("a", b"x", 0, b'0:{"level":3,"group":"g"}'), ("b", b"y", 0, 0)])
    await lease(space)
    rows = batched((await read(space))[3:], 8)
    assert [(row[0], row[7] and json.loads(row[7])) for row in rows] == [
        (b"a", {"level": 3, "group": "g"}),
        (b"b", None),
    ]


async def test_what_waits_in_lanes_is_counted_and_leased(space: Space) -> None:
    await space.run("add_items", [("b", b"y", 0, 0), ("a", b"x", 0, b'0:{"level":3}')])
    assert await lease(space, count=0) == [1, 0, 0, 0, 2]
    assert await lease(space) == [1, 0, 2, 0, 0]
    assert ids_of(await read(space)) == ["a", "b"]


async def test_an_item_that_is_not_held_any_more_is_given_up(space: Space) -> None:
    await lease_new(space, "done", "lost", "again", "back", "mine")
    await space.run("complete_many", [("done", 1, 0)])
    await space.run("release_many", [("lost", 2, 0, 0), ("again", 3, 0, 1), ("back", 4, 9_000, 0)])
    await space.run("lease_many", [(1, 60_000)])
    before = await space.snapshot()
    entries = (await read(space, peek=1))[3:]
    assert entries == [b"done", 1, b"lost", 2, b"again", 3, b"back", 4, b"mine", 5]
    assert await space.snapshot() == before
    page = await read(space)
    assert (page[1], ids_of(page)) == (5, ["mine"])
    assert await space.snapshot() == before | {"set:s:1": Expiring(["-", "-", "-", "-", "5 mine"])}
    assert await read(space, peek=1) == [1, 5, NOW, b"mine", 5]
    assert ids_of(await read(space)) == ["mine"]


async def renew(space: Space, start: int = 0, **more: object) -> Any:
    given = STREAM | {"set": "s:1", "start": start, "session": SESSION, "hold_ms": 60_000}
    return await space.run("set_renew", (), **given | more)


def deadlines_of(state: State) -> dict[str, float]:
    ends = state["deadlines"]
    assert isinstance(ends, dict)
    return {key: float(end) for key, end in ends.items()}


async def test_a_page_ends_before_an_item_that_is_not_held_and_not_given_up(space: Space) -> None:
    await lease_new(space, *"abc")
    await space.run("release_many", [("b", 2, 0, 0)])
    before = await space.snapshot()
    page = await read(space, give_up=0)
    assert (page[1], ids_of(page)) == (1, ["a"])
    assert await read(space, 1, give_up=0) == [1, -1, NOW]
    assert await read(space, 3, give_up=0) == [1, 0, NOW]
    assert await space.snapshot() == before


async def test_held_items_are_renewed_and_waiting_ones_are_leased_again_into_their_places(
    space: Space,
) -> None:
    await lease_new(space, "old", "back", "mine", "front", "young")
    await space.run("release_many", [("old", 1, 0, 1), ("back", 2, 0, 0), ("front", 4, 0, 1)])
    await space.run("add_items", [new("later")])
    assert await renew(space, count=0) == [1, 5, 0, 0, 0]
    assert await renew(space, now_ms=NOW + 5) == [1, 5, 5, 3, 0]
    expected = {
        "old": Held(6, ends=NOW + 60_005, by=SESSION, first=1, at=NOW + 5),
        "back": Held(7, ends=NOW + 60_005, by=SESSION, first=2, at=NOW + 5),
        "mine": Held(3, ends=NOW + 60_005, by=SESSION),
        "front": Held(8, ends=NOW + 60_005, by=SESSION, first=4, at=NOW + 5),
        "young": Held(5, ends=NOW + 60_005, by=SESSION),
    }
    places = Expiring(["6 old", "7 back", "3 mine", "8 front", "5 young"])
    state = await space.snapshot()
    assert [*state.pop("processing")] == ["front", "back", "old", "young", "mine"]  # pushed at this end
    drawn_state = picture(leased=expected, waiting=["later"], fence=8) | {"set:s:1": places}
    drawn_state.pop("processing")
    assert state == drawn_state
    assert await renew(space, 4, now_ms=NOW + 5) == [1, 5, 1, 0, 0]
    page = await read(space, give_up=0, now_ms=NOW + 5)
    assert ids_of(page) == ["old", "back", "mine", "front", "young"]


async def test_items_that_others_hold_are_not_leased_again(space: Space) -> None:
    names = ("done", "again", "held", "delayed", "theirs", "dead", "mine")
    await lease_new(space, *names)
    await space.run("complete_many", [("done", 1, 0), ("again", 2, 0)])
    await space.run("add_items", [new("again")])
    await space.run("release_many", [("held", 3, 0, 1), ("delayed", 4, 9_000, 0), ("theirs", 5, 0, 0)])
    await space.run("lease_many", [(1, 60_000)])
    await space.run("fail_many", [("dead", 6, -1, "error")])
    await space.redis.set(space.key("lease:theirs"), "foreign", px=60_000)
    before = await space.snapshot()
    assert await renew(space) == [1, 7, 1, 0, 6]
    before["deadlines"] = dict.fromkeys(("held", "mine", "theirs"), NOW + 60_000.0)
    state = await space.snapshot()
    state["deadlines"] = {key: round(end, -3) for key, end in deadlines_of(state).items()}  # it is watched
    assert state == before
    await space.redis.delete(space.key("lease:theirs"))
    await space.run("add_items", [new("x")])
    assert await renew(space) == [1, 7, 2, 1, 5]
    assert (await space.snapshot())["set:s:1"] == Expiring(
        ["1 done", "2 again", "3 held", "4 delayed", "9 theirs", "6 dead", "7 mine"]
    )


async def test_an_item_that_another_client_has_released_is_leased_again(space: Space) -> None:
    await lease_new(space, "a")
    await space.run("release_many", [("a", 1, 0, 0)])
    await space.run("lease_many", [(1, 60_000)])
    await space.run("release_many", [("a", 2, 0, 0)])
    assert await renew(space) == [1, 1, 1, 1, 0]
    assert await space.run("set_complete", [("a", 3, 1)], **STREAM) == [1, 1]
    await hold(space, ("s:1", 0))
    assert await space.snapshot() == {"fence": "3", "stream:s": Expiring({"reader": "r"})}


async def test_an_item_deep_in_the_queue_is_leased_again_and_its_id_is_dropped_when_it_is_found(
    space: Space,
) -> None:
    """The order of the other ids does not change."""
    await space.run("add_items", [new(f"i{n}") for n in range(3)])
    await lease(space)
    others = [f"o{n:05}" for n in range(9_000)]
    await space.run_all(
        Call("add_items", [new(item_id) for item_id in ids]) for ids in batched(others, 1_000)
    )
    young = [*reversed(others)]
    await space.run("release_many", [("i0", 1, 0, 0), ("i1", 2, 0, 1)])
    await space.redis.linsert(space.key("queue"), "BEFORE", young[4_500], "i2")
    await space.run("release_many", [("i2", 3, 0, 0)])
    await space.redis.lrem(space.key("queue"), 1, "i2")
    assert await renew(space) == [1, 3, 3, 3, 0]
    assert (await space.snapshot())["queue"] == [*young[:4_500], "i2", *young[4_500:]]
    leased = 0
    while leased < 9_000:
        leased += len(items_of(await space.run("lease_many", [(1_000, 60_000)])))
    assert await space.redis.exists(space.key("queue")) == 0
    assert await space.run("set_complete", [(f"i{n}", 4 + n, 1) for n in range(3)], **STREAM) == [1] * 4


async def test_pages_that_end_before_an_item_do_not_give_it_up(space: Space) -> None:
    await lease_new(space, *"abc")
    await space.run("release_many", [("c", 3, 0, 0)])
    assert ids_of(await read(space, max_bytes=1)) == ["a"]
    assert (await space.snapshot())["set:s:1"] == Expiring(["1 a", "2 b", "3 c"])


async def test_an_expired_lease_that_was_not_reclaimed_is_still_read_and_renewed(space: Space) -> None:
    await space.seed(picture(waiting=["a"]))
    await lease(space)
    later = {"now_ms": NOW + 99_000}
    assert ids_of(await read(space, **later)) == ["a"]
    reply = await space.run("renew_many", [("a", 1, 60_000)], session=SESSION, **later)
    assert reply == [NOW + 99_000 + 60_000]


async def test_a_set_that_is_renewed_late_uses_its_shared_slots_again(space: Space) -> None:
    """Other queues may have used them since the leases had expired."""
    await space.seed({"control": {"shared": f"{space.prefix}:pool"}})
    await lease_new(space, "a", "b")
    used = f"{space.prefix}:pool:running"
    before = await space.redis.zrange(used, 0, -1)
    assert len(before) == 2
    await space.redis.unlink(used)
    assert await renew(space, now_ms=NOW + 59_000) == [1, 2, 2, 0, 0]
    assert not await space.redis.exists(used)
    assert await renew(space, now_ms=NOW + 999_000) == [1, 2, 2, 0, 0]
    assert await space.redis.zrange(used, 0, -1) == before


async def test_an_item_that_was_read_is_completed_after_its_lease_has_expired(space: Space) -> None:
    await lease_new(space, "mine", "lost", "done")
    await space.run("release_many", [("lost", 2, 0, 0)])
    await space.run("complete_many", [("done", 3, 0)])
    rows = [("mine", 1, 0), ("lost", 2, 0), ("done", 3, 0)]
    assert await space.run("set_complete", rows, **STREAM) == [1, 1, 1, 0]
    assert await space.run("set_complete", rows, **STREAM) == [1, 0, 0, 0]
    assert await hold(space, ("s:1", 0)) == [1, 0]
    assert await space.snapshot() == {"fence": "3", "stream:s": Expiring({"reader": "r"})}


async def test_a_set_lives_as_long_as_it_is_held(space: Space) -> None:
    await space.seed(picture(waiting=["a"]))
    await lease(space, keep_ms=5_000)
    assert 0 < await space.redis.pttl(space.key("set:s:1")) <= 5_000
    await hold(space, ("s:1", 90_000))
    assert 80_000 < await space.redis.pttl(space.key("set:s:1")) <= 90_000
    assert 500_000 < await space.redis.pttl(space.key("stream:s")) <= 600_000


async def test_a_newer_reader_takes_over_and_the_older_is_rejected(space: Space) -> None:
    await space.run("add_items", [new(item_id) for item_id in "abc"])
    assert await hold(space, take=1) == [1, 3]
    await lease(space, count=1)
    assert await hold(space, reader="newer", take=1) == [1, 2]
    before = await space.snapshot()
    assert await hold(space, ("s:1", 0)) == [0, 2]
    assert await lease(space, 2) == [0, 0, 0, 0, 0]
    assert (await read(space))[:2] == [0, 0]
    assert await renew(space) == [0, 1, 0, 0, 0]
    assert await space.run("set_complete", [("a", 1, 1)], **STREAM) == [0]
    assert await space.snapshot() == before
    assert await lease(space, reader="newer") == [1, 1, 1, 0, 2]
    assert ids_of(await read(space, reader="newer")) == ["a"]


async def test_1000_items_are_leased_read_and_completed_in_a_call(space: Space) -> None:
    ids = [f"i{n}" for n in range(1_000)]
    await space.run("add_items", [new(item_id) for item_id in ids])
    assert await lease(space, count=1_000) == [1, 0, 1_000, 1, 0]
    page = await read(space, count=1_000)
    assert (page[1], ids_of(page)) == (1_000, ids)
    await space.run("release_many", [(item_id, token, 0, 0) for token, item_id in enumerate(ids, 1)])
    assert await renew(space, count=1_000) == [1, 1_000, 1_000, 1_000, 0]
    assert await renew(space, count=1_000) == [1, 1_000, 1_000, 0, 0]
    rows = [(item_id, token, 1) for token, item_id in enumerate(ids, 1_001)]
    assert await space.run("set_complete", rows, **STREAM) == [1] * 1_001
    await hold(space, ("s:1", 0))
    assert await space.snapshot() == {"fence": "2000", "stream:s": Expiring({"reader": "r"})}


async def test_the_moves_of_a_set_are_events(space: Space) -> None:
    await space.run("events_keep", count=100)
    await lease_new(space, "a")
    await renew(space)
    await space.run("release_many", [("a", 1, 0, 0)])
    await renew(space)
    await space.run("set_complete", [("a", 2, 1)], **STREAM)
    state = await space.snapshot()
    events = ["added a", "leased a", "renewed a", "released a", "leased a", "completed a"]
    assert state["events"] == events
    entries: Any = await space.redis.xrange(space.key("events"))
    assert entries[1][1][b"holder"] == SESSION.encode()
    assert entries[1][1][b"size"] == b"9"


KEY = "set:s:1:failures"


async def put(space: Space, *rows: tuple[str, str], reader: str = "r", anew: int = 0) -> Any:
    given = {"stream": "s", "reader": reader, "set": "s:1", "anew": anew, "keep_ms": 60_000}
    return await space.run("set_failures_put", rows, **given)


async def failures(space: Space, reader: str = "r") -> Any:
    """Read all steps."""
    found: dict[bytes, bytes] = {}
    cursor = b""
    while cursor != b"0":
        mine, cursor, *flat = await space.run(
            "set_failures", (), stream="s", reader=reader, set="s:1", cursor=cursor or "0", count=10
        )
        assert mine
        found |= dict(batched(flat, 2))
    return found


async def test_failures_are_recorded_in_steps_and_anew(space: Space) -> None:
    assert await put(space, ("a", "0 1 error"), ("b", "-1 2 "), anew=1) == 1
    assert await put(space, ("c", "9 3 two words")) == 1
    state = await space.snapshot()
    assert state == {KEY: Expiring({"a": "0 1 error", "b": "-1 2 ".rstrip(), "c": "9 3 two words"})}
    assert await failures(space) == {b"a": b"0 1 error", b"b": b"-1 2 ", b"c": b"9 3 two words"}
    assert await put(space, ("c", "0 3 other"), anew=1) == 1
    assert await failures(space) == {b"c": b"0 3 other"}
    assert await put(space, anew=1) == 1
    assert await space.snapshot() == {}


async def test_many_failures_are_read_in_steps(space: Space) -> None:
    rows = [(f"i{number}", f"{number} 0 {'x' * 100}") for number in range(700)]
    await put(space, *rows)
    assert await failures(space) == {item_id.encode(): value.encode() for item_id, value in rows}


async def test_only_the_reader_of_the_stream_records_and_reads(space: Space) -> None:
    await space.run("stream_hold", (), stream="s", reader="newer", take=1, keep_ms=60_000)
    await put(space, ("a", "0 1 error"), reader="newer", anew=1)
    before = await space.snapshot()
    assert await put(space, ("b", "0 1 error"), anew=1) == 0
    assert await space.snapshot() == before
    reply = await space.run("set_failures", (), stream="s", reader="r", set="s:1", cursor="0", count=10)
    assert reply[0] == 0
    assert await failures(space, reader="newer") == {b"a": b"0 1 error"}


async def test_failures_are_dropped_after_their_set(space: Space) -> None:
    await put(space, ("a", "0 1 error"))
    given: dict[str, Any] = {"stream": "s", "reader": "r", "take": 0, "keep_ms": 60_000}
    await space.run("stream_hold", [("s:1", 0), ("s:1:failures", 0)], **given)
    assert KEY not in await space.snapshot()
