"""worker_beat, worker_leave, worker_tell, workers, session_leases, fail_session: the registry of workers."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ResponseError

from tests.lua.space import ME, NOW, Expiring, Held, Space, State, data_of, items_of, picture, received

if TYPE_CHECKING:
    from redis.asyncio.client import PubSub


ALIVE = 15_000
GONE = "lh:gone"
#: What says for an hour that it was failed.
FAILED: State = {f"failed_session:{GONE}": Expiring("1")}
ABOUT = json.dumps({"name": "host/1", "connections": [7, 12]})


def registered(worker: str, *, until: float = NOW - 1, told: str = "") -> State:
    """Make the keys of a queue on which one worker is registered."""
    return {
        "workers": {worker: ABOUT} | ({f"told:{worker}": told} if told else {}),
        "heartbeats": {worker: until},
    }


async def fail(space: Space, *ids: str, worker: str = GONE, **arguments: Any) -> int:
    """Call fail_session without conditions."""
    rows = [(one,) for one in ids]
    return int(await space.run("fail_session", rows, worker=worker, expired=0, connections="", **arguments))


async def beat(space: Space, *, first: int = 0, alive_ms: int | str = ALIVE, **arguments: Any) -> list[Any]:
    """Call worker_beat."""
    reply = await space.run("worker_beat", alive_ms=alive_ms, first=first, about=ABOUT, **arguments)
    return [one.decode() if isinstance(one, bytes) else one for one in reply]


async def test_a_worker_registers_refreshes_and_leaves(space: Space) -> None:
    assert await beat(space, first=1) == [1, NOW, "", 1]
    assert await space.snapshot() == registered(ME, until=NOW + ALIVE)
    assert await beat(space, now_ms=NOW + 5) == [1, NOW + 5, "", 1]
    assert await space.snapshot() == registered(ME, until=NOW + 5 + ALIVE)
    assert await space.run("worker_leave") == 1
    assert await space.snapshot() == {}
    assert await space.run("worker_leave") == 0


async def test_a_permanent_worker_is_alive_until_it_leaves(space: Space) -> None:
    await beat(space, first=1, alive_ms="")
    assert await beat(space, session="lh:other", first=1, now_ms=1 << 50) == [1, 1 << 50, "", 2]
    assert (await space.snapshot())["heartbeats"] == {ME: float("inf"), "lh:other": float((1 << 50) + ALIVE)}


async def test_a_heartbeat_names_the_workers_whose_registration_has_passed(space: Space) -> None:
    await space.seed({"heartbeats": {"lh:dead": NOW, "lh:alive": NOW + 1.0, "lh:failing": 0.0}})
    assert await beat(space, first=1) == [1, NOW, "", 4, "lh:failing", "lh:dead"]


@pytest.mark.seed("WRQ-G9", "WRQ-O10")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "before",
    [{f"failed_session:{ME}": Expiring("1")}, {"heartbeats": {ME: 0.0}}],
    ids=["failed", "being failed"],
)
async def test_a_worker_that_was_failed_cannot_refresh(space: Space, before: State, first: int) -> None:
    assert await space.apply(before, "worker_beat", alive_ms=ALIVE, first=first, about=ABOUT) == (
        [0, NOW, b"", 0],
        before,
    )


async def test_a_worker_whose_registration_was_lost_is_told_that_it_is_unknown(space: Space) -> None:
    """Which is another answer: it was not failed, and registers again."""
    assert await space.apply({}, "worker_beat", alive_ms=ALIVE, first=0, about=ABOUT) == (
        [-1, NOW, b"", 0],
        {},
    )


@pytest.mark.parametrize("lost", ["workers", "heartbeats"])
async def test_a_worker_refreshes_though_one_of_its_entries_is_lost(space: Space, lost: str) -> None:
    await space.seed({key: held for key, held in registered(ME).items() if key != lost})
    assert (await beat(space))[0] == 1
    assert await space.snapshot() == registered(ME, until=NOW + ALIVE)


async def test_a_worker_that_refreshes_late_before_it_is_failed_goes_on(space: Space) -> None:
    await space.seed(registered(ME, until=NOW - 60_000))
    assert await beat(space) == [1, NOW, "", 1]
    assert await space.run("fail_session", worker=ME, expired=1, connections="", ends=0) == -2


async def test_what_a_worker_says_of_itself_is_bounded(space: Space) -> None:
    with pytest.raises(ResponseError, match="LIMIT 64 KiB"):
        await space.run("worker_beat", alive_ms=ALIVE, first=1, about="x" * 65_537)
    assert await space.snapshot() == {}


async def test_a_worker_is_told_by_a_message_and_at_its_next_heartbeat(space: Space, channel: PubSub) -> None:
    assert await space.run("worker_tell", worker=ME, what="quiet") == 0, "it is not registered"
    await space.seed(registered(ME))
    assert await space.run("worker_tell", worker=ME, what="quiet") == 1
    assert await received(channel) == b"told 1", "it says nothing of what to do"
    assert (await beat(space))[2] == "quiet 1"
    await space.run("worker_tell", worker=ME, what="resume")
    assert await received(channel) == b"told 2"
    assert (await beat(space))[2] == "resume 2"
    await space.redis.hset(space.key("workers"), f"told:{ME}", "x 9999999999999999")
    await space.run("worker_tell", worker=ME, what="stop")
    assert (await beat(space))[2] == "stop 1", "what another client wrote is not counted on"
    await space.run("worker_leave")
    assert await space.snapshot() == {}


@pytest.mark.seed("WRQ-O22", "WRQ-O23")
@pytest.mark.parametrize("count", [3, 700])
async def test_the_workers_are_listed_with_the_ends_of_their_registrations(space: Space, count: int) -> None:
    ends = {f"lh:{number}": NOW + number + 0.5 for number in range(count - 2)}
    ends |= {"lh:failing": 0.0, "lh:permanent": float("inf")}
    await space.seed({"heartbeats": ends})
    found: dict[str, float] = {}
    cursor, steps = b"0", 0
    while not steps or cursor != b"0":
        now, cursor, *values = await space.run("workers", cursor=cursor, count=100)
        assert now == NOW
        found |= {one.decode(): float(end) for one, end in zip(values[::2], values[1::2], strict=True)}
        steps += 1
    assert found == ends
    assert steps == 1 if count == 3 else steps > 3
    asked = ("lh:failing", "lh:permanent", "lh:nowhere", "lh:0")
    some = await space.run("workers", [(one,) for one in asked], cursor=b"0", count=1)
    assert some[:2] == [NOW, b"0"]
    assert [one.decode() for one in some[2::2]] == [*asked]
    assert [*map(float, some[3::2])] == [0.0, math.inf, math.inf, NOW + 0.5]


@pytest.mark.seed("WRQ-B1", "WRQ-O15", "WRQ-G3")
async def test_failing_a_worker_returns_its_items_to_the_front_and_leaves_those_of_others(
    space: Space,
) -> None:
    """In the order in which they were leased. The attempt counts."""
    leased = {"a": Held(3, by=GONE), "other": Held(4), "b": Held(5, by=GONE, attempt=2)}
    await space.seed(picture(waiting=["w"], leased=leased, fence=5) | registered(GONE))
    assert await fail(space, "a", "b", "other", "w", "missing", ends=1) == 2
    past = {"a": Held(3, first=4), "b": Held(5, first=6, attempt=2)}
    assert (
        await space.snapshot()
        == picture(waiting=["a", "b", "w"], leased={"other": Held(4)}, past=past, fence=5) | FAILED
    )


@pytest.mark.seed("WRQ-B8")
async def test_every_late_outcome_of_a_failed_worker_is_rejected(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(3, by=GONE)}, fence=3) | registered(GONE))
    await fail(space, "a", ends=1)
    for lease_again in (False, True):
        if lease_again:
            assert items_of(await space.run("lease_many", [(1, 60_000)]))[0][2:] == (4, 2)
        before = await space.snapshot()
        assert await space.run("complete_many", [("a", 3, 0)]) == [-1]
        assert await space.run("complete_many", [("a", 3, 1)]) == [-1]
        assert await space.run("renew_many", [("a", 3, 60_000)], session=GONE) == [0]
        assert await space.run("release_many", [("a", 3, 0, 1)]) == [0]
        assert await space.run("fail_many", [("a", 3, -1, "error")]) == [0]
        assert await space.snapshot() == before
    assert await space.run("complete_many", [("a", 4, 0)]) == [1]


async def test_the_inbox_of_a_failed_worker_is_returned_and_nothing_more_is_delivered_to_it(
    space: Space,
) -> None:
    inbox: State = {f"inbox:{GONE}": ["y", "x"], "item:x": data_of("x"), "item:y": data_of("y")}
    others: State = {"sessions": {GONE: NOW + 9.0}}
    await space.seed(
        picture(waiting=["w"]) | inbox | others | {"idle": {f"30d@{GONE}": 1.0}} | registered(GONE)
    )
    assert await fail(space, ends=1) == 2
    assert await space.snapshot() == picture(waiting=["x", "y", "w"]) | others | FAILED


@pytest.mark.parametrize(
    ("until", "conditions", "answer"),
    [
        (NOW, {"expired": 1}, 0),
        (NOW + 1, {"expired": 1}, -2),
        (NOW + 1, {"connections": "7,12"}, 0),
        (NOW + 1, {"connections": "7"}, -2),
        (NOW + 1, {"connections": "7,13"}, -2),
        (float("inf"), {"expired": 1}, -2),
        (float("inf"), {}, 0),
        (0, {"expired": 1, "connections": "8"}, 0),
    ],
)
async def test_a_worker_is_failed_only_under_its_conditions(
    space: Space, until: float, conditions: dict[str, object], answer: int
) -> None:
    """If another client has begun to fail it, that is no longer the question."""
    await space.seed(registered(GONE, until=until))
    arguments: dict[str, Any] = {"expired": 0, "connections": "", "ends": 0, **conditions}
    assert await space.run("fail_session", worker=GONE, **arguments) == answer
    assert await space.snapshot() == registered(GONE, until=until if answer else 0)


async def test_a_worker_that_is_not_registered_cannot_be_failed(space: Space) -> None:
    before = picture(leased={"a": Held(3, by=GONE)}, fence=3)
    await space.seed(before)
    assert await fail(space, "a", ends=1) == -1
    assert await space.snapshot() == before


@pytest.mark.seed("WRQ-B2")
async def test_two_clients_fail_the_same_worker_step_by_step(space: Space) -> None:
    """The second finds what the first has left, and another worker's new lease stays."""
    leased = {"a": Held(1, by=GONE), "b": Held(2, by=GONE)}
    await space.seed(picture(leased=leased, fence=2) | registered(GONE))
    assert await fail(space, ends=0) == 0
    assert await fail(space, "b", ends=0) == 1
    assert [one.id for one in items_of(await space.run("lease_many", [(1, 60_000)]))] == ["b"]
    assert await fail(space, "a", "b", ends=1) == 1
    assert await fail(space, "a", ends=1) == -1
    after = {"b": Held(3, first=3, attempt=2)}
    assert (
        await space.snapshot()
        == picture(waiting=["a"], leased=after, past={"a": Held(1, first=2)}, fence=3) | FAILED
    )


