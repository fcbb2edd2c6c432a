"""Failures of items of a set: recorded for its reader, read in steps, forgotten when recorded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import Expiring, batched

if TYPE_CHECKING:
    from tests.lua.space import Space

pytestmark = pytest.mark.core

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
