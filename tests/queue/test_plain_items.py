"""What a plain item costs: each command that a script runs for it, by name. A feature must not add one."""

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


async def test_a_plain_item_costs_these_commands_and_no_others(queue: AsyncWorkQueue, redis: Redis) -> None:
    async def counted(call: Awaitable[Any]) -> tuple[Any, str]:
        before = await redis.info("commandstats")
        answer = await call
        calls = Counter[str]()
        for name, one in (await redis.info("commandstats")).items():
            calls[name.removeprefix("cmdstat_")] = one["calls"] - before.get(name, {"calls": 0})["calls"]
        calls["set"] += 2 * calls.pop("msetex", 0)  # newer servers have it in place of two
        del calls["info"]
        return answer, " ".join(f"{name}*{n}" if n > 1 else name for name, n in sorted(calls.items()) if n)

    async def cycle() -> dict[str, str]:
        _, added = await counted(queue.add_item(Item(b"x", id="a")))
        lease, leased = await counted(take(queue, block=False))
        _, released = await counted(queue.release(lease))
        _, completed = await counted(queue.complete(await take(queue, block=False)))
        return {"add": added, "lease": leased, "release": released, "complete": completed}

    await cycle()  # the scripts are loaded, and the session is known
    assert await cycle() == COMMANDS
