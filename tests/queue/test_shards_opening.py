"""Opening queues by their names alone, and finding those of a server, each with shards once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import ConnectionLost
from leasequeue.queue.shards.naming import shard_names
from leasequeue.queue.shards.opening import find_whole_queues, open_queue
from leasequeue.wire.discovery import find_queues
from tests.ports import free_port

if TYPE_CHECKING:
    from leasequeue.embedded import EmbeddedServer
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.core, pytest.mark.server]


async def add(redis: Redis, name: str, *, shards: int | None = None, count: int = 100) -> None:
    async with AsyncWorkQueue(name, redis, shards=shards) as queue:
        await queue.add_items([Item(b"x", id=f"i{n}") for n in range(count)])


async def names_with(redis: Redis, name: str) -> list[str]:
    return [one for one in (await find_whole_queues(redis)).names if name in one]


@pytest.mark.parametrize("by", ["id", "group"])
async def test_a_queue_is_opened_with_its_shards(redis: Redis, name: str, by: str) -> None:
    async with AsyncWorkQueue(name, redis, shards=3, shard_by=by) as queue:  # type: ignore[arg-type]
        await queue.add_item(Item(b"x", id="a"), group="g")
    async with await open_queue(name, redis, replicas=0, reply_timeout=5) as opened:
        assert [one.name for one in opened.shards] == [*shard_names(name, 3)]
        assert opened.shard_of("b", group="g").name == opened.shard_of("a", group="g").name or by == "id"
        assert await opened.find("a") is not None


async def test_a_queue_without_shards_is_opened_as_it_is(redis: Redis, name: str) -> None:
    await add(redis, name, count=1)
    async with await open_queue(name, redis) as opened:
        assert opened.shards == (opened,)
        assert (await opened.counts()).waiting == 1
    assert not await redis.keys(f"{{{name}}}*")


async def test_a_shard_is_opened_by_its_own_name(redis: Redis, name: str) -> None:
    await add(redis, name, shards=3)
    for shard in shard_names(name, 3):
        async with await open_queue(shard, redis) as opened:
            assert opened.name == shard
            assert opened.shards == (opened,)


@pytest.mark.parametrize("noted", ["", "3", "0 id", "3 ids", "999 id", b"\xff"])
async def test_what_is_not_a_layout_is_not_one(redis: Redis, name: str, noted: str | bytes) -> None:
    await redis.set(f"{{{name}}}:shards", noted)
    await add(redis, f"{{{name}}}", count=1)
    assert await names_with(redis, name) == [f"{{{name}}}"]
    async with await open_queue(name, redis) as opened:
        assert opened.shards == (opened,)


async def test_a_key_of_another_type_is_not_a_layout(redis: Redis, name: str) -> None:
    await redis.rpush(f"{{{name}}}:shards", "3 id")
    async with await open_queue(name, redis) as opened:
        assert opened.shards == (opened,)


async def test_a_server_that_is_away_is_not_taken_for_no_note(name: str) -> None:
    async with Redis(port=free_port()) as nowhere:
        with pytest.raises(ConnectionLost):
            await open_queue(name, nowhere)


async def test_who_may_not_read_the_note_has_a_queue_without_shards(
    server: EmbeddedServer, redis: Redis, name: str
) -> None:
    await redis.acl_setuser(name, enabled=True, nopass=True, keys=[f"{name}:*"], categories=["+@all"])
    async with Redis.from_url(server.url.replace("://", f"://{name}:x@")) as restricted:
        await add(restricted, name, count=1)
        async with await open_queue(name, restricted) as opened:
            assert (await opened.counts()).waiting == 1
    await redis.acl_deluser(name)


async def test_queues_with_shards_are_found_once(redis: Redis, name: str) -> None:
    await add(redis, f"{name}-a", shards=16)
    await add(redis, f"{name}-b", shards=16, count=1)  # one shard has been used, and not the first
    await add(redis, f"{name}-c", count=1)
    await add(redis, f"{{{name}-d}}", count=1)
    assert await names_with(redis, name) == [f"{name}-a", f"{name}-b", f"{name}-c", f"{{{name}-d}}"]


async def test_others_may_call_a_queue_like_a_shard(redis: Redis, name: str) -> None:
    theirs = f"{{{name}/1.9999}}"
    await add(redis, theirs, count=1)
    assert await names_with(redis, name) == [theirs]
    await add(redis, name, shards=4)
    assert theirs not in shard_names(name, 4)
    assert await names_with(redis, name) == [name, theirs]
    await add(redis, f"{name}/1.9998", shards=1)  # and a queue with one shard like a shard
    assert await names_with(redis, name) == [name, f"{name}/1.9998", theirs]


async def test_a_queue_of_the_same_name_without_shards_is_hidden(redis: Redis, name: str) -> None:
    await add(redis, name, count=1)
    await add(redis, name, shards=4)
    assert await names_with(redis, name) == [name]
    async with await open_queue(name, redis) as opened:
        assert (await opened.counts()).waiting == 100


async def test_shards_count_as_one_queue_of_those_that_are_looked_for(make_server: MakeServer) -> None:
    url = (await make_server()).url
    async with Redis.from_url(url) as redis:
        for one in "abc":
            await add(redis, one, shards=16)
    found = await find_whole_queues(url, max_queues=3)
    assert (found.names, found.complete) == (["a", "b", "c"], True)
    found = await find_whole_queues(url, max_queues=2)
    assert (found.names, found.complete) == (["a", "b"], False)
    assert len((await find_queues(url)).names) == 48
