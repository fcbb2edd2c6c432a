"""The cleaning scripts: what each call checks and repairs, that it can stop anywhere, and who cleans."""

from __future__ import annotations

import pytest

from leasequeue.keys import QueueKeys
from leasequeue.queue.cleaning import CHECKED
from tests.lua.space import ME, NOW, Expiring, Held, Space, State, data_of, items_of, lease_keys, picture


def pattern(space: Space) -> bytes:
    return QueueKeys(space.prefix, ME).data_pattern


async def test_an_empty_queue_needs_no_cleaning(space: Space) -> None:
    assert (await space.run("light_clean"))[:5] == [0, 0, 0, 0, 0]
    assert await space.run("deep_clean_walk", start=0) == []
    for which, script in CHECKED.items():
        assert await space.run(script, which=which) == [b"0", []]
    assert await space.snapshot() == {}


async def test_a_light_clean_leaves_our_own_work_alone(space: Space) -> None:
    leases = {"a": Held(1), "b": Held(2), "c": Held(3)}
    before = picture(waiting=["w"], leased=leases, scheduled={"s": NOW + 1}, fence=3)
    await space.seed(before)
    assert (await space.run("light_clean"))[:5] == [3, 0, 0, 0, 0]
    assert await space.snapshot() == before, "also the order of the list"


@pytest.mark.seed("RWQ-O13", "RWQ-G12")
async def test_a_light_clean_drops_entries_of_finished_items(space: Space) -> None:
    """A ghost, a noted entry, and the second of two."""
    held = picture(leased={"a": Held(1), "b": Held(2)}, fence=2)
    await space.seed(held | {"processing": ["b", "ghost", "a", "noted", "a"], "gone": {"noted": NOW - 5.0}})
    assert (await space.run("light_clean"))[:5] == [2, 0, 3, 0, 0]
    assert await space.snapshot() == held


async def test_a_noted_entry_stays_for_the_current_foreign_lease(space: Space) -> None:
    held = picture(leased={"a": Held(2), "b": Held(3)}, fence=3)
    await space.seed(held | {"processing": ["b", "a", "a"], "gone": {"a": NOW - 5.0}})
    assert (await space.run("light_clean"))[:5] == [2, 0, 1, 0, 0]
    assert await space.snapshot() == held


async def test_notes_without_entries_are_removed_with_the_last_entry(space: Space) -> None:
    await space.seed({"gone": {"a": NOW - 5.0, "b": NOW - 1.0}, "fence": "5"})
    assert (await space.run("light_clean"))[:5] == [0, 0, 0, 0, 0]
    assert await space.snapshot() == picture(fence=5)


async def test_a_light_clean_walks_in_steps_from_the_old_end_until_it_is_back_there(space: Space) -> None:
    leases = {f"i{n}": Held(n) for n in range(1, 11)}
    before = picture(leased=leases, fence=10)
    await space.seed(before)
    for _ in range(2):
        assert (await space.run("light_clean", count=5))[:5] == [10, 0, 0, 0, 0]
    assert await space.snapshot() == before


@pytest.mark.parametrize("count", [1, 1_000])
async def test_a_step_of_any_size_is_safe(space: Space, count: int) -> None:
    held = picture(leased={"a": Held(1)}, fence=1)
    await space.seed(held | {"processing": ["a", "ghost"]})
    assert (await space.run("light_clean", count=count))[2] == 1
    assert await space.snapshot() == held


@pytest.mark.seed("RWQ-G13")
async def test_the_scan_finds_ids_with_data_that_no_state_of_ours_explains(space: Space) -> None:
    before = picture(waiting=["w"], leased={"a": Held(1)}, scheduled={"s": NOW + 1}, fence=1)
    await space.seed(before | {"item:orphan": "x", "item:": "the id is empty"})
    now, cursor, *ids = await space.run("deep_clean_scan", pattern=pattern(space), cursor="0", count=1_000)
    assert (now, cursor) == (NOW, b"0")
    assert {*ids} == {b"w", b"orphan", b""}
    assert await space.snapshot() == before | {"item:orphan": "x", "item:": "the id is empty"}


