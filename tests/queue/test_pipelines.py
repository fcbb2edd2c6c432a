"""Adding items in a pipeline of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.exceptions import ResponseError, WatchError

from leasequeue import Item
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock

pytestmark = [pytest.mark.core, pytest.mark.parametrize("transaction", [False, True])]


@pytest.mark.seed("RWQ-O10")
async def test_items_are_added_among_other_commands(
    queue: AsyncWorkQueue, redis: Redis, name: str, *, transaction: bool
) -> None:
    async with redis.pipeline(transaction=transaction) as pipeline:
        pipeline.set(f"{name}:before", 1)
        queue.add_item_to_pipeline(pipeline, Item(b"1", id="a"))
        queue.add_item_to_pipeline(pipeline, Item(b"2", id="a"))
        queue.add_unique_item_to_pipeline(pipeline, Item(b"3", id="b"))
        queue.add_item_to_pipeline(pipeline, Item(b"4", id="c"), delay=20)
        pipeline.get(f"{name}:before")
        assert not await redis.keys(f"{name}*")
        assert await pipeline.execute() == [True, [1], [0], [1], [1], b"1"]
    found = await audit(redis, name)
    assert (found.waiting, found.scheduled) == ([b"a", b"b"], [b"c"])
    assert [lease.data for lease in await queue.lease_many(5, 30)] == [b"1", b"3"]


async def test_after_a_script_flush(queue: AsyncWorkQueue, redis: Redis, *, transaction: bool) -> None:
    async with redis.pipeline(transaction=transaction) as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(b"1", id="a"))
        await redis.script_flush()
        queue.add_item_to_pipeline(pipeline, Item(b"2", id="b"))
        pipeline.execute_command("SCRIPT", "FLUSH") if not transaction else pipeline.ping()
        queue.add_item_to_pipeline(pipeline, Item(b"3", id="c"))
        answers = await pipeline.execute()
    assert [answer for answer in answers if isinstance(answer, list)] == [[1], [1], [1]]
    assert (await audit(redis, queue.name)).waiting == [b"a", b"b", b"c"]


@pytest.mark.seed("RWQ-O10")
async def test_a_pipeline_that_is_not_executed_adds_nothing(
    queue: AsyncWorkQueue, redis: Redis, name: str, *, transaction: bool
) -> None:
    async with redis.pipeline(transaction=transaction) as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(b"1"))
    assert not await redis.keys(f"{name}*")


async def test_a_failed_transaction_adds_nothing(
    queue: AsyncWorkQueue, redis: Redis, name: str, *, transaction: bool
) -> None:
    """Without a transaction the item is added even if other commands fail."""
    async with redis.pipeline(transaction=transaction) as pipeline:
        if transaction:
            await pipeline.watch(f"{name}:watched")
            pipeline.multi()  # type: ignore[no-untyped-call]
            await redis.set(f"{name}:watched", "changed")
        queue.add_item_to_pipeline(pipeline, Item(b"1"))
        if transaction:
            with pytest.raises(WatchError):
                await pipeline.execute()
        else:
            assert await pipeline.execute() == [[1]]
    assert await queue.queue_len() == (0 if transaction else 1)


async def test_a_transaction_with_a_command_that_cannot_be_queued_adds_nothing(
    queue: AsyncWorkQueue, redis: Redis, *, transaction: bool
) -> None:
    async with redis.pipeline(transaction=transaction) as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(b"1"))
        pipeline.execute_command("NOSUCHCOMMAND")
        with pytest.raises(ResponseError):
            await pipeline.execute()
    assert await queue.queue_len() == (0 if transaction else 1)


async def test_pipelines_use_the_clock_argument(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, *, transaction: bool
) -> None:
    async with redis.pipeline(transaction=transaction) as pipeline:
        queue.add_item_to_pipeline(pipeline, Item(b"1"), delay=20)
        await pipeline.execute()
    [view] = await queue.inspect("scheduled")
    assert view.due == clock.now + 20
