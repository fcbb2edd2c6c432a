"""Leases of foreign clients are found and watched; what they remove makes no count or list of ours wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError

from tests.lua.space import (
    LONG,
    ME,
    NOW,
    Expiring,
    Held,
    Space,
    State,
    data_of,
    items_of,
    lease_keys,
    listed,
    picture,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


BOTH_NAMES = pytest.mark.parametrize("name", ["lease", "leased_by_session"])

#: When a lease key without an end is checked again.
IN_A_MINUTE = {"a": NOW + 60_000.5}


async def watched(space: Space, *, but: str = "") -> dict[str, float]:
    """Read the deadlines, and check that each foreign one lies on half a millisecond, where its key ends."""
    deadlines = (await space.snapshot())["deadlines"]
    assert isinstance(deadlines, dict)
    ends = {item_id: float(end) for item_id, end in deadlines.items()}
    foreign = [end for item_id, end in ends.items() if item_id != but]
    assert foreign
    assert all(end % 1 == 0.5 and NOW + LONG - 30_000 < end <= NOW + LONG + 0.5 for end in foreign)
    return ends


@BOTH_NAMES
async def test_a_waiting_item_with_a_foreign_lease_is_watched_instead_of_leased(
    space: Space, name: str
) -> None:
    lease: State = {f"{name}:a": Expiring("foreign")}
    await space.seed(picture(waiting=["a", "b"]) | lease)
    assert [given.id for given in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["b"]
    expected = picture(leased={"b": Held(1)}, fence=1) | lease | {"item:a": data_of("a")}
    assert await space.snapshot() == expected | {"deadlines": await watched(space, but="b")}


@BOTH_NAMES
async def test_a_foreign_lease_without_an_end_is_checked_again_after_a_minute(
    space: Space, name: str
) -> None:
    await space.seed(picture(waiting=["a"]) | {f"{name}:a": "foreign"})
    assert await space.run("lease_many", [(1, 60_000)]) == [NOW, 60_000, 0]
    watch: State = {"item:a": data_of("a"), f"{name}:a": "foreign", "deadlines": IN_A_MINUTE}
    assert await space.snapshot() == watch


@BOTH_NAMES
async def test_a_foreign_lease_is_watched_while_its_key_exists(space: Space, name: str) -> None:
    before: State = {"item:a": data_of("a"), "processing": ["a"], f"{name}:a": Expiring("foreign")}
    await space.seed(before | {"deadlines": {"a": NOW - 0.5}})
    await space.run("lease_many", [(1, 60_000)])
    assert await space.snapshot() == before | {"deadlines": await watched(space)}


async def test_an_item_returns_when_its_watched_lease_has_expired(space: Space) -> None:
    await space.seed({"item:a": data_of("a"), "processing": ["a"], "deadlines": {"a": NOW - 0.5}})
    assert (await space.run("light_clean"))[:5] == [0, 1, 0, 0, 0]
    assert await space.snapshot() == picture(waiting=["a"])


async def test_a_watched_item_is_free_when_a_foreign_client_has_returned_it(space: Space) -> None:
    await space.seed(picture(waiting=["a"]) | {"deadlines": IN_A_MINUTE})
    assert [given.id for given in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["a"]
    assert await space.snapshot() == picture(leased={"a": Held(1)}, fence=1)


async def test_a_double_of_a_watched_item_is_dropped_while_its_key_exists(space: Space) -> None:
    before: State = {"item:a": data_of("a"), "lease:a": Expiring("foreign"), "deadlines": IN_A_MINUTE}
    await space.seed(before | {"processing": ["a"], "queue": ["a"]})
    assert items_of(await space.run("lease_many", [(1, 60_000)])) == []
    assert await space.snapshot() == before | {"processing": ["a"]}


async def test_a_foreign_lease_on_an_expired_item_of_ours_is_watched(space: Space) -> None:
    """A foreign cleaner has returned it and a foreign worker has leased it before our script runs."""
    expired = picture(leased={"a": Held(1, ends=NOW - 1)}, fence=1)
    foreign = expired | lease_keys("a", "foreign")
    await space.seed(foreign)
    await space.run("light_clean")
    assert await space.snapshot() == foreign | {"deadlines": await watched(space)}


@pytest.mark.parametrize("holder", ["lh:another", "lh:scheduled", ME])
async def test_lease_keys_of_ours_do_not_prevent_a_lease(space: Space, holder: str) -> None:
    """Our leases expire by `deadlines`. A key that has outlived its lease is overwritten."""
    await space.seed(picture(waiting=["a"]) | lease_keys("a", holder))
    assert [given.id for given in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["a"]
    assert await space.snapshot() == picture(leased={"a": Held(1)}, fence=1)


@BOTH_NAMES
async def test_a_lease_key_that_is_no_string_is_no_lease(space: Space, name: str) -> None:
    """It must not raise an error: in the middle of a script that would lose other items."""
    before = picture(waiting=["b"]) | {f"inbox:{ME}": ["a"], "item:a": data_of("a")}
    await space.seed(before | {f"{name}:b": ["not", "a string"]})
    assert [given.id for given in items_of(await space.run("lease_many", [(2, 60_000)]))] == ["a", "b"]
    assert await space.snapshot() == picture(leased={"a": Held(1), "b": Held(2)}, fence=2)


#: Our token 1, whose holder is late; a foreign client holds the item now.
TAKEN = picture(leased={"a": Held(1, ends=NOW - 5)}, fence=1) | lease_keys("a", "foreign")


@pytest.mark.parametrize(
    ("script", "row", "refused"),
    [
        ("renew_many", ("a", 1, 60_000), 0),
        ("release_many", ("a", 1, 0, 1), 0),
        ("release_many", ("a", 1, 9_000, 0), 0),
        *(("fail_many", ("a", 1, delay, "an error"), 0) for delay in (-1, 0, 9_000)),
        ("complete_many", ("a", 1, 1), -1),
    ],
)
@pytest.mark.parametrize(
    "state",
    [TAKEN, TAKEN | {"deadlines": {"a": float(NOW)}}, TAKEN | {"deadlines": IN_A_MINUTE}],
    ids=["not yet met", "ended this very ms", "watched"],
)
async def test_our_late_worker_is_rejected_while_a_foreign_client_holds_the_item(
    space: Space, state: State, script: str, row: tuple[object, ...], refused: int
) -> None:
    assert await space.apply(state, script, [row]) == ([refused], state)


async def test_our_late_worker_can_still_complete_first(space: Space) -> None:
    await space.seed(TAKEN | {"deadlines": IN_A_MINUTE})
    assert await space.run("complete_many", [("a", 1, 0)]) == [1]
    assert await space.snapshot() == picture(fence=1)


@BOTH_NAMES
async def test_a_light_clean_watches_a_foreign_lease(space: Space, name: str) -> None:
    before: State = {"item:a": data_of("a"), "processing": ["a"], f"{name}:a": Expiring("foreign")}
    await space.seed(before)
    assert (await space.run("light_clean"))[:5] == [1, 0, 0, 1, 0]
    assert await space.snapshot() == before | {"deadlines": await watched(space)}
    assert (await space.run("light_clean"))[:5] == [1, 0, 0, 0, 0]


@pytest.mark.seed("RWQ-G13", "RWQ-B1", "RWQ-B5")
async def test_a_light_clean_leaves_an_entry_without_a_lease_alone_for_the_grace(space: Space) -> None:
    before: State = {"item:a": data_of("a"), "processing": ["a"]}
    await space.seed(before)
    assert (await space.run("light_clean", grace_ms=2_000))[:5] == [1, 0, 0, 1, 0]
    graced = before | {"deadlines": {"a": NOW + 2_000.5}}
    assert await space.snapshot() == graced
    assert (await space.run("light_clean", now_ms=NOW + 2_000))[:5] == [1, 0, 0, 0, 0]
    assert await space.snapshot() == graced
    assert (await space.run("light_clean", now_ms=NOW + 2_001))[:5] == [0, 1, 0, 0, 0]
    assert await space.snapshot() == picture(waiting=["a"])


async def test_the_lease_of_an_empty_id_is_left_alone_by_the_first_write_of_a_script(space: Space) -> None:
    """An id of another client may be empty. Without its entry in `deadlines` it would never be reclaimed."""
    before = picture(waiting=["a"], leased={"": Held(1, ends=NOW + 5)}, fence=1)
    await space.seed(before)
    await space.run("lease_many", [(1, 60_000)])
    assert await space.run("renew_many", [("a", 2, 60_000)]) == [NOW + 60_000]
    assert await space.run("fail_many", [("a", 2, 0, "")]) == [1]
    assert (await space.snapshot())["deadlines"] == {"": NOW + 5.0}
    reply = await space.run("lease_many", [(2, 60_000)], now_ms=NOW + 6)
    assert [given.id for given in items_of(reply)] == ["a", ""]


async def clean(space: Space, *, count: int = 100) -> None:
    """Walk once over `processing`, as `queue.light_clean` does."""
    length, *_, started_ms, _ = await space.run("light_clean", count=count, now_ms=NOW + 10)
    for _ in range(length // count + 1):
        await space.run("light_clean", count=count, started_ms=started_ms, now_ms=NOW + 20)
    await space.run("fsck_leases", which="ledger", now_ms=NOW + 20)


def rows(leases: dict[str, Held], ids: Iterable[str]) -> list[tuple[object, ...]]:
    return [(item_id, leases[item_id].token, 0) for item_id in ids]


async def test_notes_whose_entries_a_foreign_cleaner_has_removed_go_with_the_next_walk(space: Space) -> None:
    """They were kept for ever: later leases of the ids were not listed, and the counts stayed wrong."""
    leases = {f"i{n}": Held(n) for n in range(1, 401)}
    await space.seed(picture(leased=leases, fence=400))
    young = [*leases][200:]
    for item_id in young:
        await space.redis.lrem(space.key("processing"), 0, item_id)
    for item_id in reversed(young):
        assert await space.run("release_many", [(item_id, leases[item_id].token, 0, 1)]) == [1]
    again = items_of(await space.run("lease_many", [(200, 60_000)], now_ms=NOW + 5))
    assert [given.id for given in again] == young
    assert await space.run("counts") == [0, 400, 0, 0]
    assert {*listed((await space.snapshot())["processing"])} == {*leases}
    assert not await space.redis.exists(space.key("gone"))

    # The same with items that are completed: their notes match no entry.
    for item_id in young:
        await space.redis.lrem(space.key("processing"), 0, item_id)
    for given in reversed(again):
        assert await space.run("complete_many", [(given.id, given.token, 0)]) == [1]
    assert await space.redis.exists(space.key("gone"))
    await clean(space)
    assert not await space.redis.exists(space.key("gone"))
    assert await space.run("counts") == [0, 200, 0, 0]
    assert await space.run("complete_many", rows(leases, [*leases][:200])) == [1] * 200
    assert await space.snapshot() == picture(fence=600)


async def test_a_note_of_a_walk_s_time_stays(space: Space) -> None:
    leases = {f"i{n}": Held(n) for n in range(1, 301)}
    await space.seed(picture(leased=leases, fence=300) | {"gone": {"old": NOW - 1.0, "new": NOW + 1.0}})
    await space.run("light_clean", count=100, started_ms=NOW)
    assert (await space.snapshot())["gone"] == {"new": NOW + 1.0}


async def test_the_ledger_forgets_what_foreign_clients_complete_while_it_waits(space: Space) -> None:
    """A deep clean is not needed for that."""
    past = {item_id: Held(n) for n, item_id in enumerate("abc", 1)}
    state = picture(waiting=["a", "b", "c"], past=past, fence=3) | {"errors": {"a": "why", "b": "why"}}
    await space.seed({key: contents for key, contents in state.items() if key != "item:a"})
    await clean(space)
    left = await space.snapshot()
    assert left["ledger"] == {"b": past["b"].entry, "c": past["c"].entry}
    assert left["errors"] == {"b": "why"}


@pytest.mark.parametrize("name", ["lease", "leased_by_session"])
async def test_a_foreign_lease_on_a_due_item_is_honoured(space: Space, name: str) -> None:
    """A foreign cleaner has moved the item into the list before it was due."""
    keys = lease_keys("s", "a foreign session")
    theirs: State = {f"{name}:s": keys[f"{name}:s"]}
    due = picture(scheduled={"s": NOW - 1.0})
    del due["lease:s"]
    await space.seed(due | theirs)
    assert items_of(await space.run("lease_many", [(1, 60_000)])) == []
    after = await space.snapshot()
    assert after.keys() == {"item:s", "deadlines", f"{name}:s"}
    await space.redis.unlink(space.key(f"{name}:s"))
    later = await space.run("lease_many", [(1, 60_000)], now_ms=NOW + 10_000_000)
    assert [given.id for given in items_of(later)] == ["s"]


async def test_tokens_grow_when_the_fence_was_removed(space: Space) -> None:
    """What was leased before could never be completed: its new token was below its first."""
    await space.seed(picture(waiting=["a", "b"], past={"a": Held(9, first=7)}))
    [first, second] = items_of(await space.run("lease_many", [(2, 60_000)]))
    began = NOW * 1000  # above all tokens that were given, also of items that are completed
    assert (first.token, second.token) == (began + 1, began + 2)
    assert await space.run("complete_many", [("a", began + 1, 1), ("b", began + 2, 1)]) == [1, 1]
    assert await space.snapshot() == picture(fence=began + 2)


async def test_tokens_grow_when_the_fence_was_set_back(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"], past={"a": Held(9, first=7)}, fence=2))
    [first, second] = items_of(await space.run("lease_many", [(2, 60_000)]))
    assert (first.token, second.token) == (10, 11)


@pytest.mark.parametrize("stored", ["1.5", "-1", "99999999999999999999", ""])
async def test_a_fence_that_is_no_count_leases_nothing(space: Space, stored: str) -> None:
    """The command that adds to it would fail in the middle of the script."""
    await space.seed(picture(waiting=["a"]) | {"fence": stored})
    before = await space.snapshot()
    with pytest.raises(ResponseError, match="fence is not a number"):
        await space.run("lease_many", [(1, 60_000)])
    assert await space.snapshot() == before


async def test_a_token_of_the_ledger_that_is_no_count_does_not_end_the_lease_halfway(space: Space) -> None:
    absurd = {"ledger": {"a": "99999999999999999999 99999999999999999999 1 1"}}
    await space.seed(picture(waiting=["a"], fence=2) | absurd)
    [given] = items_of(await space.run("lease_many", [(1, 60_000)]))
    assert given.token == 3


async def test_an_error_is_kept_until_the_item_is_completed_or_begins_anew(space: Space) -> None:
    for end in ("complete", "die", "add"):
        await space.seed(picture(leased={"a": Held(1)}, fence=1))
        assert await space.run("fail_many", [("a", 1, 0, "first " + "x" * 2_000)]) == [1]
        [given] = items_of(await space.run("lease_many", [(1, 60_000)]))
        assert await space.run("fail_many", [("a", given.token, 0, "second")]) == [1]
        assert (await space.snapshot())["errors"] == {"a": "second"}
        assert (await space.run("find_many", [("a",)], which="living"))[-3] == b"second"
        [given] = items_of(await space.run("lease_many", [(1, 60_000)]))
        if end == "complete":
            assert await space.run("complete_many", [("a", given.token, 0)]) == [1]
        elif end == "die":
            assert await space.run("fail_many", [("a", given.token, -1, "last")]) == [1]
        else:
            assert await space.run("add_items", [("a", "data of a", 0, 1)]) == [1]
        assert "errors" not in await space.snapshot(), end
        await space.redis.unlink(space.key("queue"))
