"""Limits and pauses: set, changed, removed and shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, InvalidArgument, Item
from leasequeue.queue.limits import MAX_SHARERS, Limit, Pause, QueueLimits, interval_of, rate_text
from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def test_a_queue_has_no_limits_and_no_pause(queue: AsyncWorkQueue) -> None:
    assert await queue.limits.get() == QueueLimits()


async def test_limits_say_how_much_of_them_is_used(make_queue: MakeQueue) -> None:
    first, second = make_queue(name="{shop}:a"), make_queue(name="{shop}:b")
    for queue in (first, second):
        await queue.limits.set(concurrency=9, shared="{shop}:all")
        await queue.limits.set(concurrency=2, group="g/1")
        await queue.limits.set(concurrency=3, group="*")
        await queue.add_items([Item(b"x", id=f"{number}") for number in range(4)], group="g/1")
        await queue.add_item(Item(b"x", id="none"))
        await queue.lease_many(9, 30, block=False)
    limits = await second.limits.get()
    assert (limits.leased, limits.shared_leased) == ({"g/1": 2}, 6)


@pytest.mark.seed("GLD-O16", "GLD-K2", "GLD-L6", "GLD-T5")
async def test_limits_are_set_changed_and_removed_one_by_one(queue: AsyncWorkQueue, redis: Redis) -> None:
    limits = queue.limits
    assert await limits.set(rate="10/s", burst=5)
    assert await limits.set(concurrency=7, ageing=30)
    assert not await limits.set(concurrency=7)
    assert await limits.set(group="*", concurrency=1)
    assert await limits.set(group="é/*", rate="1/5s")
    assert await limits.get() == QueueLimits(
        queue=Limit(rate="10/s", burst=5, concurrency=7),
        each_group=Limit(concurrency=1),
        groups={"é/*": Limit(rate="12/m", burst=1)},
        ageing=30,
    )
    assert await limits.set(rate="100/m")
    assert await limits.remove("concurrency")
    assert not await limits.remove("concurrency", "shared")
    assert await limits.remove(group="é/*")
    assert not await limits.remove(group="é/*")
    assert await limits.get() == QueueLimits(
        queue=Limit(rate="100/m", burst=1), each_group=Limit(concurrency=1), ageing=30
    )
    assert await limits.remove()
    assert await limits.remove("concurrency", group="*")
    assert await limits.get() == QueueLimits()
    await queue.lease(1, block=False)
    assert not [key for key in await snapshot(redis) if b"control" in key]


async def test_many_groups_have_limits(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.limits.set(group="g0", concurrency=1)
    limits: dict[Any, Any] = {f"concurrency/g{number}": number + 1 for number in range(700)}
    await redis.hset(f"{queue.name}:control", mapping=limits)
    found = await queue.limits.get()
    assert found.groups == {f"g{number}": Limit(concurrency=number + 1) for number in range(700)}


@pytest.mark.parametrize(
    ("rate", "interval", "text"),
    [
        ("10/s", 100_000, "10/s"),
        ("3/s", 333_334, "3/s"),
        ("100/m", 600_000, "100/m"),
        ("60/m", 1_000_000, "1/s"),
        ("5000/h", 720_000, "5000/h"),
        ("1/5s", 5_000_000, "12/m"),
        ("2/1.5s", 750_000, "80/m"),
        ("1/30d", 2_592_000_000_000, "1/2592000s"),
        ("1000000/s", 1, "1000000/s"),
        ("7/d", 12_342_857_143, "7/d"),
    ],
)
def test_a_rate_is_a_time_between_two_items(rate: str, interval: int, text: str) -> None:
    assert (interval_of(rate), rate_text(interval)) == (interval, text)
    assert interval_of(text) == interval


@pytest.mark.parametrize(
    "rate",
    [
        *("", "10", "0/s", "-1/s", "10/", "/s", "10/w", "1.5/s", "10/0s", "10 / s", "1000001/s"),
        *("2/0.000001s", "1/31d", "x" * 1000, "٣/s", b"10/s", 10),
    ],
)
async def test_what_is_no_rate_is_refused(queue: AsyncWorkQueue, rate: Any) -> None:
    with pytest.raises(InvalidArgument, match="rate"):
        await queue.limits.set(rate=rate)


@pytest.mark.parametrize("scope", [{}, {"group": "g"}, {"shared": "{tag}:api"}])
async def test_the_burst_of_a_rate_is_changed_alone(
    make_queue: MakeQueue, name: str, scope: dict[str, Any]
) -> None:
    queue = make_queue(name=f"{{{name}}}:mail")
    scope = {key: value.replace("tag", name) for key, value in scope.items()}
    with pytest.raises(InvalidArgument, match="burst: got 5, expected a rate with it"):
        await queue.limits.set(burst=5, concurrency=9, **scope)
    assert await queue.limits.set(rate="10/s", **scope)
    assert await queue.limits.set(burst=5, **scope)
    assert not await queue.limits.set(burst=5, **scope)
    found = await queue.limits.get()
    limit = (
        found.groups["g"] if "group" in scope else found.shared_limit if "shared" in scope else found.queue
    )
    assert limit == Limit(rate="10/s", burst=5)


NO_LIMITS: list[dict[str, Any]] = [
    *({"concurrency": bad} for bad in (0, -1, 1.0, "5", True, 1_000_001)),
    *({"burst": bad, "rate": "1/s"} for bad in (0, -1, 1.5, "5", 1_000_001)),
    *({"group": bad, "concurrency": 1} for bad in ("", "a\0b", "x" * 257, "\ud800", 5)),
    *({"ageing": bad} for bad in (0, -1, "5", 31 * 86400)),
    {"ageing": 5, "group": "g"},
    {"burst": 5},
    {"burst": 5, "concurrency": 1},
]


@pytest.mark.parametrize("arguments", NO_LIMITS, ids=repr)
async def test_limits_that_cannot_be_are_refused_and_change_nothing(
    queue: AsyncWorkQueue, redis: Redis, arguments: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(arguments))):
        await queue.limits.set(**arguments)
    for group in (None, "g"):
        with pytest.raises(InvalidArgument, match="one at least"):
            await queue.limits.set(group=group)
    with pytest.raises(InvalidArgument, match="names"):
        await queue.limits.remove("ageing", group="g")
    assert await snapshot(redis) == {}


async def test_a_queue_is_paused_and_resumed(queue: AsyncWorkQueue, clock: Clock) -> None:
    assert not await queue.resume()
    begun = clock.now
    assert await queue.pause(reason="the mail server is down") == Pause(
        since=begun, until=None, reason="the mail server is down"
    )
    clock.now += 5
    until = datetime.fromtimestamp(clock.now + 60, UTC)
    await queue.pause(until=until, group="g")
    await queue.pause(for_=timedelta(minutes=1), group="h")
    found = await queue.limits.get()
    assert found.paused == Pause(since=begun, until=None, reason="the mail server is down")
    ends = Pause(since=clock.now, until=clock.now + 60, reason="")
    assert found.paused_groups == {"g": ends, "h": ends}
    assert found.groups == {}
    assert await queue.resume()
    assert await queue.resume(group="g")
    assert not await queue.resume(group="g")
    clock.now += 61
    assert not await queue.resume(group="h")
    assert await queue.limits.get() == QueueLimits()


@pytest.mark.parametrize(
    "arguments",
    [
        {"until": datetime(2020, 1, 1, tzinfo=UTC)},
        {"until": datetime(1969, 1, 1, tzinfo=UTC)},
        {"until": datetime(2100, 1, 1)},  # noqa: DTZ001 - it is refused
        {"until": "tomorrow"},
        {"for_": 0},
        {"for_": -1},
        {"for_": 5, "until": datetime(2100, 1, 1, tzinfo=UTC)},
        {"reason": "x" * 1001},
        {"reason": "\ud800"},
        {"reason": None},
        {"group": "*"},
        {"group": ""},
    ],
    ids=repr,
)
async def test_a_pause_that_cannot_be_is_refused(
    make_queue: MakeQueue, redis: Redis, arguments: dict[str, Any]
) -> None:
    queue = make_queue()
    with pytest.raises(InvalidArgument, match=next(iter(arguments))):
        await queue.pause(**arguments)
    assert await snapshot(redis) == {}


@pytest.mark.seed("GLD-B14")
async def test_queues_of_one_hash_tag_share_limits(make_queue: MakeQueue, redis: Redis) -> None:
    one, other = make_queue(name="{shop}:a"), make_queue(name="{shop}:b")
    assert await one.limits.set(shared="{shop}:api", rate="5/s", concurrency=2)
    assert await other.limits.set(shared="{shop}:api", rate="10/s")
    for queue in (one, other):
        found = await queue.limits.get()
        assert (found.shared, found.queue) == ("{shop}:api", Limit())
        assert found.shared_limit == Limit(rate="10/s", burst=1, concurrency=2)
    assert await one.limits.remove("shared")
    assert (await one.limits.get()).shared_limit == Limit()
    assert (await other.limits.get()).shared_limit.concurrency == 2
    assert await other.limits.remove()
    assert not [key for key in await snapshot(redis) if b"api" in key or b"control" in key]


async def test_a_queue_that_shares_other_limits_leaves_the_first(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue(name="{shop}:a")
    await queue.limits.set(shared="{shop}:api", rate="5/s")
    await queue.limits.set(shared="{shop}:db", concurrency=3)
    assert (await queue.limits.get()).shared_limit == Limit(concurrency=3)
    assert not [key for key in await snapshot(redis) if b"api" in key]


@pytest.mark.parametrize(
    ("name", "shared", "said"),
    [
        ("emails", "{shop}:api", "'emails' has none, and cannot share"),
        ("{shop}:a", "api", "'{shop}'"),
        ("{shop}:a", "{other}:api", "'{shop}'"),
        ("{shop}:a", "{shop}:a", "no queue has"),
        ("{shop}:a", "", "shared"),
        ("{shop}:a", "{shop}:item:x", "shared"),
    ],
)
async def test_queues_of_different_slots_share_no_limits(
    make_queue: MakeQueue, redis: Redis, name: str, shared: str, said: str
) -> None:
    queue = make_queue(name=name)
    with pytest.raises(InvalidArgument, match=said):
        await queue.limits.set(shared=shared, rate="5/s")
    with pytest.raises(InvalidArgument, match="shared"):
        await queue.limits.set(shared="{shop}:x", group="g", rate="5/s")
    assert await snapshot(redis) == {}


async def test_so_many_queues_share_limits_and_no_more(make_queue: MakeQueue) -> None:
    for number in range(MAX_SHARERS):
        await make_queue(name=f"{{shop}}:{number}").limits.set(shared="{shop}:api", concurrency=1)
    with pytest.raises(InvalidArgument, match=f"fewer than {MAX_SHARERS}"):
        await make_queue(name="{shop}:more").limits.set(shared="{shop}:api", concurrency=1)


async def test_what_another_client_has_written_and_cannot_be_read_is_no_limit(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_items([Item(b"", id="a"), Item(b"", id="b")], group="g")
    fields = ("rate", "concurrency", "ageing", "paused", "rate/g", "concurrency/g", "paused/g", "other")
    for wrong in ("", "x", "-1", "1e9", "0:0", "::", "nan"):
        for field in fields:
            await redis.hset(f"{queue.name}:control", field, wrong)
        assert await queue.limits.get() == QueueLimits(), wrong
        leases = await queue.lease_many(2, 30, block=False)
        assert len(leases) == 2, wrong
        assert await queue.release_many(leases) == [True, True]


@pytest.mark.parametrize("which", ["slots", "turns"])
async def test_a_check_reports_nothing_while_an_expired_lease_is_to_be_reclaimed(
    queue: AsyncWorkQueue, clock: Clock, which: str
) -> None:
    """Its group has no slot free until then."""
    await queue.limits.set(concurrency=1, group="g")
    await queue.add_items([Item(b"", id=one) for one in "ab"], group="g")
    assert [lease.id for lease in await queue.lease_many(2, 10)] == ["a"]
    clock.now += 11
    if which == "slots":
        await queue._engine().run("fsck_lanes", which=b"turns:50", cursor=b"0", count=100)
    assert (await queue.admin.fsck()).findings == ()
    assert [lease.id for lease in await queue.lease_many(2, 10)] == ["b"]


async def test_a_completion_leaves_the_turn_of_a_group_that_waits_for_its_rate(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """An earlier turn would wake a session for nothing, with each completion."""
    await queue.limits.set(rate="1/100s", group="g")
    await queue.add_items([Item(b"", id=one) for one in "ab"], group="g")
    [lease] = await queue.lease_many(2, 10, block=False)
    before = await redis.zrange(f"{queue.name}:turns:50", 0, -1, withscores=True)
    assert await queue.complete(lease)
    assert await redis.zrange(f"{queue.name}:turns:50", 0, -1, withscores=True) == before


async def test_an_expired_lease_that_may_be_renewed_uses_the_slot_of_its_group(
    queue: AsyncWorkQueue, clock: Clock
) -> None:
    await queue.limits.set(concurrency=1, group="g")
    await queue.add_items([Item(b"", id=one) for one in "ab"], group="g")
    [late] = await queue.lease_many(2, 10)
    clock.now += 11
    await queue._engine().run("fsck_lanes", which=b"turns:50", cursor=b"0", count=100)
    assert await queue.renew(late, 30)
    assert await queue.lease_many(2, 10, block=False) == []
    assert await queue.complete(late)
    assert [lease.id for lease in await queue.lease_many(2, 10)] == ["b"]


async def test_a_check_passes_what_is_no_member_of_a_lane_that_gathers(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    group = "batch:3:5000:x"
    await redis.zadd(f"{queue.name}:lanes", {f"50{group}\0zz": 0})
    await redis.zadd(f"{queue.name}:levels", {"50": 1})
    await redis.zadd(f"{queue.name}:turns:50", {group: 1})
    await queue._engine().run("fsck_lanes", which=b"turns:50", cursor=b"0", count=100)


@pytest.mark.parametrize("by", ["renewed", "recovered"])
async def test_a_lease_that_goes_on_late_uses_its_shared_slot_again(
    make_queue: MakeQueue, clock: Clock, by: str
) -> None:
    """Another queue has used the slot meanwhile: no third one may."""
    one, other = (make_queue(name=f"{{shop}}:{one}", clock=clock) for one in "ab")
    for queue in (one, other):
        await queue.limits.set(shared="{shop}:api", concurrency=1)
        await queue.add_items([Item(b"x", id="x"), Item(b"x", id="y")])
    late = await one.lease(10)
    clock.now += 11
    [meanwhile] = await other.lease_many(2, 30, block=False)
    if by == "renewed":
        assert await one.renew(late, 60)
    else:
        [late] = await one.admin.recover(1, 5, 60)
    assert await other.complete(meanwhile)
    assert await other.lease_many(2, 30, block=False) == []
    assert (await one.limits.get()).shared_leased == 1
    assert await one.complete(late)
    assert len(await other.lease_many(2, 30, block=False)) == 1


async def test_an_item_that_cannot_be_read_holds_up_no_other_of_its_group(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """It is at the end of its lane after it was found."""
    await queue.limits.set(group="*", concurrency=1)
    await queue.add_items([Item(b"x", id=one) for one in ("bad", "next")], group="g")
    await queue.add_item(Item(b"x", id="other"), group="h")
    await redis.unlink(f"{queue.name}:item:bad")
    await redis.hset(f"{queue.name}:item:bad", "a", "b")
    found = []
    for _ in range(2):
        found += [lease.id for lease in await queue.lease_many(5, 60, block=False)]
    assert sorted(found) == ["next", "other"]
