"""A script that calls other scripts: for another queue, and for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from leasequeue.keys import QueueKeys
from leasequeue.wire.scripts import find_script
from lua.compose.composer import compose
from lua.compose.writer import Sources
from tests.lua.space import ME, NOW, Held, Space, encoded, picture

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: Completes an item of one queue and adds one to another, and answers what both scripts have answered.
SCRIPT = """\
-- Hand an item over.
-- Keys: ledger
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time
--   other   text     the other queue's name
--   rows    rest     id, token, …
-- Reply: the answers.
-- Cost: O(1).
-- Limits: one item.
-- Calls: add_items, complete_many

if redis.call('HLEN', ledger) == 0 then
  return redis.error_reply('NONE')
end
local id = ARGV[rows + 1]
local added = call_add_items(keys_at(other, keys_of_add_items), arguments_at(other, { id, 'more', '0', '0' }))
if added.err then
  return { added.err }
end
local row = arguments_at(prefix, { id, ARGV[rows + 2], '0' })
return { added[1], call_complete_many(keys_at(prefix, keys_of_complete_many), row)[1] }
"""
SOURCES = Sources.read()
HAND_OVER = compose("hand_over", {**SOURCES.scripts, "hand_over": SCRIPT}, SOURCES.library)


@pytest.fixture
def other(redis: Redis, name: str) -> Space:
    """Give an empty key space of a second queue in the same slot."""
    return Space(redis, f"{name}-other")


async def hand_over(space: Space, other: Space, token: int = 1, at: int = NOW) -> Any:
    keys = QueueKeys(space.prefix, ME)
    arguments = [space.prefix, at, other.prefix, "a", token]
    names = [keys[key] for key in HAND_OVER.keys]
    return await space.send("EVAL", HAND_OVER.body, len(names), *names, *map(encoded, arguments))


async def test_a_called_script_does_its_whole_step_on_another_queue(space: Space, other: Space) -> None:
    await space.seed(picture(leased={"a": Held(1)}, fence=1))
    assert await hand_over(space, other) == [1, 1]
    assert await space.snapshot() == {"fence": "1"}
    handed_over = await other.snapshot()
    await other.redis.delete(*[key async for key in other.redis.scan_iter(f"{other.prefix}:*")])
    assert await other.run("add_items", [("a", "more", 0, 0)]) == [1]
    assert handed_over == await other.snapshot() == {"item:a": "more", "queue": ["a"]}


async def test_a_repeated_call_changes_nothing(space: Space, other: Space) -> None:
    await space.seed(picture(leased={"a": Held(1), "b": Held(2)}, fence=2))
    assert await hand_over(space, other) == [1, 1]
    before = [await space.snapshot(), await other.snapshot()]
    assert await hand_over(space, other) == [0, 0]
    assert [await space.snapshot(), await other.snapshot()] == before


async def test_a_called_script_has_the_time_of_its_caller(space: Space, other: Space) -> None:
    await space.seed(picture(leased={"a": Held(1)}, fence=1))
    await other.seed({"recent": {"a": NOW + 10.0}})
    assert await hand_over(space, other) == [0, 1]
    await space.seed(picture(leased={"a": Held(1)}, fence=1))
    assert await hand_over(space, other, at=NOW + 20) == [1, 1]


async def test_an_error_that_a_called_script_returns_is_for_its_caller(space: Space, other: Space) -> None:
    await space.seed(picture(leased={"a": Held(1)}, fence=1))
    await other.seed({"control": {"closed": f"deleted {NOW}"}})
    [error] = await hand_over(space, other)
    assert error.startswith(b"QUEUEDELETED")
    assert "ledger" in await space.snapshot(), "the caller has returned before it completed the item"


async def test_an_error_of_a_command_ends_both(space: Space, other: Space) -> None:
    await space.seed(picture(leased={"a": Held(1)}, fence=1))
    await other.seed({"queue": "no list"})
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await hand_over(space, other)


def test_a_script_may_send_and_emit_what_those_that_it_calls_do() -> None:
    called = [find_script(name) for name in HAND_OVER.calls]
    assert {script.name for script in called} == {"add_items", "complete_many"}
    assert HAND_OVER.commands >= called[0].commands | called[1].commands
    assert HAND_OVER.events == called[0].events | called[1].events
