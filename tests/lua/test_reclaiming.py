"""Leases that have expired are reclaimed first, with a limit per call; others are recovered or ended."""

from __future__ import annotations

import pytest

from tests.lua.space import ME, NOW, Held, Space, State, data_of, items_of, picture

END, FRONT = 0, 1

#: Two leases that have expired, in another order than they began, and one that has not.
EXPIRED = {"late": Held(1, ends=NOW), "early": Held(2, ends=NOW - 500), "held": Held(3, ends=NOW + 1)}
PAST = {item_id: held for item_id, held in EXPIRED.items() if item_id != "held"}


def with_inboxes(state: State, *, until: float, **inboxes: list[str]) -> State:
    """Add sessions that are alive until then, with ids in their inboxes."""
    drawn: State = {f"inbox:lh:{session}": ids for session, ids in inboxes.items() if ids}
    drawn |= {f"item:{item_id}": data_of(item_id) for ids in inboxes.values() for item_id in ids}
    return state | drawn | {"sessions": {f"lh:{session}": float(until) for session in inboxes}}


@pytest.mark.parametrize(
    ("return_front", "order"), [(END, ["w1", "w2", "early", "late"]), (FRONT, ["early", "late", "w1", "w2"])]
)
@pytest.mark.seed("RWQ-O17", "RWQ-G8", "RWQ-B6", "WRQ-G3", "WRQ-B1", "GLD-O7", "RRQ-G4")
async def test_expired_leases_are_reclaimed_in_the_order_of_their_ends(
    space: Space, return_front: int, order: list[str]
) -> None:
    await space.seed(picture(waiting=["w1", "w2"], leased=EXPIRED, fence=3))
    reply = await space.run("light_clean", return_front=return_front)
    assert reply[:5] == [1, 2, 0, 0, 0]
    assert await space.snapshot() == picture(
        waiting=order, leased={"held": EXPIRED["held"]}, past=PAST, fence=3
    )


async def test_a_lease_reclaims_before_it_leases(space: Space) -> None:
    await space.seed(picture(leased=EXPIRED, fence=3))
    reply = await space.run("lease_many", [(1, 60_000)])
    assert items_of(reply) == [("early", data_of("early"), 4, 2)]
    assert await space.snapshot() == picture(
        waiting=["late"],
        leased={"held": EXPIRED["held"], "early": Held(4, first=2, attempt=2)},
        past={"late": PAST["late"]},
        fence=4,
    )


async def test_an_expired_lease_of_an_item_that_a_foreign_client_completed_is_removed(space: Space) -> None:
    before = picture(waiting=["w"], leased={"a": Held(1, ends=NOW - 1)}, fence=1)
    del before["item:a"]
    _, after = await space.apply(before, "light_clean")
    assert after == picture(waiting=["w"], fence=1)


@pytest.mark.parametrize("return_front", [END, FRONT])
@pytest.mark.seed("GLD-O17", "GLD-B11")
async def test_due_items_go_to_the_end_in_the_order_of_their_times(space: Space, return_front: int) -> None:
    due = {"second": NOW, "first": NOW - 9, "not yet": NOW + 1}
    await space.seed(picture(waiting=["w"], scheduled=due))
    assert (await space.run("light_clean", return_front=return_front))[:5] == [0, 2, 0, 0, 0]
    assert await space.snapshot() == picture(waiting=["w", "first", "second"], scheduled={"not yet": NOW + 1})


async def test_a_scheduled_item_without_data_is_removed(space: Space) -> None:
    before = picture(scheduled={"a": NOW})
    del before["item:a"]
    await space.seed(before)
    await space.run("lease_many", [(1, 60_000)])
    assert (await space.snapshot()).keys() <= {"lease:a"}, "the lease key expires"


async def test_a_scheduled_item_that_is_leased_is_not_reclaimed(space: Space) -> None:
    leased = picture(leased={"a": Held(1)}, fence=1)
    await space.seed(leased | {"scheduled": {"a": NOW - 1.0}})
    assert (await space.run("light_clean"))[:5] == [1, 0, 0, 0, 0]
    assert await space.snapshot() == leased


async def test_the_inbox_of_an_expired_session_goes_to_the_front_in_order(space: Space) -> None:
    await space.seed(with_inboxes(picture(waiting=["w"]), until=NOW, dead=["b", "a"]))
    assert (await space.run("light_clean"))[:5] == [0, 2, 0, 0, 0]
    assert await space.snapshot() == picture(waiting=["a", "b", "w"])


async def test_ghosts_in_the_inbox_of_an_expired_session_are_dropped_when_they_are_leased(
    space: Space,
) -> None:
    before = with_inboxes(picture(), until=NOW, dead=["b", "ghost", "a"])
    del before["item:ghost"]
    await space.seed(before)
    await space.run("light_clean")
    assert await space.snapshot() == picture(waiting=["a", "b"]) | {"queue": ["b", "ghost", "a"]}
    assert [given.id for given in items_of(await space.run("lease_many", [(2, 60_000)]))] == ["a", "b"]
    assert (await space.snapshot()).keys() == picture(leased={"a": Held(1), "b": Held(2)}, fence=2).keys()


