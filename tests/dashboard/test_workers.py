"""The pages of workers: what stands out, cursors, and telling a worker what to do."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Fleet, Item
from leasequeue.dashboard import Rights
from leasequeue.dashboard.view import segment
from tests.dashboard.boards import open_board
from tests.dashboard.fleets import register

if TYPE_CHECKING:
    import pytest


async def test_a_dead_worker_comes_first_and_stands_out(redis_url: str) -> None:
    running = [["job-7", "send_mail", (time.time() - 7200) * 1000]]
    await register(redis_url, "walk", "alive", running=running)
    await register(redis_url, "walk", "lost", alive_ms=1)
    async with AsyncWorkQueue.from_url(redis_url, "walk") as queue, open_board(queue) as (_, client):
        page = (await client.get("/workers")).text
        assert [one[0] for one in re.findall(r'<tr id="w-(\w+)"( class="lost")?>', page)] == ["lost", "alive"]
        assert page.count('class="lost"') == 1
        assert "1 is dead" in page
        for text in ("send_mail", "job-7", "2 h ago", "node-7, 4711", "leasequeue 0.1.0, python 3.12.1"):
            assert text in page, text
        only = (await client.get("/workers?show=dead")).text
        assert "w-lost" in only
        assert "w-alive" not in only
        assert "w-alive" in (await client.get("/workers?find=NODE")).text
        assert "No worker matches" in (await client.get("/workers?find=none")).text


async def test_a_worker_that_began_again_is_shown_beside_its_dead_session(redis_url: str) -> None:
    await register(redis_url, "walk", "again", alive_ms=1)
    await register(redis_url, "walk", "again")
    async with AsyncWorkQueue.from_url(redis_url, "walk") as queue, open_board(queue) as (_, client):
        page = (await client.get("/workers")).text
        rows = re.findall(r'<tr id="w-([^"]+)"( class="lost")?>', page)
        assert [bool(lost) for _, lost in rows] == [True, False]
        assert rows[1][0] == "again"
        assert (await client.get(f"/workers/{rows[0][0]}")).status_code == 200


async def test_a_thousand_workers_are_shown_once_each_by_cursor(redis_url: str) -> None:
    for at in range(0, 1000, 50):
        await asyncio.gather(*(register(redis_url, "walk", f"{number:04}") for number in range(at, at + 50)))
    async with AsyncWorkQueue.from_url(redis_url, "walk") as queue, open_board(queue) as (_, client):
        seen: list[str] = []
        link: str | None = "./workers"
        while link is not None:
            page = (await client.get(link.removeprefix(".").replace("&amp;", "&"))).text
            seen += re.findall(r'<tr id="w-(\d+)"', page)
            following = re.search(r'<a href="([^"]+)">Next</a>', page)
            link = following[1] if following else None
        assert seen == [f"{number:04}" for number in range(1000)]


async def test_orders_reach_the_worker_and_failing_it_returns_its_items(redis_url: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk") as queue,
        AsyncWorkQueue.from_url(redis_url, "walk") as theirs,
        open_board(queue, rights=Rights.all) as (_, client),
    ):
        await queue.add_item(Item(b"data", id="one"))
        lease = await theirs.lease(60, block=False)
        assert lease is not None
        (session,) = {one.holder for one in await queue.inspect("leased", count=1, data=False)}
        assert session is not None
        about = {"running": [["one", "send_mail", time.time() * 1000]]}
        await register_session(theirs, **about)
        path = f"/workers/{segment(session)}"
        told = await client.post(f"{path}/stop", data={"sure": "yes"}, follow_redirects=True)
        assert "The worker has the order" in told.text
        assert "stopping" in told.text
        asked = await client.get(f"{path}/fail")
        assert "it ran 1 item." in asked.text
        assert "It is alive" in asked.text
        assert (await queue.counts()).leased == 1
        failed = await client.post(f"{path}/fail", data={"sure": "yes"}, follow_redirects=True)
        assert "1 items were returned" in failed.text
        assert "not registered any more" in failed.text
        assert (await queue.counts()).waiting == 1
        assert not await Fleet(queue).workers()
        assert (await client.get(path)).status_code == 404
        again = await client.post(f"{path}/fail", data={"sure": "yes"})
        assert again.status_code == 404


async def register_session(queue: AsyncWorkQueue, **about: object) -> None:
    from leasequeue.queue.queue import engine_of

    await engine_of(queue).registry.beat(about, alive_ms=3_600_000, first=True)


async def test_a_run_is_cancelled_from_the_page_of_its_worker_and_logged(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await register(redis_url, "walk", "web", running=[["a/b", "send_mail", time.time() * 1000]])
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk") as queue,
        open_board(queue, rights=Rights.only("cancel")) as (_, client),
    ):
        await queue.add_item(Item(b"data", id="a/b"))
        fields = {"queue": "walk", "item": "a~2Fb"}
        page = (await client.get("/workers/web")).text
        assert '<input type="hidden" name="item" value="a~2Fb">' in page
        asked = await client.get("/workers/web/cancel", params=fields)
        assert "Cancel 1 item, a/b" in asked.text
        with caplog.at_level("INFO", logger="leasequeue.dashboard"):
            await client.post("/workers/web/cancel", data={"sure": "yes", **fields})
        assert (await queue.counts()).total == 0
        assert "did cancel on {'worker': 'web', 'queue': 'walk', 'item': 'a/b'}: 1" in caplog.text
