"""What a session that waits gets: items that are leased for it and sent, those in its inbox, and notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue.queue.pushes.deliveries import Delivery, read_delivery
from tests.lua.space import ME, NOW, WORD, Call, Expiring, Held, Space, State, data_of, new, picture, received

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub


def registered(until_ms: float, lease_ms: int = 30_000) -> float:
    """Return the score of a session that is registered."""
    return until_ms // 100 * 32_768 + lease_ms


#: The member of a session that is registered.
MINE = f"{WORD}@{ME}"
IDLE: State = {"idle": {MINE: registered(NOW + 10_000)}}
DELIVERED: State = picture(leased={"a": Held(1, ends=NOW + 30_000)}, fence=1) | {
    f"delivered:{ME}": Expiring("1 a")
}


async def delivery(channel: PubSub) -> Delivery | None:
    """Return the item that the next message of a channel delivers."""
    kind, word, rest = (await received(channel)).split(b" ", 2)
    assert (kind, word) == (b"item", WORD.encode())
    return read_delivery(rest)


async def test_an_item_is_leased_for_the_session_and_sent_to_it(space: Space, channel: PubSub) -> None:
    assert await space.apply(IDLE, "add_items", [new("a")]) == ([1], DELIVERED)
    assert await delivery(channel) == Delivery(1, 1, 30_000, NOW, b"a", data_of("a").encode())


async def test_an_item_is_sent_with_its_trace(space: Space, channel: PubSub) -> None:
    trace = "00-1a-2b-01"
    options: State = {"options": {"a": f'{{"trace":"{trace}"}}'}}
    row = ("a", data_of("a"), 0, f'1:{{"trace":"{trace}"}}')
    assert await space.apply(IDLE, "add_items", [row]) == ([1], DELIVERED | options)
    found = await delivery(channel)
    assert found == Delivery(1, 1, 30_000, NOW, b"a", data_of("a").encode(), trace.encode())


@pytest.mark.parametrize("trace", ["", "00-1a-2b-01"])
async def test_the_item_of_a_stage_is_sent_with_its_reference(
    space: Space, channel: PubSub, trace: str
) -> None:
    reference = "home\\u0000r\\u0000a/1"
    carried = f'{{"trace":"{trace}","run":"{reference}"}}' if trace else f'{{"run":"{reference}"}}'
    await space.seed(IDLE)
    assert await space.run("add_items", [("r/a/1", "data", 0, f"0:{carried}")]) == [1]
    found = await delivery(channel)
    expected = f"{trace}\nhome\0r\0a/1".encode()
    assert found == Delivery(1, 1, 30_000, NOW, b"r/a/1", b"data", expected)
    assert (await space.snapshot())["processing"] == ["r/a/1"]


@pytest.mark.parametrize(
    "options",
    ['{"trace":"00-1a-2b-01","expires_in":9}', '{"run":"x","level":1}', f'{{"trace":"{"1" * 65}"}}'],
)
async def test_an_item_with_other_options_is_not_delivered(space: Space, options: str) -> None:
    await space.apply(IDLE, "add_items", [("a", "", 0, f"0:{options}")])
    assert "deadlines" not in await space.snapshot()


@pytest.mark.usefixtures("channel")
async def test_the_session_that_has_waited_longest_gets_the_item(space: Space) -> None:
    idle: State = {"idle": {MINE: registered(NOW + 10_000), "30e@lh:later": registered(NOW + 10_100, 500)}}
    assert await space.apply(idle, "add_items", [new("a")]) == (
        [1],
        DELIVERED | {"idle": {"30e@lh:later": registered(NOW + 10_100, 500)}},
    )


@pytest.mark.usefixtures("channel")
async def test_a_session_without_a_subscription_is_passed_over(space: Space) -> None:
    idle: State = {"idle": {"90e@lh:gone": registered(NOW + 100, 500), MINE: registered(NOW + 200)}}
    after = picture(leased={"a": Held(2, ends=NOW + 30_000)}, fence=2)
    after |= {f"delivered:{ME}": Expiring("2 a")}
    assert await space.apply(idle, "add_items", [new("a")]) == ([1], after)


async def test_as_many_sessions_of_a_shard_are_notified_as_ids_enter_it(redis: Redis, name: str) -> None:
    shard = Space(redis, f"{{{name}}}")
    idle: State = {"idle": {f"{n}0e@lh:s{n}": registered(NOW + n * 100, 0) for n in range(1, 6)}}
    await shard.seed(idle | picture(leased={"a": Held(1), "b": Held(2), "c": Held(3)}, fence=3))

    async def notified() -> list[str]:
        return sorted({*idle["idle"]} - {*(await shard.snapshot())["idle"]})

    assert await shard.run("release_many", [("a", 1, 60_000, 0)]) == [1]
    assert await notified() == []
    assert await shard.run("release_many", [("b", 2, 0, 1)]) == [1]
    assert await notified() == ["10e@lh:s1"]
    assert await shard.run("add_items", [new("d"), new("e")]) == [1, 1]
    assert await notified() == ["10e@lh:s1", "20e@lh:s2", "30e@lh:s3"]


async def test_several_items_notify_those_that_make_no_blocking_move(space: Space) -> None:
    """A single one wakes a session that does, which costs no read."""
    looks = {f"{n}0e@lh:s{n}": registered(NOW + n * 100, 30_000 + n % 2) for n in range(1, 6)}
    await space.seed(picture(leased={"a": Held(1)}, fence=1) | {"idle": looks})
    assert await space.run("release_many", [("a", 1, 0, 1)]) == [1]
    assert (await space.snapshot())["idle"] == looks
    assert await space.run("add_items", [new("b"), new("c")]) == [1, 1]
    assert {*looks} - {*(await space.snapshot())["idle"]} == {"10e@lh:s1", "30e@lh:s3"}


@pytest.mark.parametrize("name_of", ["{}", "{{{}}}"])
async def test_only_shards_pay_for_sessions_that_do_not_block(redis: Redis, name: str, name_of: str) -> None:
    """And calls after which several items wait. A single item that no session awaits costs nothing."""
    queue = Space(redis, name_of.format(name))
    await queue.seed(picture(leased={"a": Held(1)}, fence=1))

    async def looks(script: str, rows: list[tuple[object, ...]]) -> int:
        await queue.run(script, rows)
        await queue.send("ECHO", script)
        commands: list[str] = []
        while not (commands and commands[-1].startswith(f"ECHO {script}")):
            commands.append((await monitor.next_command())["command"])
        return len([one for one in commands if one.startswith(f"ZRANGE {queue.prefix}:idle ")])

    async with redis.monitor() as monitor:
        assert await looks("release_many", [("a", 1, 0, 0)]) == queue.prefix.count("{")
        assert await looks("add_items", [new("b")]) == 0
        assert await looks("add_items", [new("c"), new("d")]) == 1


async def test_if_no_process_receives_the_item_it_waits(space: Space) -> None:
    assert await space.apply(IDLE, "add_items", [new("a")]) == (
        [1],
        picture(waiting=["a"], fence=1),
    )


async def test_a_session_without_a_word_is_passed_over(space: Space, channel: PubSub) -> None:
    """As it would drop the message."""
    idle: State = {"idle": {ME: registered(NOW + 10_000)}}
    assert await space.apply(idle, "add_items", [new("b")]) == ([1], picture(waiting=["b"]))
    assert await channel.get_message(timeout=0) is None


@pytest.mark.parametrize(
    ("before", "rows"),
    {
        "a registration that has ended": ({"idle": {MINE: registered(NOW - 100)}}, [new("a")]),
        "other items wait": (IDLE | picture(waiting=["w"]), [new("a")]),
        "two items": (IDLE, [new("a"), new("b")]),
        "an earlier one is on its way to the session": (
            IDLE | {f"inbox:{ME}": ["w"], "item:w": data_of("w")},
            [new("a")],
        ),
    }.values(),
)
@pytest.mark.usefixtures("channel")
async def test_an_item_is_not_delivered(space: Space, before: State, rows: list[tuple[object, ...]]) -> None:
    await space.apply(before, "add_items", rows)
    after = await space.snapshot()
    assert "deadlines" not in after
    assert "a" in after["queue"]


@pytest.mark.usefixtures("channel")
async def test_a_delayed_item_is_not_delivered(space: Space) -> None:
    after = IDLE | picture(scheduled={"a": NOW + 900_000})
    assert await space.apply(IDLE, "add_items", [new("a", delay=900_000)]) == ([1], after)


@pytest.mark.usefixtures("channel")
async def test_a_large_item_is_not_delivered(space: Space) -> None:
    await space.apply(IDLE, "add_items", [("a", "x" * 65_537, 0, 0)])
    assert (await space.snapshot())["queue"] == ["a"]


async def test_a_session_registers_for_deliveries_and_acknowledges_them(space: Space) -> None:
    both: State = {"sessions": {ME: NOW + 10_000.0}, "idle": Expiring({MINE: registered(NOW + 10_000)})}
    assert await space.run("register", keep_ms=10_000, lease_ms=30_000) == -1
    assert await space.snapshot() == both
    await space.seed(DELIVERED)
    await space.run("register", [("1 a",)], keep_ms=10_000, lease_ms=30_000)
    leased = picture(leased={"a": Held(1, ends=NOW + 30_000)}, fence=1)
    assert await space.snapshot() == leased | both


async def test_a_session_that_registers_for_no_delivery_gets_none(space: Space) -> None:
    await space.seed(IDLE)
    await space.run("register", keep_ms=10_000, before=WORD)
    assert await space.snapshot() == {"sessions": {ME: NOW + 10_000.0}}


async def test_a_registration_takes_the_place_of_the_last_one(space: Space) -> None:
    await space.seed(IDLE)
    await space.run("register", keep_ms=10_000, lease_ms=30_000, word="30e", before=WORD)
    assert (await space.snapshot())["idle"] == Expiring({f"30e@{ME}": registered(NOW + 10_000)})


async def test_acknowledging_an_older_delivery_keeps_the_newer(space: Space) -> None:
    both = picture(leased={"a": Held(1), "b": Held(2)}, fence=2)
    newer: State = {f"delivered:{ME}": Expiring("2 b")}
    _, after = await space.apply(both | newer, "register", [("1 a",)], keep_ms=10_000)
    assert after == both | newer | {"sessions": {ME: NOW + 10_000.0}}


async def test_leaving_recalls_what_the_session_has_not_accepted(space: Space) -> None:
    before = picture(waiting=["w"], leased={"a": Held(1), "b": Held(2)}, fence=2)
    sent: State = {**IDLE, f"delivered:{ME}": Expiring("2 b"), "sessions": {ME: NOW + 1.0}}
    reply, after = await space.apply(before | sent, "leave", [("1 a",)], stays=0)
    assert reply == [0, 2]
    assert after == picture(waiting=["b", "w"], leased={"a": Held(1)}, fence=2)


async def test_what_the_session_has_accepted_is_acknowledged_and_not_recalled(space: Space) -> None:
    reply, after = await space.apply(IDLE | DELIVERED, "leave", [("1 a",)], stays=1)
    assert (reply, after) == ([0], picture(leased={"a": Held(1, ends=NOW + 30_000)}, fence=1))


async def test_a_delivery_whose_item_was_leased_again_is_not_recalled(space: Space) -> None:
    before = picture(leased={"a": Held(5, first=1)}, fence=5)
    sent: State = {f"delivered:{ME}": Expiring("1 a")}
    assert await space.apply(before | sent, "leave", stays=1) == ([0], before | sent)


async def test_a_waiting_session_is_registered(space: Space) -> None:
    assert await space.run("register", keep_ms=35_000) == -1, "no item will fall due"
    assert await space.snapshot() == {"sessions": {ME: NOW + 35_000.0}}


async def test_a_session_that_keeps_waiting_stays_registered(space: Space) -> None:
    before: State = {"sessions": {ME: NOW + 1.0, "lh:other": NOW + 2.0}, f"inbox:{ME}": ["a"]}
    await space.seed(before)
    assert await space.run("register", keep_ms=35_000) == -1
    assert await space.snapshot() == before | {"sessions": {ME: NOW + 35_000.0, "lh:other": NOW + 2.0}}


@pytest.mark.parametrize("state", ["deadlines", "scheduled"])
async def test_registering_returns_when_the_next_item_falls_due(space: Space, state: str) -> None:
    await space.seed({state: {"a": NOW + 900.0, "b": NOW + 1_000.0}})
    assert await space.run("register", keep_ms=35_000) == 900


async def test_leaving_returns_the_inbox_to_the_front_and_unregisters_the_session(space: Space) -> None:
    others = {"lh:other": NOW + 1.0}
    mine: State = {f"inbox:{ME}": ["b", "ghost", "a"], "sessions": {ME: NOW + 1.0, **others}}
    await space.seed(picture(waiting=["w"]) | mine | {f"item:{i}": data_of(i) for i in "ab"})
    assert await space.run("leave", stays=0) == [3]
    after = picture(waiting=["a", "b", "w"]) | {"queue": ["w", "b", "ghost", "a"], "sessions": others}
    assert await space.snapshot() == after
    assert await space.run("leave", stays=0) == [0]
    assert await space.snapshot() == after


async def test_a_session_with_a_long_inbox_stays_registered_until_it_is_empty(space: Space) -> None:
    ids = [f"i{n}" for n in range(1_500)]
    inbox: State = {f"inbox:{ME}": ids[::-1], "sessions": {ME: NOW + 1.0}}
    await space.seed({f"item:{item_id}": data_of(item_id) for item_id in ids} | inbox)
    assert await space.run("leave", stays=0) == [1_000]
    assert (await space.snapshot())["sessions"] == {ME: NOW + 1}
    assert await space.run("leave", stays=0) == [500]
    assert await space.snapshot() == picture(waiting=ids)


async def test_a_session_without_an_inbox_can_leave(space: Space) -> None:
    assert await space.apply({"sessions": {ME: NOW + 1.0}}, "leave", stays=0) == ([0], {})


async def test_a_session_can_return_its_inbox_and_stay_registered(space: Space) -> None:
    await space.seed({"queue": ["w"], f"inbox:{ME}": ["a"], "item:a": "data", "sessions": {ME: NOW + 100.0}})
    assert await space.run("leave", stays=1) == [1]
    assert await space.snapshot() == {"queue": ["w", "a"], "item:a": "data", "sessions": {ME: NOW + 100.0}}


@pytest.mark.parametrize(("ends", "wait"), [(NOW - 1, 0), (NOW, 0), (NOW + 1, -1)])
async def test_registering_returns_at_once_when_another_session_has_expired(
    space: Space, ends: int, wait: int
) -> None:
    """Its inbox has to be reclaimed, which leasing does."""
    await space.seed({"sessions": {"lh:other": float(ends)}})
    assert await space.run("register", keep_ms=35_000) == wait


@pytest.fixture
async def due_channel(space: Space) -> AsyncIterator[PubSub]:
    """Subscribe as a waiting process does."""
    async with space.redis.pubsub() as due_channel:
        await due_channel.subscribe(space.key("due"))
        await due_channel.get_message(timeout=120)
        yield due_channel


HELD = picture(leased={"a": Held(7), "b": Held(8)}, fence=8)
CALLS: dict[str, tuple[State, Call, list[bytes]]] = {
    "the shorter of two leases": (
        picture(waiting=["a", "b"]),
        Call("lease_many", [(1, 6_000), (1, 250)]),
        [b"250"],
    ),
    "not a long lease": (picture(waiting=["a"]), Call("lease_many", [(1, 6_001)]), []),
    "not a lease that ends after another": (
        picture(waiting=["a"], leased={"b": Held(1, ends=NOW + 100)}, fence=1),
        Call("lease_many", [(1, 250)]),
        [],
    ),
    "the shorter of two delays": (
        {},
        Call("add_items", [new("a", delay=900), new("b", delay=300), new("c")]),
        [b"300"],
    ),
    "the delay of a release": (HELD, Call("release_many", [("a", 7, 400, 0)]), [b"400"]),
    "the delay of a retry": (HELD, Call("fail_many", [("a", 7, 70, "")]), [b"70"]),
    "a renewal to a shorter time": (HELD, Call("renew_many", [("a", 7, 400), ("b", 8, 300)]), [b"300"]),
    "not a renewal to a longer time": (
        picture(leased={"a": Held(7, ends=NOW + 100)}, fence=7),
        Call("renew_many", [("a", 7, 400)]),
        [],
    ),
}


@pytest.mark.parametrize(("before", "call", "announced"), CALLS.values(), ids=CALLS.keys())
async def test_what_ends_soon_and_before_all_others_is_announced(
    space: Space, due_channel: PubSub, before: State, call: Call, announced: list[bytes]
) -> None:
    await space.seed(before)
    await space.run_all([call])
    # All messages up to now: the last is one that this test publishes.
    await space.redis.publish(space.key("due"), "end")
    for expected in (*announced, b"end"):
        assert await received(due_channel) == expected


async def test_a_delivery_that_ends_soon_is_announced(space: Space, due_channel: PubSub) -> None:
    """Its process may be gone: another one that waits leases the item then."""
    await due_channel.subscribe(space.key(f"push:{ME}"))
    await due_channel.get_message(timeout=120)
    await space.seed({"idle": {MINE: registered(NOW + 10_000, 400)}})
    assert await space.run("add_items", [new("a")]) == [1]
    await space.redis.publish(space.key("due"), "end")
    messages = [await due_channel.get_message(timeout=120) for _ in range(3)]
    found = [message["data"] for message in messages if message is not None]
    assert found[0].startswith(b"item 30d 1 1 400 ")
    assert found[1:] == [b"400", b"end"]


async def test_of_many_sessions_that_wait_some_are_notified_of_what_falls_due(
    space: Space, due_channel: PubSub
) -> None:
    """Each on its channel, but those that are gone: all of them would ask, at the same time."""
    names = [f"lh:{number:02}" for number in range(12)]
    for name in names[1:]:
        await due_channel.subscribe(space.key(f"push:{name}"))
        await due_channel.get_message(timeout=120)
    idle = {
        f"{number:02x}@{name}": registered(NOW + 9_000 + 100 * number) for number, name in enumerate(names)
    }
    await space.seed({"idle": {"90e@lh:over": registered(NOW - 100), **idle}})
    assert await space.run("add_items", [new("a", delay=300)]) == [1]
    await space.redis.publish(space.key("due"), "end")
    found: list[tuple[bytes, bytes]] = []
    while not found or found[-1][1] != b"end":
        message = await due_channel.get_message(timeout=120)
        assert message is not None
        found.append((message["channel"], message["data"]))
    notified = [(space.key(f"push:{name}").encode(), b"due 300") for name in names[1:9]]
    assert found == [*notified, (space.key("due").encode(), b"end")]


async def test_of_many_sessions_that_wait_some_are_told_when_to_ask_the_others_when_it_is_late(
    space: Space,
) -> None:
    names = [f"lh:{number:03}" for number in range(200)]
    idle = {f"{number:03x}@{name}": registered(NOW + 9_000) for number, name in enumerate(names)}
    await space.seed(picture(leased={"a": Held(1, ends=NOW + 900)}, fence=1) | {"idle": idle})
    waits = [await space.run("register", keep_ms=35_000, session=one) for one in names]
    assert {*waits} == {900, -1}
    assert 1 <= waits.count(900) <= 24, "8 on average; by the names and the time, so the same each time"
    late = [await space.run("register", keep_ms=35_000, session=one, now_ms=NOW + 900) for one in names]
    assert {*late} == {0}
    assert (await space.run("lease_many", [(2, 60_000)]))[2] == 200


async def test_of_many_sessions_few_make_a_blocking_move(space: Space) -> None:
    """As the server visits all clients that are blocked on a list. If ids wait, all look."""
    names = [f"lh:{number:03}" for number in range(200)]
    idle = {f"{number:03x}@{name}": registered(NOW + 9_000) for number, name in enumerate(names)}
    await space.seed({"idle": idle})

    async def register(name: str) -> int:
        reply: int = await space.run("register", keep_ms=35_000, lease_ms=30_000, word="f0", session=name)
        score = await space.redis.zscore(space.key("idle"), f"f0@{name}")
        assert score == registered(NOW + 35_000, 30_001 if reply == -2 else 30_000)
        return reply

    replies = [await register(one) for one in names]
    assert {*replies} == {-1, -2}
    assert 1 <= replies.count(-1) <= 24, "8 on average; by the names and the time, so the same each time"
    undeliverable = [await space.run("register", keep_ms=35_000, session=one) for one in names]
    assert {*undeliverable} == {-1}, "they could not be notified"
    await space.seed({"queue": ["a"]})
    again = [await space.run("register", keep_ms=35_000, lease_ms=30_000, session=one) for one in names]
    assert {*again} <= {-1, 0}
    assert again.count(0) > 170
