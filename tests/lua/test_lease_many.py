"""lease_many: which items it leases, which ids it drops, and its reply."""

from __future__ import annotations

import pytest

from tests.lua.space import ME, NOW, Held, Space, State, data_of, items_of, new, picture

MINUTE = (1, 60_000)


def inbox(session: str = ME) -> str:
    return f"inbox:{session}"


async def test_the_next_in_line_are_leased(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b", "c"]))
    reply = await space.run("lease_many", [(2, 60_000)])
    assert items_of(reply) == [("a", data_of("a"), 1, 1), ("b", data_of("b"), 2, 1)]
    assert reply[:3] == [NOW, -1, 0]
    assert await space.snapshot() == picture(waiting=["c"], leased={"a": Held(1), "b": Held(2)}, fence=2)


async def test_each_request_has_its_lease_time_and_requests_are_served_in_order(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b", "c", "d"], fence=10))
    reply = await space.run("lease_many", [(1, 30_000), (2, 90_000), (9, 60_000)])
    assert [given.id for given in items_of(reply)] == ["a", "b", "c", "d"]
    leases = {
        "a": Held(11, ends=NOW + 30_000),
        "b": Held(12, ends=NOW + 90_000),
        "c": Held(13, ends=NOW + 90_000),
        "d": Held(14, ends=NOW + 60_000),
    }
    assert await space.snapshot() == picture(leased=leases, fence=14)


async def test_the_lease_keys_live_as_long_as_the_lease(space: Space) -> None:
    await space.seed(picture(waiting=["a"]))
    await space.run("lease_many", [(1, 45_000)])
    for key in ("lease:a", "leased_by_session:a"):
        assert 30_000 < await space.redis.pttl(space.key(key)) <= 45_000


@pytest.mark.seed("RWQ-K2")
async def test_a_lease_may_last_one_millisecond(space: Space) -> None:
    await space.seed(picture(waiting=["a"]))
    assert [given.id for given in items_of(await space.run("lease_many", [(1, 1)]))] == ["a"]
    assert await space.redis.zscore(space.key("deadlines"), "a") == NOW + 1


@pytest.mark.seed("RRQ-O5", "RRQ-G1")
async def test_tokens_grow_and_attempts_count_within_an_incarnation(space: Space) -> None:
    await space.seed(picture(waiting=["a"], past={"a": Held(4, first=2, attempt=3)}, fence=8))
    assert items_of(await space.run("lease_many", [MINUTE])) == [("a", data_of("a"), 9, 4)]
    held = Held(9, first=2, attempt=4)
    assert await space.snapshot() == picture(leased={"a": held}, fence=9)


async def test_a_new_incarnation_begins_with_attempt_1_and_a_greater_token(space: Space) -> None:
    for token in (1, 2, 3):
        await space.run("add_items", [new("a")])
        assert items_of(await space.run("lease_many", [MINUTE])) == [("a", data_of("a"), token, 1)]
        assert await space.run("complete_many", [("a", token, 0)]) == [1]
        assert await space.snapshot() == picture(fence=token)


async def test_large_tokens_stay_exact(space: Space) -> None:
    large = 2**53 - 3
    await space.seed(picture(waiting=["a", "b"], fence=large))
    tokens = [given.token for given in items_of(await space.run("lease_many", [(2, 60_000)]))]
    assert tokens == [large + 1, large + 2]
    leases = {"a": Held(large + 1), "b": Held(large + 2)}
    assert await space.snapshot() == picture(leased=leases, fence=large + 2)
    assert await space.run("complete_many", [("a", large, 0), ("b", large + 2, 1)]) == [-1, 1]


async def test_the_session_s_inbox_comes_first(space: Space) -> None:
    await space.seed(picture(waiting=["b", "c"]) | {inbox(): ["a"], "item:a": data_of("a")})
    assert [given.id for given in items_of(await space.run("lease_many", [(2, 60_000)]))] == ["a", "b"]
    assert await space.snapshot() == picture(waiting=["c"], leased={"a": Held(1), "b": Held(2)}, fence=2)


async def test_the_inbox_of_another_live_session_is_left_alone(space: Space) -> None:
    other: State = {"sessions": {"lh:other": NOW + 1.0}, inbox("lh:other"): ["a"], "item:a": data_of("a")}
    assert await space.apply(other, "lease_many", [MINUTE]) == ([NOW, -1, 1], other)


@pytest.mark.seed("RWQ-G10", "RWQ-G12", "RWQ-B4", "RWQ-B9", "GLD-B16")
async def test_ghosts_are_dropped_and_never_reported_as_an_empty_queue(space: Space) -> None:
    await space.seed(picture(waiting=["b"]) | {"queue": ["g3", "b", "g2", "g1"], inbox(): ["g0"]})
    assert [given.id for given in items_of(await space.run("lease_many", [MINUTE]))] == ["b"]
    assert await space.snapshot() == picture(leased={"b": Held(1)}, fence=1) | {"queue": ["g3"]}


async def test_a_double_of_a_leased_item_is_dropped(space: Space) -> None:
    held = picture(waiting=["b"], leased={"a": Held(1)}, fence=1)
    await space.seed(held | {"queue": ["a", "b", "a"]})
    assert [given.id for given in items_of(await space.run("lease_many", [(9, 60_000)]))] == ["b"]
    assert await space.snapshot() == picture(leased={"a": Held(1), "b": Held(2)}, fence=2)


async def test_an_id_that_waits_twice_is_leased_once(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"]) | {"queue": ["a", "b", "a"], inbox(): ["b"]})
    assert [given.id for given in items_of(await space.run("lease_many", [(9, 60_000)]))] == ["b", "a"]
    assert await space.snapshot() == picture(leased={"b": Held(1), "a": Held(2)}, fence=2)


async def test_a_scheduled_item_that_a_foreign_client_put_into_the_list_is_not_leased_early(
    space: Space,
) -> None:
    scheduled = picture(scheduled={"a": NOW + 5_000})
    await space.seed(scheduled | {"queue": ["a"]})
    assert await space.run("lease_many", [MINUTE]) == [NOW, 5_000, 0]
    assert await space.snapshot() == scheduled


async def test_the_first_item_is_leased_whatever_its_size(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"]))
    reply = await space.run("lease_many", [(2, 60_000)], max_bytes=1)
    assert [given.id for given in items_of(reply)] == ["a"]
    assert reply[1] == 0, "there is more: call again"
    assert await space.snapshot() == picture(waiting=["b"], leased={"a": Held(1)}, fence=1)


async def test_leasing_stops_before_the_limit_of_data(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b", "c"]))
    two = 2 * len(data_of("a"))
    reply = await space.run("lease_many", [(3, 60_000)], max_bytes=two)
    assert [given.id for given in items_of(reply)] == ["a", "b"]
    assert await space.snapshot() == picture(waiting=["c"], leased={"a": Held(1), "b": Held(2)}, fence=2)


async def test_the_reply_has_the_number_of_sessions(space: Space) -> None:
    waiting: State = {"sessions": {ME: NOW + 1.0, "lh:other": NOW + 1.0}}
    assert await space.apply(waiting, "lease_many", [MINUTE]) == ([NOW, -1, 2], waiting)


@pytest.mark.parametrize(
    ("ends", "due", "wait"),
    [
        (NOW + 700, NOW + 900, 700),
        (NOW + 900, NOW + 700, 700),
        (NOW + 700, None, 700),
        (None, NOW + 1, 1),
        (NOW + 700.5, None, 700),
        (NOW + 0.5, None, 1),
        (None, None, -1),
    ],
)
async def test_the_wait_is_until_the_next_lease_ends_or_item_falls_due(
    space: Space, ends: float | None, due: float | None, wait: int
) -> None:
    before = picture(
        leased={} if ends is None else {"a": Held(1, ends=ends)}, scheduled={} if due is None else {"b": due}
    )
    assert await space.apply(before, "lease_many", [MINUTE]) == ([NOW, wait, 0], before)


async def test_1000_ids_are_checked_in_a_call_and_the_reply_asks_for_another(space: Space) -> None:
    ghosts = [f"g{i}" for i in range(2_500)]
    await space.seed(picture(waiting=["a"]) | {"queue": ["a", *ghosts]})
    assert await space.run("lease_many", [(5, 60_000)]) == [NOW, 0, 0]
    assert await space.redis.llen(space.key("queue")) == 1_501
    assert await space.run("lease_many", [(5, 60_000)]) == [NOW, 0, 0]
    assert [given.id for given in items_of(await space.run("lease_many", [(5, 60_000)]))] == ["a"]
    assert await space.snapshot() == picture(leased={"a": Held(1)}, fence=1)


async def test_items_before_one_whose_data_is_no_string_are_leased(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"]) | {"item:b": ["not", "a string"]})
    assert [given.id for given in items_of(await space.run("lease_many", [(2, 60_000)]))] == ["a"]
    after = picture(waiting=["b"], leased={"a": Held(1)}, fence=1) | {"item:b": ["not", "a string"]}
    assert await space.snapshot() == after