@pytest.mark.seed("RWQ-T3")
async def test_the_scan_continues_from_its_cursor(space: Space) -> None:
    await space.seed({f"item:i{n}": "x" for n in range(2_500)})
    cursor, found = b"0", set[bytes]()
    while True:
        _, cursor, *ids = await space.run("deep_clean_scan", pattern=pattern(space), cursor=cursor, count=100)
        found |= {*ids}
        if cursor == b"0":
            break
    assert found == {b"i%d" % n for n in range(2_500)}


@pytest.mark.parametrize(("start", "ids"), [(0, "edc"), (2, "cba"), (3, "ba"), (5, ""), (9, "")])
async def test_the_walk_begins_at_the_young_end(space: Space, start: int, ids: str) -> None:
    await space.seed(picture(waiting=[*"abcde"]))
    walked = await space.run("deep_clean_walk", start=start, count=3)
    assert walked == [item_id.encode() for item_id in ids]


async def test_the_walk_includes_ids_in_inboxes(space: Space) -> None:
    sessions = {"lh:one": NOW + 1.0, "lh:two": NOW - 1.0}
    await space.seed(
        picture(waiting=["a"]) | {"sessions": sessions, "inbox:lh:one": ["b"], "inbox:lh:two": ["c"]}
    )
    assert {*await space.run("deep_clean_walk", start=0)} == {b"a", b"b", b"c"}
    assert await space.run("deep_clean_walk", start=500) == []


@pytest.mark.seed("RWQ-O14")
async def test_orphans_are_restored_to_the_end(space: Space) -> None:
    await space.seed(picture(waiting=["w"]) | {"item:a": data_of("a"), "item:b": data_of("b")})
    reply = await space.run("deep_clean_restore", [("a", "b")], started_ms=NOW)
    assert reply == [2, [b"lost_item", b"a", b"lost_item", b"b"]]
    assert await space.snapshot() == picture(waiting=["w", "a", "b"])


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(picture(leased={"a": Held(1)}, fence=1), id="leased"),
        pytest.param(picture(scheduled={"a": NOW + 1}), id="scheduled"),
        pytest.param(picture(fence=1), id="completed"),
        pytest.param(picture(waiting=["a"], past={"a": Held(1, at=NOW)}, fence=1), id="leased and returned"),
        pytest.param(
            picture(past={"a": Held(1, at=NOW)}, fence=1) | {"item:a": data_of("a"), f"inbox:{ME}": ["a"]},
            id="leased, returned, and in an inbox",
        ),
        pytest.param(picture(waiting=["a"]), id="restored by another cleaner"),
    ],
)
@pytest.mark.seed("RWQ-B7")
async def test_an_id_that_has_moved_since_the_clean_began_is_left_alone(space: Space, before: State) -> None:
    assert await space.apply(before, "deep_clean_restore", [("a",)], started_ms=NOW) == ([0, []], before)


async def test_an_orphan_that_was_leased_before_the_clean_began_is_restored(space: Space) -> None:
    past = {"a": Held(1, at=NOW - 1)}
    orphan = picture(past=past, fence=1) | {"item:a": data_of("a")}
    await space.seed(orphan)
    assert (await space.run("deep_clean_restore", [("a",)], started_ms=NOW))[0] == 1
    assert await space.snapshot() == picture(waiting=["a"], past=past, fence=1)


async def test_an_orphan_with_a_foreign_lease_is_watched(space: Space) -> None:
    before: State = {"item:a": data_of("a"), "lease:a": "foreign"}
    await space.seed(before)
    assert await space.run("deep_clean_restore", [("a",)], started_ms=NOW) == [0, []]
    assert await space.snapshot() == before | {"deadlines": {"a": NOW + 60_000.5}}


async def test_a_lease_key_of_ours_does_not_keep_an_orphan(space: Space) -> None:
    await space.seed({"item:a": data_of("a")} | lease_keys("a", "lh:dead"))
    assert (await space.run("deep_clean_restore", [("a",)], started_ms=NOW))[0] == 1
    assert (await space.snapshot())["queue"] == ["a"]


