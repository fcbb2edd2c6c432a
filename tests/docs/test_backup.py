"""What going to production says about a restored backup is so, on real servers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, Lease

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer


async def leased(queue: AsyncWorkQueue) -> Lease:
    """Lease the next item, which waits."""
    lease = await queue.lease(60, block=False)
    assert lease
    return lease


@pytest.mark.parametrize("raised", [0, 1_000_000])
async def test_a_restored_queue_issues_tokens_again_until_its_counter_is_raised(
    make_server: MakeServer, tmp_path: Path, raised: int
) -> None:
    server = await make_server(dir=tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, "emails") as queue:
        await queue.add_items([Item("", id=f"mail-{n}") for n in range(3)])
        held = await leased(queue)
    await server.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")

    server = await make_server(dir=tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, "emails") as queue:
        done, late = await leased(queue), await leased(queue)
        assert await queue.complete(done)
        await queue.add_item(Item("", id="mail-9"))
    await server.stop()

    server = await make_server(dir=tmp_path / "copy")
    async with AsyncWorkQueue.from_url(server.url, "emails") as queue, Redis.from_url(server.url) as client:
        assert [view.id for view in await queue.inspect()] == [done.id, late.id], "mail-9 is gone"
        assert [view.id for view in await queue.inspect("leased")] == [held.id]
        await client.incrby("emails:fence", raised)
        again = [await leased(queue), await leased(queue)]
        assert [lease.id for lease in again] == [done.id, late.id], "what was completed runs again"
        assert [lease.token - raised for lease in again] == [done.token, late.token]
        [accepted] = await queue.complete_many([late])
        assert accepted is (not raised), "the holder from before is taken for the new one"
        assert not (await queue.admin.fsck()).findings


async def test_a_snapshot_alone_is_ignored_with_an_append_only_file(
    make_server: MakeServer, tmp_path: Path
) -> None:
    server = await make_server(dir=tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, "emails") as queue, Redis.from_url(server.url) as client:
        await queue.add_item(Item("", id="mail-1"))
        await client.save()
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "data" / "dump.rdb", tmp_path / "copy")
    server = await make_server(dir=tmp_path / "copy")
    async with AsyncWorkQueue.from_url(server.url, "emails") as queue:
        assert (await queue.counts()).total == 0