async def test_an_item_is_returned_once_though_its_id_comes_twice(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(1, by=GONE)}, fence=1) | registered(GONE))
    assert await fail(space, "a", "a", ends=1) == 1
    assert (await space.snapshot())["queue"] == ["a"]


async def test_an_item_that_was_completed_by_another_client_is_not_returned(space: Space) -> None:
    await space.seed(picture(leased={"a": Held(1, by=GONE)}, fence=1) | registered(GONE))
    await space.send("DEL", space.key("item:a"))
    assert await fail(space, "a", ends=1) == 0
    assert "queue" not in await space.snapshot()


async def test_the_leases_of_sessions_are_found_in_one_walk_among_those_of_others(space: Space) -> None:
    leased = {f"i{n}": Held(n + 1, by=("lh:other", GONE, ME)[n % 3]) for n in range(700)}
    await space.seed(picture(leased=leased, fence=700))
    found: dict[bytes, tuple[int, bytes]] = {}
    cursor, steps = b"0", 0
    while not steps or cursor != b"0":
        rows = [(GONE,), ("lh:none",), (ME,)]
        cursor, *values = await space.run("session_leases", rows, cursor=cursor, count=100)
        found |= dict(zip(values[::3], zip(values[1::3], values[2::3], strict=True), strict=True))
        steps += 1
    assert steps > 3
    assert found == {
        one.encode(): (held.token, held.by.encode()) for one, held in leased.items() if held.by != "lh:other"
    }