async def test_entries_of_the_ledger_without_data_or_lease_are_dropped(space: Space) -> None:
    leases = {"leased": Held(1), "leased, done by a foreign client": Held(2)}
    past = {"waits": Held(3), "done while it waited": Held(4)}
    before = picture(waiting=["waits"], leased=leases, past=past, fence=4)
    del before["item:leased, done by a foreign client"]
    await space.seed(before)
    assert await space.run("fsck_leases", which="ledger") == [
        b"0",
        [b"record_without_item", b"done while it waited"],
    ]
    ledger = {item_id: held.entry for item_id, held in {**leases, "waits": past["waits"]}.items()}
    assert await space.snapshot() == before | {"ledger": ledger}


async def test_a_long_ledger_is_walked_in_steps(space: Space) -> None:
    past = {f"i{n}": Held(n) for n in range(1, 3_001)}
    await space.seed(picture(past=past, fence=3_000))
    cursor, dropped, calls = b"0", 0, 0
    while calls == 0 or cursor != b"0":
        cursor, repairs = await space.run("fsck_leases", which="ledger", cursor=cursor, count=500)
        assert len(repairs) < 3_000, "one step is bounded"
        dropped, calls = dropped + len(repairs) // 2, calls + 1
    assert dropped == 3_000
    assert await space.snapshot() == picture(fence=3_000)


@pytest.mark.parametrize("entries", [["a"], ["a", "a"]])
async def test_an_entry_is_not_dropped_for_a_note_if_its_item_waits_nowhere(
    space: Space, entries: list[str]
) -> None:
    """A foreign client has taken the id after it was noted, and has not leased it yet."""
    before: State = {"item:a": data_of("a"), "processing": entries, "gone": {"a": NOW - 9.0}}
    await space.seed(before)
    await space.run("light_clean")
    state = await space.snapshot()
    assert (state["processing"], state["deadlines"]) == (["a"], {"a": NOW + 2000.5})
    await space.run("light_clean", now_ms=NOW + 2001)
    assert [given.id for given in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["a"]


MINUTE = 60_000


async def turn(space: Space, session: str = ME, *, deep: int = 0, every_ms: int = MINUTE) -> bool:
    """Call clean_turn."""
    return bool(await space.run("clean_turn", session=session, deep=deep, every_ms=every_ms))


async def test_the_client_that_cleaned_last_goes_on_and_others_leave_it_to_that(space: Space) -> None:
    assert await turn(space)
    assert not await turn(space, "lh:other")
    assert await turn(space)
    assert await space.snapshot() == {"cleaner": Expiring(ME)}


async def test_another_client_takes_over_when_that_has_missed_its_turns(space: Space) -> None:
    assert await turn(space)
    assert 1.9 * MINUTE < await space.send("PTTL", space.key("cleaner")) <= 2 * MINUTE
    await space.send("UNLINK", space.key("cleaner"))  # as the server does when that time has passed
    assert await turn(space, "lh:other")
    assert not await turn(space)


async def test_light_and_deep_cleans_are_apart(space: Space) -> None:
    assert await turn(space)
    assert await turn(space, "lh:other", deep=1)
    assert await space.snapshot() == {"cleaner": Expiring(ME), "deep_cleaner": Expiring("lh:other")}


async def test_a_client_that_cleans_more_often_takes_over(space: Space) -> None:
    assert await turn(space)
    assert await turn(space, "lh:often", every_ms=MINUTE // 4)
    assert not await turn(space)


@pytest.mark.parametrize("endless", [False, True])
async def test_a_time_that_cannot_be_blocks_no_client(space: Space, *, endless: bool) -> None:
    """After a step of the server's clock, or an edit by hand."""
    before: State = {"cleaner": "lh:gone"}
    await space.seed(before)
    if not endless:
        await space.send("PEXPIRE", space.key("cleaner"), 100 * MINUTE)
    assert await turn(space)
    assert await space.snapshot() == {"cleaner": Expiring(ME)}
