"""The page of schedules, running and removing one, and moving items to another queue."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Item
from leasequeue.dashboard import Rights
from leasequeue.dashboard.pages import schedules
from tests.dashboard.boards import open_board
from tests.queue.test_codecs import BOTH

if TYPE_CHECKING:
    import pytest
    from redis.asyncio import Redis


async def test_schedules_of_all_queues_are_shown_the_next_due_first(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(AsyncWorkQueue.from_url(redis_url, name)) for name in "abc"]
        _, client = await stack.enter_async_context(open_board(*queues))
        await queues[0].schedules.every(timedelta(hours=2), "later")
        await queues[1].schedules.every(timedelta(hours=1), "<sooner>")
        await queues[2].schedules.cron("0 0 1 1 *", "yearly", tz="Europe/Berlin")
        await queues[0].pause()
        page = (await client.get("/schedules")).text
        assert re.findall(r'<tr id="s-([^"]+)"', page) == ["b/~3Csooner~3E", "a/later", "c/yearly"]
        assert "every 1 h" in page
        assert "Europe/Berlin" in page
        assert page.count(">paused</span>") == 1
        assert "a running worker within a minute, else the next deploy" in page
        assert "overdue" not in page
        assert "Run now" not in page, "it is read-only"
        found = (await client.get("/schedules?find=YEARLY")).text
        assert re.findall(r'<tr id="s-([^"]+)"', found) == ["c/yearly"]


async def test_a_tick_that_nobody_has_added_stands_out(redis_url: str, redis: Redis) -> None:
    async with AsyncWorkQueue.from_url(redis_url, "walk") as queue, open_board(queue) as (_, client):
        await queue.schedules.every(timedelta(hours=1), "poll")
        due = await redis.zrange("walk:ticks", 0, -1, withscores=True)
        assert len(due) == 1
        await redis.zincrby("walk:ticks", -7_200_000, due[0][0])
        assert "overdue: no worker adds it" in (await client.get("/schedules")).text


async def test_many_queues_are_read_in_slices(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "QUEUES", 2)
    async with AsyncExitStack() as stack:
        queues = [
            await stack.enter_async_context(AsyncWorkQueue.from_url(redis_url, name)) for name in "abcde"
        ]
        _, client = await stack.enter_async_context(open_board(*queues))
        for queue in queues:
            await queue.schedules.every(60, f"of-{queue.name}")
        seen, link = [], "/schedules"
        while link:
            page = (await client.get(link)).text
            seen.append(sorted(re.findall(r'<tr id="s-./of-(.)"', page)))
            following = re.search(r'<a href="\.([^"]+)">Next queues</a>', page)
            link = following[1] if following else ""
        assert seen == [["a", "b"], ["c", "d"], ["e"]]


async def test_a_schedule_is_run_now_and_removed_after_a_question(redis_url: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk") as queue,
        open_board(queue, rights=Rights.all) as (_, client),
    ):
        await queue.schedules.every(3600, "poll", b"what")
        (before,) = await queue.schedules.list()
        done = await client.post(
            "/queues/walk/run-schedule", data={"schedule": "poll"}, follow_redirects=True
        )
        assert "1 item was added for the schedule" in done.text
        (item,) = await queue.peek(2)
        assert item.data == b"what"
        assert re.fullmatch(r"poll@[\d:.TZ-]+", item.id)
        assert await queue.schedules.list() == [before], "its next time stays"
        missing = await client.post("/queues/walk/run-schedule", data={"schedule": "none"})
        assert missing.status_code == 404
        asked = await client.get("/queues/walk/remove-schedule?schedule=poll")
        assert "Remove 1 schedule, poll?" in asked.text
        assert await queue.schedules.list()
        await client.post("/queues/walk/remove-schedule", data={"schedule": "poll", "sure": "yes"})
        assert not await queue.schedules.list()


async def test_a_schedule_is_run_only_if_its_data_can_be_decoded(redis_url: str) -> None:
    run = {"schedule": "poll"}
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk", codec=BOTH) as queue,
        AsyncWorkQueue.from_url(redis_url, "walk") as without,
    ):
        await queue.schedules.every(3600, "poll", b"what")
        async with open_board(without, rights=Rights.all) as (_, client):
            refused = await client.post("/queues/walk/run-schedule", data=run)
        assert refused.status_code == 400
        assert "encoded by aes.new" in refused.text
        assert not await queue.peek(2)
        async with open_board(queue, rights=Rights.all) as (_, client):
            await client.post("/queues/walk/run-schedule", data=run)
        assert [item.data for item in await queue.peek(2)] == [b"what"]


async def test_items_are_moved_to_a_queue_that_is_shown(redis_url: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk") as queue,
        AsyncWorkQueue.from_url(redis_url, "other") as other,
        open_board(queue, other, rights=Rights.all) as (_, client),
    ):
        await queue.add_items([Item(b"data", id=f"{number}") for number in range(5)])
        asked = await client.get("/queues/walk/move?to=other&number=2")
        assert "Move the first 2 of 5 items" in asked.text
        done = await client.post(
            "/queues/walk/move", data={"to": "other", "number": "2", "sure": "yes"}, follow_redirects=True
        )
        assert "2 items were moved." in done.text
        assert [one.id for one in await other.peek(5)] == ["0", "1"]
        assert "Move the first 3 of 3 items" in (await client.get("/queues/walk/move?to=other")).text
        for fields, status in (
            ({"to": "none"}, 404),
            ({"to": "walk"}, 400),
            ({"to": "other", "number": "-1"}, 400),
            ({"to": "other", "number": "1" * 20}, 400),
        ):
            answer = await client.post("/queues/walk/move", data={"sure": "yes", **fields})
            assert answer.status_code == status, fields
        assert (await queue.counts()).waiting == 3


async def test_nothing_is_moved_to_a_queue_with_shards(redis_url: str) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "walk") as queue,
        AsyncWorkQueue.from_url(redis_url, "wide", shards=4) as wide,
        open_board(queue, wide, rights=Rights.all) as (_, client),
    ):
        await queue.add_item(Item(b"data"))
        answer = await client.post("/queues/walk/move", data={"to": "wide", "sure": "yes"})
        assert answer.status_code == 400
        assert "a queue without shards" in answer.text
        assert (await queue.counts()).waiting == 1


async def test_the_limits_of_a_queue_and_its_groups_show_what_is_used(redis_url: str) -> None:
    async with AsyncWorkQueue.from_url(redis_url, "limits") as queue, open_board(queue) as (_, client):
        await queue.limits.set(concurrency=9)
        await queue.limits.set(group="a", concurrency=5)
        await queue.limits.set(group="b", rate="7/h")
        await queue.pause(group="c")
        await queue.add_items([Item(b"data") for _ in range(2)], group="a")
        await queue.add_item(Item(b"data"))
        await queue.lease_many(9, 60)
        page = (await client.get("/queues/limits")).text
        for text in ("3 of 9</dd>", "2 of 5</dd>", "<dd>7/h</dd>"):
            assert text in page, text
