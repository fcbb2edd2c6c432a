"""Options of items: stored until the item ends; whether an id is taken, and when an item expires."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Lease
from leasequeue.queue.lease import StageRef
from tests.lua.space import NOW, Expiring, Held, Space, State, data_of, leased, picture, received_text

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub


def row(
    item_id: str, *, mode: int = 0, delay: int = 0, data: str = "", **options: object
) -> tuple[object, ...]:
    """Return a row that adds an item with options."""
    how = f"{mode}:{json.dumps(options)}" if options else f"{mode}"
    return (item_id, data or data_of(item_id), delay, how)


async def stored(space: Space, key: str) -> dict[str, str]:
    """Return the contents of a hash."""
    contents = (await space.snapshot()).get(key, {})
    assert isinstance(contents, dict)
    return {field: str(value) for field, value in contents.items()}


async def options(space: Space) -> dict[str, dict[str, object]]:
    """Return what is stored of options."""
    return {item_id: json.loads(text) for item_id, text in (await stored(space, "options")).items()}


async def test_options_are_stored_without_what_is_the_default(space: Space) -> None:
    rows = [
        row("a"),
        row("b", level=-3, group="grüppe/7"),
        row("c", expires_in=500, dedupe=9, delay=100),
        row("d", dedupe=9),
        row("e", mode=1, level=1),
    ]
    assert await space.run("add_items", rows) == [1] * 5
    assert await options(space) == {
        "b": {"level": -3, "group": "grüppe/7"},
        "c": {"expires": NOW + 500},
        "e": {"level": 1},
    }


async def test_an_item_that_is_added_again_has_the_options_of_the_last_row(space: Space) -> None:
    await space.run("add_items", [row("a", level=1), row("b", level=1), row("c", level=1)])
    await space.run("add_items", [row("a", mode=1, group="g"), row("b", mode=1), row("c", level=9)])
    assert await options(space) == {"a": {"group": "g"}, "c": {"level": 1}}


async def test_options_that_a_foreign_completion_left_are_not_those_of_the_next_item(space: Space) -> None:
    await space.seed({"options": {"a": '{"level":1}'}})
    await space.run("add_items", [row("a")])
    assert await space.snapshot() == picture(waiting=["a"])


async def test_options_stay_until_the_item_is_completed(space: Space) -> None:
    await space.run("add_items", [row("a", expires_in=9_000)])
    for end in ("release_many", "fail_many"):
        [lease] = await space.lease_all(1)
        await space.run(end, [("a", lease.token, 0, 0)])
        assert await options(space) == {"a": {"expires": NOW + 9_000}}
    [lease] = await space.lease_all(1)
    await space.run("complete_many", [("a", lease.token, 0)])
    assert await space.snapshot() == {"fence": "3"}


async def test_an_id_stays_taken_for_a_while(space: Space) -> None:
    window = 60_000
    assert await space.run("add_items", [row("a", dedupe=window), row("b")]) == [1, 1]
    for lease in await space.lease_all(2):
        await space.run("complete_many", [(lease.id, lease.token, 0)])
    assert (await space.snapshot())["recent"] == Expiring({"a": float(NOW + window)})
    again = [row("a"), row("b"), row("a", mode=2), row("a", dedupe=1)]
    assert await space.run("add_items", again, now_ms=NOW + window - 1) == [0, 1, 0, 0]
    assert await space.run("add_items", [row("a", mode=1)], now_ms=NOW + window - 1) == [1]
    [_, lease] = await space.lease_all(2)
    await space.run("complete_many", [(lease.id, lease.token, 0)])
    assert await space.run("add_items", [row("a")], now_ms=NOW + window) == [1]


async def test_ids_that_are_free_again_are_dropped_as_others_are_noted(space: Space) -> None:
    await space.seed({"recent": {f"{n}": NOW - 1.0 for n in range(5)}})
    hour = 3_600_000  # the key expires by the server's clock, which continues
    await space.run("add_items", [row("a", dedupe=hour)])
    assert len((await space.snapshot())["recent"].contents) == 4  # type: ignore[union-attr]
    await space.run("add_items", [row("b", dedupe=hour // 2)])
    left = {"4": NOW - 1.0, "a": float(NOW + hour), "b": float(NOW + hour // 2)}
    assert (await space.snapshot())["recent"] == Expiring(left)


async def test_unused_windows_cost_no_key(space: Space) -> None:
    await space.run("add_items", [row("a", level=1)])
    assert "recent" not in await space.snapshot()


async def test_an_item_deep_in_the_queue_is_replaced_where_it_waits(space: Space) -> None:
    waiting = [f"{number}" for number in range(601)]
    await space.seed(picture(waiting=waiting, past={"300": Held(7)}, fence=7))
    assert await space.run("add_items", [row("300", mode=2, data="new", level=2)]) == [1]
    after = picture(waiting=waiting, fence=7) | {"item:300": "new", "options": {"300": '{"level":2}'}}
    assert await space.snapshot() == after


@pytest.mark.parametrize("delay", [0, 9_000])
async def test_a_scheduled_item_is_replaced_with_its_delay(space: Space, delay: int) -> None:
    await space.seed(picture(scheduled={"a": NOW + 500}))
    assert await space.run("add_items", [row("a", mode=2, delay=delay, data="new")]) == [1]
    after = picture(scheduled={"a": NOW + 9_000}) if delay else picture(waiting=["a"])
    assert await space.snapshot() == after | {"item:a": "new"}


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(picture(leased={"a": Held(4)}, fence=4), id="ours"),
        pytest.param(picture(leased={"a": Held(4, ends=NOW - 1)}, fence=4), id="expired"),
        pytest.param({"item:a": "x", "processing": ["a"], "lease:a": Expiring("theirs")}, id="foreign"),
    ],
)
async def test_a_leased_item_is_not_replaced(space: Space, before: State) -> None:
    assert await space.apply(before, "add_items", [row("a", mode=2, level=1)]) == ([0], before)


async def test_replace_adds_what_is_not_there_and_the_last_of_equal_ids_wins(space: Space) -> None:
    rows = [row("a", mode=2, level=1), row("a", mode=2, data="new")]
    assert await space.run("add_items", rows) == [1, 1]
    assert await space.snapshot() == picture(waiting=["a"]) | {"item:a": "new"}


@pytest.mark.parametrize(
    "text", ["x", "[]", "7", '{"level":"high","group":7,"expires":"now"}', '{"level":99}']
)
async def test_options_that_cannot_be_read_end_no_script(space: Space, text: str) -> None:
    await space.seed(picture(waiting=["a"]) | {"options": {"a": text}})
    [lease] = await space.lease_all(1)
    assert await space.run("complete_many", [("a", lease.token, 0)]) == [1]


async def test_a_dead_letter_keeps_the_options_and_requeueing_restores_them(space: Space) -> None:
    await space.run("add_items", [row("a", level=4, group="g", expires_in=9_000), row("b")])
    for lease in await space.lease_all(2):
        await space.run("fail_many", [(lease.id, lease.token, -1, "why")])
    assert await options(space) == {}
    assert json.loads((await stored(space, "dead:a"))["options"]) == {"level": 4, "group": "g"}
    assert "options" not in await stored(space, "dead:b")
    await space.run("requeue_many", [("a",), ("b",)])
    assert await options(space) == {"a": {"level": 4, "group": "g"}}
    own = {"lanes", "levels", "turns:46", "turns:50", "held", "lease:a"}  # the queue is controlled now
    assert (await space.snapshot()).keys() - own == {"item:a", "item:b", "options", "fence"}


async def test_a_later_dead_letter_has_its_own_options(space: Space) -> None:
    for how in ({"level": 4}, {}, {"group": "g"}):
        await space.run("add_items", [row("a", **how)])
        [lease] = await space.lease_all(1)
        await space.run("fail_many", [("a", lease.token, -1, "why")])
        letter = await stored(space, "dead:a")
        assert json.loads(letter.get("options", "{}")) == how


async def test_a_light_clean_drops_what_is_left_of_items_that_are_gone(space: Space) -> None:
    text = '{"level":1}'
    await space.seed(
        picture(waiting=["a"])
        | {"options": {"a": text, "gone": text}, "recent": {"x": NOW - 1.0, "y": NOW + 9.0}}
    )
    await space.run("light_clean")
    repairs = await space.run("fsck_entries", which="options")
    assert repairs == [b"0", [b"fact_without_item", b"gone"]]
    after = picture(waiting=["a"]) | {"options": {"a": text}, "recent": {"y": NOW + 9.0}}
    assert await space.snapshot() == after


async def test_an_item_that_is_replaced_has_an_event_of_its_own(space: Space) -> None:
    await space.run("events_keep", count=100)
    await space.run("add_items", [row("a", level=1), row("a", mode=2)])
    await space.run("add_items", [row("a", mode=2, delay=500)])
    events = [one for one in await space.run("events_read", after="0") if isinstance(one, list)]
    assert [fields[1] for fields in events] == [b"added", b"replaced", b"replaced"]


TRACE = "00-1a-2b-01"


async def test_traces_of_leased_items_come_last_in_the_reply(space: Space) -> None:
    await space.run("add_items", [row("a", trace=TRACE), row("b"), row("c", trace=TRACE, expires_in=9_000)])
    reply = await space.run("lease_many", [(3, 1000)])
    assert reply[3::4] == [b"a", b"b", b"c", [TRACE.encode(), None, TRACE.encode()]]
    reply = await space.run("recover", [("a", 1), ("b", 2)], elapsed_ms=0, hold_ms=1000)
    assert reply[3::4] == [b"a", b"b", [TRACE.encode(), None]]


async def test_a_reply_without_a_trace_is_the_shorter_one(space: Space) -> None:
    await space.run("add_items", [row("a", level=1), row("b"), row("c", level=-1, trace=TRACE)])
    assert len(await space.run("lease_many", [(2, 1000)])) == 3 + 2 * 4


@pytest.mark.parametrize("written", ['{"trace":7}', '{"trace":"a b"}', '{"trace":null}', '{"trace"'])
async def test_a_trace_of_another_client_that_is_none_is_left_out(space: Space, written: str) -> None:
    await space.seed(picture(waiting=["a"]) | {"options": {"a": written}})
    assert len(await space.run("lease_many", [(1, 1000)])) == 3 + 4


async def test_a_dead_letter_keeps_the_trace_and_gives_it_back(space: Space) -> None:
    await space.run("add_items", [row("a", trace=TRACE, expires_in=5)])
    await space.run("lease_many", [(1, 1000)])
    await space.run("fail_many", [("a", 1, -1, "error")])
    assert json.loads((await stored(space, "dead:a"))["options"]) == {"trace": TRACE}
    assert await options(space) == {}
    await space.run("requeue_many", [("a",)])
    assert await options(space) == {"a": {"trace": TRACE}}


async def test_the_holder_of_an_item_of_a_group_gets_to_know_which(space: Space) -> None:
    reference = "home\0run\0"  # of the run itself
    await space.run(
        "add_items",
        [row("a", group="g"), row("b", group='"', trace=TRACE), row("c", group="g", run=reference)],
    )
    reply = await space.run("lease_many", [(3, 1000)])
    carried = {one[0]: value for one, value in zip(leased(reply), reply[-1], strict=True)}
    assert carried == {
        b"a": b"\n\0\0\0g",
        b"b": f'{TRACE}\n\0\0\0\\"'.encode(),
        b"c": f"\n{reference}\0\0\0g".encode(),
    }
    items = [Lease(None, one, b"", 1, 1, 1, 0, 0, carried[one]) for one in sorted(carried)]  # type: ignore[arg-type]
    assert [one._group for one in items] == [b"g", b'\\"', b"g"]
    assert [one.trace for one in items] == [None, TRACE, None]
    assert [one.stage for one in items] == [None, None, StageRef("home", "run", "")]


#: When the items of these tests have expired.
LATE = NOW + 500


async def add(space: Space, *item_ids: str, delay: int = 0, **options: Any) -> None:
    """Add items that expire after 500 ms."""
    await space.run("add_items", [row(one, delay=delay, expires_in=500, **options) for one in item_ids])


async def lease(space: Space, now_ms: int) -> list[str]:
    """Lease all items that can be leased; return their ids."""
    reply = await space.run("lease_many", [(9, 60_000)], now_ms=now_ms)
    return [one.decode() for one, *_ in leased(reply)]


@pytest.mark.parametrize("lanes", [{}, {"group": "g"}, {"level": 3}], ids=["plain", "group", "level"])
async def test_a_lease_discards_items_that_have_expired_and_takes_the_others(
    space: Space, lanes: dict[str, Any]
) -> None:
    await add(space, "a", "b", **lanes)
    await space.run("add_items", [row("c", **lanes)])
    assert await lease(space, LATE) == ["c"]
    left = {key for key in await space.snapshot() if ":a" in key or ":b" in key or key == "options"}
    assert left == ({"options"} if lanes else set())
    assert await space.run("counts") == [0, 1, 0, 0]


async def test_an_item_that_has_not_expired_is_leased(space: Space) -> None:
    await add(space, "a")
    assert await lease(space, LATE - 1) == ["a"]


async def test_an_item_that_a_worker_has_begun_with_is_retried_after_its_time(space: Space) -> None:
    await add(space, "failed", "expired")
    leased = await space.lease_all(2, lease_ms=100)
    await space.run("fail_many", [("failed", leased[0].token, 0, "why")])
    assert sorted(await lease(space, LATE)) == ["expired", "failed"]


async def test_an_item_that_was_released_without_an_attempt_expires(space: Space) -> None:
    await add(space, "a")
    [leased] = await space.lease_all(1)
    await space.run("release_many", [("a", leased.token, 0, 1)])
    assert await lease(space, LATE) == []
    assert "item:a" not in await space.snapshot()


async def test_an_item_that_a_foreign_client_holds_is_not_discarded(space: Space) -> None:
    await add(space, "a")
    await space.seed({"lease:a": "another session"})
    assert await lease(space, LATE) == []
    await space.run("fsck_entries", which="options", now_ms=LATE)
    assert "item:a" in await space.snapshot()


@pytest.mark.parametrize("delay", [0, 90_000])
@pytest.mark.parametrize("lanes", [{}, {"group": "g"}], ids=["plain", "group"])
async def test_a_check_of_the_options_discards_items_wherever_they_wait(
    space: Space, delay: int, lanes: dict[str, Any]
) -> None:
    await add(space, "a", "b", delay=delay, **lanes)
    await space.run("fsck_entries", which="options", now_ms=LATE - 1)
    assert {"item:a", "item:b"} <= (await space.snapshot()).keys()
    await space.run("fsck_entries", which="options", now_ms=LATE)
    assert await lease(space, LATE) == []
    assert (await space.snapshot()).keys() <= {"cancelled", "fence"}


async def test_those_who_wait_are_told_that_an_item_has_expired(space: Space, channel: PubSub) -> None:
    await add(space, "a", "b")
    await space.run("await_results", [("a",)], keep_ms=60_000)
    await lease(space, LATE)
    assert await received_text(channel) == b"expired a"
    asked = [("a",), ("b",), ("c",)]
    assert await space.run("await_results", asked, keep_ms=60_000, now_ms=LATE) == [4, b"", 4, b"", -1, b""]
    much_later = LATE + 3_600_001
    assert (await space.run("await_results", asked[:1], keep_ms=1, now_ms=much_later))[0] == -1


async def test_an_id_that_is_added_again_has_not_expired(space: Space) -> None:
    await add(space, "a")
    assert await lease(space, LATE) == []
    await space.run("add_items", [row("a")], now_ms=LATE)
    assert await lease(space, LATE) == ["a"]
    token = (await space.snapshot())["fence"]
    await space.run("complete_many", [("a", token, 0)], now_ms=LATE)
    assert (await space.run("await_results", [("a",)], keep_ms=1, now_ms=LATE))[0] == -1


async def test_discarding_is_an_event(space: Space) -> None:
    await space.run("events_keep", count=100)
    await add(space, "a", "b")
    await lease(space, LATE)
    events = [one for one in await space.run("events_read", after="0") if isinstance(one, list)]
    kinds = [dict(zip(fields[::2], fields[1::2], strict=True)) for fields in events]
    assert [(one[b"what"], one[b"id"]) for one in kinds[2:]] == [(b"discarded", b"a"), (b"discarded", b"b")]
    assert kinds[2][b"details"] == b'{"reason":"expired"}'


async def test_as_many_items_expire_as_a_lease_can_check(space: Space) -> None:
    for at in range(0, 1200, 400):
        await add(space, *(f"{n}" for n in range(at, at + 400)))
    await space.run("add_items", [row("last")])
    replies = [await space.run("lease_many", [(1, 60_000)], now_ms=LATE) for _ in range(2)]
    assert [(reply[1] == 0, len(reply) > 3) for reply in replies] == [(True, False), (False, True)]
