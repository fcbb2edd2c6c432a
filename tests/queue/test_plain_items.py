"""What an item costs: each command that a script runs for it, by name. A feature must not add one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item
from tests.queue.asking import take

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

pytestmark = pytest.mark.core

#: The commands of lone calls: the trip, and how often each other one is run inside its script.
COMMANDS = {
    "add": "evalsha exists*2 hmget lpush mset zcard zmscore",
    "lease": (
        "evalsha exists*2 get*2 hmget hset incrby lpush lrange*2 ltrim set*2 time unlink zadd zrange "
        "zrangebyscore"
    ),
    "release": "evalsha exists*2 hmget hset llen*3 lrem rpush time unlink*2 zcard zmscore zrem",
    "complete": "evalsha exists*2 hdel hlen hmget llen lrem unlink zmscore zrem",
}


async def _counted(redis: Redis, call: Awaitable[Any]) -> tuple[Any, Counter[str]]:
    before = await redis.info("commandstats")
    answer = await call
    calls = Counter[str]()
    for name, one in (await redis.info("commandstats")).items():
        calls[name.removeprefix("cmdstat_")] = one["calls"] - before.get(name, {"calls": 0})["calls"]
    del calls["info"]
    return answer, +calls


async def test_a_plain_item_costs_these_commands_and_no_others(queue: AsyncWorkQueue, redis: Redis) -> None:
    async def named(call: Awaitable[Any]) -> tuple[Any, str]:
        answer, calls = await _counted(redis, call)
        calls["set"] += 2 * calls.pop("msetex", 0)  # newer servers have it in place of two
        return answer, " ".join(f"{name}*{n}" if n > 1 else name for name, n in sorted(calls.items()) if n)

    async def cycle() -> dict[str, str]:
        _, added = await named(queue.add_item(Item(b"x", id="a")))
        lease, leased = await named(take(queue, block=False))
        _, released = await named(queue.release(lease))
        _, completed = await named(queue.complete(await take(queue, block=False)))
        return {"add": added, "lease": leased, "release": released, "complete": completed}

    await cycle()  # the scripts are loaded, and the session is known
    assert await cycle() == COMMANDS


async def test_a_lease_reads_the_limits_of_many_groups_together(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.limits.set(rate="1/s", burst=1_000, concurrency=1_000, group="*")
    for number in range(40):
        await queue.add_items([Item(b"x"), Item(b"x")], group=f"g{number}")
    await queue.lease_many(5, 60)  # these groups have had their turn
    leases, few = await _counted(redis, queue.lease_many(10, 60))
    others, many = await _counted(redis, queue.lease_many(20, 60))
    assert len(leases) == 10
    assert len(others) == 20
    for name in ("set", "msetex"):  # of two keys an item, by the server's version
        del few[name], many[name]
    # A group more: its lane is read, and its data, and the slots that it uses are counted and written.
    assert many - few == dict.fromkeys(("zrange", "get", "zcard", "zadd"), 10)


async def test_a_lane_is_read_once_for_all_items_that_it_gives(queue: AsyncWorkQueue, redis: Redis) -> None:
    for number in range(60):
        await queue.add_items([Item(b"x"), Item(b"x")], group=f"g{number}")
    leases, calls = await _counted(redis, queue.lease_many(120, 60))
    assert len(leases) == 120
    assert calls["zrange"] < 120  # each of 60 lanes once, and what finds them
