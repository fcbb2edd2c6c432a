"""A change-over from one queue with shards to another with more, under load."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item
from tests.docs.pages import DOCS, blocks
from tests.eventually import LIMIT_SECONDS
from tests.faults.growth_program import NEW_SHARDS, OLD_SHARDS
from tests.processes import printed, program
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

pytestmark = [pytest.mark.core, pytest.mark.server]

IDS, PRODUCERS = 150, 4


def recipe() -> dict[str, Any]:
    """Return the functions that the page defines."""
    found: dict[str, Any] = {}
    page = DOCS / "how-to" / "shards.md"
    [text] = [one.code for one in blocks(page) if "def add_once" in one.code]
    exec(text.partition("\nasync def main")[0], found)  # noqa: S102 - our own page
    return found


async def test_a_change_over_under_load_runs_each_id_once(redis: Redis, redis_url: str, name: str) -> None:
    """Producers repeat ids in both queues, and workers are killed while they hold them."""
    add_once: Callable[[AsyncWorkQueue, AsyncWorkQueue, Item], Awaitable[bool]] = recipe()["add_once"]
    names = (name, f"{name}-more")
    async with (
        AsyncWorkQueue(names[0], redis, shards=OLD_SHARDS) as old,
        AsyncWorkQueue(names[1], redis, shards=NEW_SHARDS) as new,
        AsyncExitStack() as stack,
    ):
        for queue in (old, new):
            await queue.events.keep(count=100_000)

        async def worker() -> asyncio.subprocess.Process:
            arguments = ("tests.faults.growth_program", redis_url, *names)
            process = await stack.enter_async_context(program(*arguments))
            await printed(process, b"ready")
            return process

        first = await worker()
        added = Counter[str]()

        async def produce(seed: int, part: range, to: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
            for n in random.Random(seed).sample(part, len(part)):
                is_new = await add_once(to, other, Item(b"x", id=f"i{n}"))
                added[f"i{n}"] += is_new

        # The first roll-out: all add to the old queue, and look at the new one.
        await asyncio.gather(*(produce(seed, range(IDS // 2), old, new) for seed in range(PRODUCERS)))
        second, _ = await asyncio.gather(worker(), until("items are leased", lambda: is_leased(old)))
        first.kill()
        # The second one: one after the other adds to the new queue. Ids that both kinds add are not new.
        mixed = [produce(seed, range(IDS // 2), old, new) for seed in range(2)]
        await asyncio.gather(*mixed, *(produce(seed, range(IDS), new, old) for seed in range(PRODUCERS)))
        await until("items of the new queue are leased", lambda: is_leased(new))
        second.kill()
        third = await worker()
        assert added == dict.fromkeys((f"i{n}" for n in range(IDS)), 1)
        assert {(await old.counts()).total, (await new.counts()).total} == {IDS // 2, IDS - IDS // 2}
        await redis.set(f"{name}:go", "1")
        async with asyncio.timeout(LIMIT_SECONDS):
            await until("both are empty", lambda: is_empty(old, new))
        done = Counter[str]()
        for queue in (old, new):
            done.update([event.id async for event in queue.events(follow=False, kinds=["completed"])])
        assert done == added
        third.kill()
        await third.wait()
        assert await old.admin.delete() == 0, "nothing is left in it"


async def is_leased(queue: AsyncWorkQueue) -> bool:
    return (await queue.counts()).leased > 0


async def is_empty(*queues: AsyncWorkQueue) -> bool:
    return not any([(await one.counts()).total for one in queues])