async def test_of_many_dead_workers_not_all_are_named_the_same_ones(space: Space) -> None:
    dead = {f"lh:{n}": NOW - 1000.0 + n for n in range(500)}
    await space.seed({"heartbeats": dead})
    named: set[str] = set()
    for number in range(40):
        _, _, _, _, *expired = await beat(space, first=1, session=f"lh:beats{number}")
        assert len({*expired}) == 10
        named |= {*expired}
    assert named <= dead.keys()
    assert len(named) > 200


async def test_the_events_say_who_came_who_failed_and_what_was_reclaimed(space: Space) -> None:
    await space.run("events_keep", count=100, age_ms=0)
    await beat(space, first=1)
    await beat(space, first=1)  # again, as its reply was lost, or by another worker of the session
    await beat(space)
    await space.seed({"queue": ["b", "a"], "item:a": "", "item:b": ""})
    await space.run("lease_many", [(2, 60_000)])
    await fail(space, "a", "b", worker=ME, ends=1)
    assert (await beat(space))[0] == 0
    await beat(space, first=1, session="lh:new")
    await space.run("worker_leave", session="lh:new")
    entries = await space.send("XRANGE", space.key("events"), "-", "+")
    events = [fields for _, fields in entries]
    assert [(one[b"what"].decode(), one[b"id"].decode()) for one in events] == [
        ("worker_up", ME),
        ("leased", "a"),
        ("leased", "b"),
        ("reclaimed", "b"),
        ("reclaimed", "a"),
        ("worker_failed", ME),
        ("worker_up", "lh:new"),
        ("worker_down", "lh:new"),
    ]
    assert [json.loads(one[b"details"]) for one in events if b"details" in one] == [{"worker": "host/1"}] * 4
    assert (events[3][b"holder"], events[3][b"token"], events[3][b"front"]) == (ME.encode(), b"2", b"1")