async def test_a_live_session_keeps_its_inbox(space: Space) -> None:
    before = with_inboxes(picture(), until=NOW + 1, alive=["a"])
    reply, after = await space.apply(before, "light_clean")
    assert (reply[:5], after) == ([0, 0, 0, 0, 0], before)


@pytest.mark.seed("WRQ-B2")
async def test_a_session_whose_registration_has_expired_still_leases_from_its_inbox(space: Space) -> None:
    before = picture() | {"sessions": {ME: NOW - 1.0}, f"inbox:{ME}": ["a"], "item:a": data_of("a")}
    await space.seed(before)
    assert [given.id for given in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["a"]
    assert await space.snapshot() == picture(leased={"a": Held(1)}, fence=1)


async def test_100_expired_leases_are_reclaimed_in_a_call_and_the_reply_asks_for_another(
    space: Space,
) -> None:
    leases = {f"i{n:03}": Held(n, ends=NOW - 1_000 + n) for n in range(1, 151)}
    ids = [*leases]
    await space.seed(picture(leased=leases, fence=150))
    assert (await space.run("light_clean"))[:5] == [50, 100, 0, 0, 1]
    still = {item_id: leases[item_id] for item_id in ids[100:]}
    past = {item_id: leases[item_id] for item_id in ids[:100]}
    assert await space.snapshot() == picture(waiting=ids[:100], leased=still, past=past, fence=150)
    assert (await space.run("light_clean"))[:5] == [0, 50, 0, 0, 0]
    assert await space.snapshot() == picture(waiting=ids, past=leases, fence=150)


async def test_100_due_items_are_reclaimed_in_a_call_and_the_reply_asks_for_another(space: Space) -> None:
    due = {f"i{n:03}": float(NOW - 1_000 + n) for n in range(150)}
    await space.seed(picture(scheduled=due))
    assert (await space.run("lease_many", [(1, 60_000)]))[1] == 0
    assert (await space.run("light_clean"))[1] == 50
    waiting = [*due][1:]
    assert await space.snapshot() == picture(waiting=waiting, leased={"i000": Held(1)}, fence=1)


async def test_100_ids_of_an_inbox_are_reclaimed_in_a_call_and_none_is_lost(space: Space) -> None:
    ids = [f"i{n:03}" for n in range(150)]
    await space.seed(with_inboxes(picture(), until=NOW - 1, dead=ids[::-1]))
    assert (await space.run("light_clean"))[:5] == [0, 100, 0, 0, 1]
    assert (await space.run("light_clean"))[:5] == [0, 50, 0, 0, 0]
    assert await space.snapshot() == picture(waiting=ids)


async def test_ten_inboxes_of_expired_sessions_are_reclaimed_in_a_call_and_the_reply_asks_for_another(
    space: Space,
) -> None:
    inboxes = {f"dead{n:02}": [f"i{n:02}"] for n in range(15)}
    await space.seed(with_inboxes(picture(), until=NOW - 1, **inboxes))
    assert (await space.run("light_clean"))[:5] == [0, 10, 0, 0, 1]
    assert (await space.run("light_clean"))[:5] == [0, 5, 0, 0, 0]
    # Each inbox goes to the front, so the ids of the last one are first.
    assert await space.snapshot() == picture(waiting=[f"i{n:02}" for n in range(14, -1, -1)])


@pytest.mark.seed("RRQ-B4")
async def test_an_item_that_comes_twice_is_leased_once(space: Space) -> None:
    before = picture(leased={"a": Held(1, at=NOW - 50, by="lh:dead"), "b": Held(2, by="lh:dead")}, fence=2)
    rows = [("a", 1), ("a", 1), ("b", 2), ("a", 1)]
    reply, after = await space.apply(before, "recover", rows, elapsed_ms=0, hold_ms=60_000)
    assert [(given.id, given.token, given.attempt) for given in items_of(reply)] == [("a", 3, 2), ("b", 4, 2)]
    assert reply[1] == 4
    held = {"a": Held(3, first=1, attempt=2), "b": Held(4, first=2, attempt=2)}
    assert after == picture(leased=held, fence=4)


@pytest.mark.seed("RRQ-K1", "RRQ-O5")
async def test_only_the_last_token_of_a_lease_that_is_old_enough_is_recovered(space: Space) -> None:
    before = picture(
        waiting=["w"],
        leased={"new": Held(5, at=NOW - 49), "again": Held(6, first=2, attempt=2, at=NOW - 90)},
        scheduled={"s": NOW + 9_000},
        past={"w": Held(3)},
        fence=6,
    )
    rows = [("new", 5), ("again", 2), ("w", 3), ("s", 1), ("none", 4)]
    reply, after = await space.apply(before, "recover", rows, elapsed_ms=50, hold_ms=60_000)
    assert reply[1:] == [5, 0]
    assert after == before


async def test_leases_are_ended_by_their_last_token_only(space: Space) -> None:
    before = picture(waiting=["w"], leased={"a": Held(1), "b": Held(4, first=2, attempt=2)}, fence=4)
    rows = [("b", 2), ("a", 1), ("a", 1), ("w", 0), ("a", 0)]
    reply, after = await space.apply(before, "end_leases", rows)
    assert reply == [0, 1, 0, 0, 0]
    expected = picture(
        waiting=["a", "w"], leased={"b": Held(4, first=2, attempt=2)}, past={"a": Held(1, by=ME)}, fence=4
    )
    assert after == expected
