"""Items that are added for a time, by the server's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from leasequeue import Item
from leasequeue.durations import moment_ms
from tests.queue.asking import command, take
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = pytest.mark.core

NOWHERE = timezone(timedelta(hours=-11, minutes=-30))


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Europe/Berlin"), NOWHERE], ids=str)
async def test_an_item_is_leased_when_its_time_has_come(
    queue: AsyncWorkQueue, clock: Clock, zone: ZoneInfo, redis: Redis, name: str
) -> None:
    at = datetime.fromtimestamp(clock.now + 3600, zone)
    assert await queue.add_item(Item(b"x", id="a"), at=at) is True
    assert await queue.add_item(Item(b"x", id="a"), at=at) is False
    assert (await audit(redis, name)).scheduled == [b"a"]
    [view] = await queue.inspect("scheduled")
    assert view.due == clock.now + 3600
    clock.now += 3599.999
    assert await queue.lease(10, block=False) is None
    clock.now += 0.001
    assert (await take(queue, block=False)).id == "a"


@pytest.mark.parametrize("at", [datetime(1969, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=NOWHERE)])
async def test_an_item_with_a_past_time_is_leased_at_once(queue: AsyncWorkQueue, at: datetime) -> None:
    assert await queue.add_item(Item(b"x"), at=at)
    assert await queue.counts() == (1, 0, 0, 0)


async def test_every_way_of_adding_accepts_a_time(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    at = datetime.now(UTC) + timedelta(days=400)  # further than any delay
    assert await queue.add_items([Item(b"x", id="a"), Item(b"x", id="b")], at=at) == [True, True]
    await queue.add_unique_item(Item(b"x", id="c"), at=at)
    async with redis.pipeline(transaction=True) as pipe:
        queue.add_item_to_pipeline(pipe, Item(b"x", id="d"), at=at)
        queue.add_unique_item_to_pipeline(pipe, Item(b"x", id="e"), at=at)
        assert await pipe.execute() == [[1], [1]]
    assert (await audit(redis, name)).scheduled == [b"a", b"b", b"c", b"d", b"e"]
    scores = {await redis.zscore(f"{name}:scheduled", item_id) for item_id in "abcde"}
    assert scores == {moment_ms("at", at)}
    # The clock of this machine has no part in it.
    seconds, _ = await command(redis, "TIME")
    assert abs((await redis.pttl(f"{name}:lease:a")) / 1000 - (at.timestamp() - int(seconds))) < 60


async def test_a_delay_of_zero_may_accompany_a_time(queue: AsyncWorkQueue) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    assert await queue.add_item(Item(b"x"), delay=0, at=at)
    assert await queue.add_item(Item(b"x"), delay=timedelta(0), at=at)
    assert await queue.counts() == (0, 0, 2, 0)


@pytest.mark.parametrize(
    ("at", "ms"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(2024, 10, 27, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_989_000_000),
        (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_729_992_600_000),
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800_000),
    ],
)
def test_a_time_is_rounded_up_to_milliseconds(at: datetime, ms: int) -> None:
    assert moment_ms("at", at) == ms
