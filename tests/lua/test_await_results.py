"""Waiting for the ends of items: what has become of them, who waits, and who is notified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.space import ME, NOW, Expiring, Held, Letter, Space, State, picture, received

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub


HELD = picture(leased={"a": Held(1), "b": Held(2)}, fence=2)
WATCHED: State = {"watchers": Expiring({"a": ME, "b": f"{ME} lh:other"})}


async def test_each_state_of_an_item_has_its_answer(space: Space) -> None:
    before = picture(
        waiting=["w"], leased={"l": Held(1)}, scheduled={"s": NOW + 5}, dead={"d": Letter(1, error="bad")}
    )
    before |= {"result:r": Expiring("done"), "result:w": Expiring("of an earlier item")}
    rows = [(item_id,) for item_id in "wlsdru"]
    reply, after = await space.apply(before, "await_results", rows, keep_ms=15_000)
    assert reply == [0, b"", 0, b"", 0, b"", 2, b"bad", 1, b"done", -1, b""]
    assert after == before | {"watchers": Expiring(dict.fromkeys("wls", ME))}


async def test_sessions_are_noted_once_each(space: Space) -> None:
    await space.apply(HELD, "await_results", [("a",), ("b",)], keep_ms=15_000)
    await space.run("await_results", [("b",)], keep_ms=15_000, session="lh:other")
    await space.run("await_results", [("b",)], keep_ms=15_000)
    assert await space.snapshot() == HELD | WATCHED


async def test_the_notes_of_items_that_another_client_has_ended_are_removed(space: Space) -> None:
    left = WATCHED | {"result:x": Expiring("done"), "watchers": Expiring(dict.fromkeys("abx", ME))}
    _, after = await space.apply(left, "await_results", [("a",), ("x",)], keep_ms=15_000)
    assert after["watchers"] == Expiring({"b": ME})


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
        assert await received(channel) == f"ended {item_id}".encode()
    assert await channel.get_message(timeout=0) is None
    left = after.get("watchers")
    watched = set(left.contents) if isinstance(left, Expiring) else set()
    assert watched == {"a", "b"} - set(ended)
