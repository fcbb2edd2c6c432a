"""The chunks that runs of items emit: who may, what is kept and until when, what is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.lua.space import Held, picture, received_text

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub

    from tests.lua.space import Space

pytestmark = pytest.mark.core

#: An item under its second lease, and a second kept time.
LEASED = picture(leased={"a": Held(2, first=1, attempt=2)}, fence=2)
KEPT = 600_000


async def emit(space: Space, chunk: str, *, token: int = 2, kind: str = "emitted", maximum: int = 999) -> Any:
    """Emit one chunk for the item `a`."""
    [answer] = await space.run("emit_chunks", [("a", token, kind, KEPT, maximum, chunk)])
    return answer


async def read(space: Space, after: str = "0-0", *, kind: str = "emitted", item: str = "a") -> list[Any]:
    """Return the state and the texts of the chunks of an item after a place."""
    [[state, *values]] = await space.run("read_chunks", [(item, kind, after)])
    return [state, *(value.decode() for value in values[3::4])]


async def has_end(space: Space, key: str) -> bool:
    """Return whether a key has a time to live, which is then the one that was asked for."""
    left: int = await space.redis.pttl(space.key(key))
    assert left == -1 or KEPT - 300_000 < left <= KEPT
    return left > 0


async def test_chunks_are_kept_of_the_current_holder_alone_and_told_to_those_who_wait(
    space: Space, channel: PubSub
) -> None:
    await space.seed(LEASED)
    await space.run("await_results", [("a",)], keep_ms=15_000)
    rows = [
        ("a", 2, "emitted", KEPT, 999, "x"),
        ("a", 1, "emitted", KEPT, 999, "late"),
        ("b", 2, "emitted", 1, 9, ""),
    ]
    assert await space.run("emit_chunks", rows) == [1, 0, 0]
    assert await received_text(channel) == b"emitted a"
    assert await emit(space, "yz") == 1
    assert await space.run(
        "read_chunks", [("a", "emitted", "0-0"), ("a", "emitted", "2-33"), ("b", "logged", "1-1")]
    ) == [
        [1, b"2-33", b"2", b"2", b"x", b"2-67", b"2", b"2", b"yz"],
        [1, b"2-67", b"2", b"2", b"yz"],
        [0],
    ]
    assert (await space.snapshot())["options"] == {"a": f'{{"emitted":{KEPT}}}'}
    assert not await has_end(space, "emitted:a")


@pytest.mark.parametrize(
    ("script", "row"),
    [
        ("complete_many", ("a", 2, 0)),
        ("cancel_many", ("a", 0)),
        ("fail_many", ("a", 2, -1, "an error")),
        ("release_many", ("a", 2, 0, 1)),
        ("fail_many", ("a", 2, 5, "an error")),
    ],
)
async def test_chunks_have_a_time_to_live_once_the_item_has_ended_and_not_before(
    space: Space, script: str, row: tuple[object, ...]
) -> None:
    await space.seed(LEASED | {"options": {"a": '{"tags":["emitted\\":1"],"level":2}'}})
    assert [await emit(space, "x"), await emit(space, "y", kind="logged")] == [1, 1]
    assert await space.run(script, [row]) == [1]
    state = await space.snapshot()
    ended, is_dead = "item:a" not in state, "dead:a" in state
    assert [await has_end(space, f"{kind}:a") for kind in ("emitted", "logged")] == [
        ended,
        ended and not is_dead,
    ]
    assert ("a" in state.get("options", ())) != ended
    assert await read(space) == [1, "x"]
    if is_dead:
        dead = state["dead:a"]
        assert isinstance(dead, dict)
        carried = json.loads(str(dead["options"]))
        assert carried == {"level": 2, "tags": ['emitted":1'], "logged": KEPT}
        assert await space.run("requeue_many", [("a",)]) == [1]
        assert [await read(space), await read(space, kind="logged")] == [[0], [1, "y"]]


async def test_the_log_of_a_dead_letter_is_kept_as_long_as_the_dead_letter(space: Space) -> None:
    await space.seed(LEASED)
    await emit(space, "why", kind="logged")
    assert await space.run("fail_many", [("a", 2, -1, "an error")]) == [1]
    assert await space.run("fsck_keys", pattern=f"{space.prefix}:*", count=100) == [b"0", []]
    await space.run("add_items", [("a", "data", 0, 0)])
    assert await read(space, kind="logged") == [0], "of another item with the id"
    await space.lease_all(1)
    assert await emit(space, "new", kind="logged", token=3) == 1
    assert await space.run("drop_many", [("a",)]) == [1]
    assert await read(space, kind="logged") == [1, "new"]
    assert await space.run("fail_many", [("a", 3, -1, "an error")]) == [1]
    assert await space.run("drop_many", [("a",)]) == [1]
    assert "logged:a" not in await space.snapshot()


async def test_the_last_chunk_of_a_cancelled_run_is_kept_unless_its_item_is_there_again(space: Space) -> None:
    await space.seed(LEASED)
    assert await space.run("cancel_many", [("a", KEPT)]) == [1]
    assert [await emit(space, "x", kind="logged"), await emit(space, "x")] == [1, 0]
    assert await has_end(space, "logged:a")
    assert await read(space, kind="logged") == [1, "x"]
    await space.run("add_items", [("a", "data", 0, 0)])
    assert await emit(space, "y", kind="logged") == 0


async def test_a_new_item_of_the_id_begins_its_own_stream(space: Space) -> None:
    await space.seed(LEASED)
    await emit(space, "old")
    await space.run("complete_many", [("a", 2, 0)])
    await space.run("add_items", [("a", "data", 0, 0)])
    assert [await read(space), await read(space, item="none")] == [[0], [0]]
    await space.lease_all(1)
    assert await emit(space, "", token=3) == 1, "what a run says that has emitted nothing"
    assert [await read(space), "emitted:a" in await space.snapshot()] == [[0], False]
    assert await emit(space, "new", token=3) == 1
    assert await read(space) == [1, "new"]
    assert not await has_end(space, "emitted:a")
    await space.run("add_items", [("a", "data", 0, 1)])
    assert "emitted:a" not in await space.snapshot(), "an item that is overwritten"


async def test_a_full_stream_drops_earlier_runs_then_refuses_and_a_log_drops_its_oldest(space: Space) -> None:
    await space.seed(LEASED)
    for text in ("a" * 30, "b" * 30):
        assert await emit(space, text, maximum=150) == 1
    assert await emit(space, "c" * 30, maximum=150) == -2
    await space.run("release_many", [("a", 2, 0, 1)])
    await space.lease_all(1)
    assert await emit(space, "d" * 30, token=3, maximum=150) == 1
    assert await read(space) == [1, "d" * 30]
    assert [await emit(space, "e" * 30, token=3, maximum=150), await emit(space, "", token=3, maximum=1)] == [
        1,
        1,
    ]
    assert await emit(space, "f", token=3, maximum=150) == -2
    for number in range(9):
        assert await emit(space, f"{number}" * 30, token=3, kind="logged", maximum=200) == 1
    assert await read(space, kind="logged") == [1, *(f"{number}" * 30 for number in range(6, 9))]
    assert await emit(space, "g" * 200, token=3, kind="logged", maximum=200) == -2


async def test_a_page_is_bounded(space: Space) -> None:
    await space.seed(LEASED)
    await space.run("emit_chunks", [("a", 2, "emitted", KEPT, 1 << 30, "x")] * 1000)
    pages, after = [], "0-0"
    while len(found := await read(space, after)) > 1:
        pages.append(len(found) - 1)
        [[_, *values]] = await space.run("read_chunks", [("a", "emitted", after)])
        after = values[-4].decode()
    assert pages == [512, 488]
    await space.run("emit_chunks", [("a", 2, "emitted", KEPT, 1 << 30, "y" * 60_000)] * 17)
    found = await space.run("read_chunks", [("a", "emitted", after)] * 3)
    assert [one[0] for one in found] == [1, 1, -2]


async def test_chunks_move_with_their_item(space: Space) -> None:
    await space.seed(LEASED)
    await emit(space, "x")
    await space.run("release_many", [("a", 2, 0, 1)])
    other = type(space)(space.redis, f"{space.prefix}-other")
    _, _, *moved = await other.run("move_items", source=space.prefix, spot="queue", left_out=0, count=9)
    assert moved == [b"a"]
    assert [await read(other), await read(space)] == [[1, "x"], [0]]
    await other.seed({"fence": "1"})
    [lease] = await other.lease_all(1)
    assert lease.token == 2, "as that of the chunk that there is"
    [answer] = await other.run("emit_chunks", [("a", lease.token, "emitted", KEPT, 999, "y")])
    assert [answer, await read(other)] == [1, [1, "x", "y"]]
    await space.redis.delete(*[key async for key in space.redis.scan_iter(other.key("*"))])


async def test_a_queue_that_is_purged_keeps_chunks_for_their_time_and_fsck_ends_those_of_no_item(
    space: Space,
) -> None:
    await space.seed(LEASED)
    await emit(space, "x")
    await space.run("release_many", [("a", 2, 0, 1)])
    pattern = space.key("*")
    assert await space.run("fsck_keys", pattern=pattern) == [b"0", []]
    await space.run("purge_queue", source="queue", count=9, purged=0)
    assert await has_end(space, "emitted:a")
    await space.redis.persist(space.key("emitted:a"))
    _, [kind, _] = await space.run("fsck_keys", pattern=pattern)
    assert kind == b"no_time_to_live"
    assert await space.redis.pttl(space.key("emitted:a")) > 0


async def test_the_log_of_a_dead_letter_goes_when_another_one_replaces_it(space: Space) -> None:
    await space.seed(LEASED)
    await emit(space, "why", kind="logged")
    assert await space.run("fail_many", [("a", 2, -1, "an error")]) == [1]
    await space.run("add_items", [("a", "data", 0, 0)])
    await space.lease_all(1)
    assert await space.run("fail_many", [("a", 3, -1, "an error")]) == [1]
    assert await read(space, kind="logged") == [0], "of another item with the id"
    assert "logged:a" not in await space.snapshot()
