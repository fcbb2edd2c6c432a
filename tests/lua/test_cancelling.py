"""cancel_many, cancel_data and await_results: items end in any state, and holders and waiters are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import (
    MY_NOTE,
    NOW,
    SECRET,
    Expiring,
    Held,
    Letter,
    Space,
    State,
    data_of,
    new,
    picture,
    received,
    received_text,
)

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

HOUR = 3_600_000


def noted(**until: float) -> State:
    """Return the key of what was cancelled lately."""
    return {"cancelled": Expiring({item_id: float(NOW + ms) for item_id, ms in until.items()})}


async def cancel_data(space: Space, state: str, **limits: Any) -> Any:
    """Cancel items with the data `same`."""
    call = {"state": state, "cursor": "0", "count": 99, "at_most": 99, **limits}
    return await space.run("cancel_data", (), payload="same", keep_ms=0, **call)


@pytest.mark.seed("WRQ-E2", "GLD-O14")
async def test_an_item_is_cancelled_in_each_state(space: Space) -> None:
    await space.seed(
        picture(
            waiting=["w", "other"],
            leased={"l": Held(1), "stays": Held(2)},
            scheduled={"s": NOW + 9},
            past={"w": Held(3)},
            fence=3,
        )
        | {"errors": {"w": "an error"}, "progress": {"l": "0.5", "stays": "0.1"}, "result:w": "earlier"}
    )
    assert await space.run("cancel_many", [("w", HOUR), ("l", HOUR), ("s", HOUR), ("none", HOUR)]) == [
        1,
        1,
        1,
        0,
    ]
    after = picture(waiting=["other"], leased={"stays": Held(2)}, fence=3)
    assert await space.snapshot() == after | noted(w=HOUR, l=HOUR, s=HOUR) | {"progress": {"stays": "0.1"}}
    assert await space.run("cancel_many", [("w", HOUR), ("l", HOUR)]) == [0, 0]


async def test_an_id_that_is_given_twice_is_cancelled_once(space: Space) -> None:
    await space.seed(picture(waiting=["a"]))
    assert await space.run("cancel_many", [("a", 0), ("a", 0)]) == [1, 0]
    assert await space.snapshot() == {}, "and with a time of 0 nothing is kept"


@pytest.mark.seed("WRQ-B14")
@pytest.mark.parametrize("fenced", [0, 1])
async def test_of_a_cancellation_and_a_completion_one_is_accepted(space: Space, fenced: int) -> None:
    await space.seed(picture(leased={"a": Held(1), "b": Held(2)}, fence=2))
    assert await space.run("cancel_many", [("a", 0)]) == [1]
    assert await space.run("complete_many", [("a", 1, fenced), ("b", 2, fenced)]) == [0, 1]
    assert await space.run("cancel_many", [("b", 0)]) == [0]
    assert await space.snapshot() == {"fence": "2"}


async def test_what_the_holder_of_a_cancelled_item_does_is_rejected(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(1)}, fence=1))
    assert await space.run("cancel_many", [("a", HOUR)]) == [1]
    assert await space.run("renew_many", [("a", 1, 60_000), ("b", 1, 60_000)]) == [-1, 0]
    assert await space.run("fail_many", [("a", 1, -1, "error")]) == [0]
    assert await space.run("release_many", [("a", 1, 0, 1)]) == [0]
    assert await space.run("progress", [("a", 1, "1")]) == [0]
    assert await space.run("add_items", [new("a")]) == [1]
    assert await space.run("complete_many", [("a", 1, 0)]) == [-1], "it is a new incarnation"
    assert await space.snapshot() == picture(waiting=["a"], fence=1)


@pytest.mark.seed("WRQ-E2", "WRQ-B14")
async def test_the_holder_and_those_who_wait_are_told(space: Space, channel: PubSub) -> None:
    await space.seed(picture(leased={"an id": Held(7)}, waiting=["w"], fence=7))
    await space.run("await_results", [("an id",), ("w",)], keep_ms=15_000)
    assert await space.run("cancel_many", [("an id", 0), ("w", 0)]) == [1, 1]
    assert await received(channel) == b"cancel 7 an id"
    assert [await received_text(channel) for _ in range(2)] == [b"cancelled an id", b"cancelled w"]
    assert await space.snapshot() == {"fence": "7"}


async def test_an_id_deep_in_the_queue_stays_without_data_and_is_dropped(space: Space) -> None:
    ids = [f"{n}" for n in range(600)]
    await space.seed(picture(waiting=ids))
    assert await space.run("cancel_many", [(one, 0) for one in ids[250:350]]) == [1] * 100
    _, _, _, *leased = await space.run("lease_many", [(600, 60_000)])
    _, _, _, *more = await space.run("lease_many", [(600, 60_000)])
    assert [one.decode() for one in [*leased, *more][::4]] == ids[:250] + ids[350:]


async def test_who_waits_later_is_told_until_the_id_is_added_again(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b"]))
    assert await space.run("cancel_many", [("a", HOUR), ("b", HOUR)]) == [1, 1]
    asked = [("a",), ("b",)]
    assert await space.run("await_results", asked, keep_ms=15_000) == [3, b"", 3, b""]
    await space.run("add_items", [new("b")])
    assert (await space.run("await_results", asked, keep_ms=15_000))[::2] == [3, 0]
    later: dict[str, Any] = {"keep_ms": 15_000, "now_ms": NOW + HOUR}
    assert (await space.run("await_results", asked, **later))[::2] == [-1, 0]
    _, _, _, _, _, token, _ = await space.run("lease_many", [(1, 60_000)])
    assert await space.run("complete_many", [("b", token, 0)]) == [1]
    assert (await space.run("await_results", asked, keep_ms=15_000))[::2] == [3, -1]


async def test_what_was_cancelled_long_ago_is_forgotten(space: Space) -> None:
    await space.seed(picture(waiting=["a"]) | {"cancelled": {f"{n}": NOW - 1.0 for n in range(5)}})
    assert await space.run("cancel_many", [("a", HOUR)]) == [1]
    assert await space.snapshot() == {
        "cancelled": Expiring({"2": NOW - 1.0, "3": NOW - 1.0, "4": NOW - 1.0, "a": float(NOW + HOUR)})
    }


@pytest.mark.parametrize(
    ("state", "left"),
    [
        ("waiting", picture(waiting=["w2"], leased={"l": Held(1)}, scheduled={"s": NOW + 9}, fence=1)),
        ("leased", picture(waiting=["w1", "w2"], scheduled={"s": NOW + 9}, fence=1)),
        ("scheduled", picture(waiting=["w1", "w2"], leased={"l": Held(1)}, fence=1)),
    ],
)
async def test_items_of_a_state_with_equal_data_are_cancelled(space: Space, state: str, left: State) -> None:
    before = picture(waiting=["w1", "w2"], leased={"l": Held(1)}, scheduled={"s": NOW + 9}, fence=1)
    same: State = dict.fromkeys(("item:w1", "item:l", "item:s"), "same")
    await space.seed(before | same | {"item:w2": "near"})
    done, cursor, *ids = await cancel_data(space, state)
    assert (done, cursor, len(ids)) == (1, b"0", 1)
    expected = left | {key: data for key, data in same.items() if key in left} | {"item:w2": "near"}
    assert await space.snapshot() == expected


async def test_a_walk_over_waiting_items_misses_none_that_move_as_others_are_cancelled(space: Space) -> None:
    ids = [f"{n:03}" for n in range(700)]
    await space.seed(picture(waiting=ids) | {f"item:{one}": "same" for one in ids if one[-1] != "0"})
    found: list[str] = []
    done, cursor = 0, b"0"
    while not done:
        done, cursor, *some = await cancel_data(space, "waiting", cursor=cursor, count=50, at_most=50)
        found += [one.decode() for one in some]
    assert sorted(found) == [one for one in ids if one[-1] != "0"]


async def test_no_more_items_are_cancelled_than_asked_for(space: Space) -> None:
    await space.seed(picture(waiting=["a", "b", "c"]) | dict.fromkeys(("item:a", "item:b", "item:c"), "same"))
    _, _, *ids = await cancel_data(space, "waiting", at_most=2)
    assert ids == [b"c", b"b"]


async def test_progress_is_kept_of_the_current_holder_alone_until_the_item_ends(
    space: Space, channel: PubSub
) -> None:
    await space.seed(picture(leased={"a": Held(2, first=1)}, waiting=["w"], past={"w": Held(3)}, fence=3))
    await space.run("await_results", [("a",)], keep_ms=15_000)
    rows = [("a", 2, "0.5"), ("a", 1, "0.4"), ("w", 3, "1"), ("none", 4, "1"), ("a", 2, "x" * 1001)]
    assert await space.run("progress", rows) == [1, 0, 0, 0, 0]
    assert await received_text(channel) == b"progress 1 a0.5"
    assert (await space.snapshot())["progress"] == {"a": "0.5"}
    assert await space.run("await_results", [("a",)], keep_ms=15_000) == [0, b"0.5"]
    assert await space.run("release_many", [("a", 2, 0, 1)]) == [1]
    assert (await space.snapshot())["progress"] == {"a": "0.5"}
    assert await space.run("complete_many", [("a", 2, 0)]) == [1]
    assert "progress" not in await space.snapshot()


async def test_a_foreign_holder_finds_nothing_to_complete(space: Space) -> None:
    """It cannot be notified: its lease key is no session of ours."""
    await space.seed(
        {
            "item:a": data_of("a"),
            "processing": ["a"],
            "lease:a": Expiring("a-session"),
            "deadlines": {"a": NOW + 9.5},
        }
    )
    assert await space.run("cancel_many", [("a", 0)]) == [1]
    assert await space.snapshot() == {}


HELD = picture(leased={"a": Held(1), "b": Held(2)}, fence=2)
WATCHED: State = {"watchers": Expiring({"a": MY_NOTE, "b": f"{MY_NOTE} {SECRET}@lh:other"})}


async def test_each_state_of_an_item_has_its_answer(space: Space) -> None:
    before = picture(
        waiting=["w"], leased={"l": Held(1)}, scheduled={"s": NOW + 5}, dead={"d": Letter(1, error="bad")}
    )
    before |= {"result:r": Expiring("done"), "result:w": Expiring("of an earlier item")}
    rows = [(item_id,) for item_id in "wlsdru"]
    reply, after = await space.apply(before, "await_results", rows, keep_ms=15_000)
    assert reply == [0, b"", 0, b"", 0, b"", 2, b"bad", 1, b"done", -1, b""]
    assert after == before | {"watchers": Expiring(dict.fromkeys("wls", MY_NOTE))}


async def test_sessions_are_noted_once_each(space: Space) -> None:
    await space.apply(HELD, "await_results", [("a",), ("b",)], keep_ms=15_000)
    await space.run("await_results", [("b",)], keep_ms=15_000, session="lh:other")
    await space.run("await_results", [("b",)], keep_ms=15_000)
    assert await space.snapshot() == HELD | WATCHED


async def test_the_notes_of_items_that_another_client_has_ended_are_removed(space: Space) -> None:
    left = WATCHED | {"result:x": Expiring("done"), "watchers": Expiring(dict.fromkeys("abx", MY_NOTE))}
    _, after = await space.apply(left, "await_results", [("a",), ("x",)], keep_ms=15_000)
    assert after["watchers"] == Expiring({"b": MY_NOTE})


async def test_results_beyond_the_limit_are_asked_for_again(space: Space) -> None:
    before: State = {f"result:{n}": Expiring("x" * 600_000) for n in range(3)}
    reply, _ = await space.apply(before, "await_results", [("0",), ("1",), ("2",), ("3",)], keep_ms=15_000)
    assert reply[::2] == [1, 1, -2, -2]


@pytest.mark.parametrize(
    ("script", "rows", "ended"),
    [
        ("complete_many", [("a", 1, "0:5000:done"), ("b", 2, 0)], ["a", "b"]),
        ("complete_many", [("a", 0, 0), ("b", 2, 0)], ["b"]),
        ("fail_many", [("a", 1, -1, "bad"), ("b", 2, 0, "bad")], ["a"]),
        ("release_many", [("a", 1, 0, 0)], []),
    ],
)
async def test_each_session_that_waits_is_notified_of_an_end(
    space: Space, channel: PubSub, script: str, rows: list[tuple[object, ...]], ended: list[str]
) -> None:
    _, after = await space.apply(HELD | WATCHED, script, rows)
    for item_id in ended:
        assert await received(channel) == f"ended {SECRET} {item_id}".encode()
    assert await channel.get_message(timeout=0) is None
    left = after.get("watchers")
    watched = set(left.contents) if isinstance(left, Expiring) else set()
    assert watched == {"a", "b"} - set(ended)
