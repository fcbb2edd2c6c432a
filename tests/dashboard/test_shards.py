"""A queue with shards is one queue on each page; and what is shown while a node is away."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Fleet, Item
from leasequeue.dashboard import Rights, sources
from leasequeue.dashboard import sampler as sampling
from leasequeue.dashboard.pages import dead
from leasequeue.dashboard.sampler import QueueHistory
from leasequeue.errors import ConnectionLost
from leasequeue.queue.lease import Failure
from leasequeue.queue.limits import Limit
from leasequeue.queue.stats import WaitTimes
from leasequeue.tasks.wire import data_of
from leasequeue.views import Counts, QueueStats
from tests.dashboard.boards import open_board
from tests.dashboard.fleets import register
from tests.dashboard.shown_pages import ShownPage
from tests.dashboard.test_sampler import scripts_run
from tests.eventually import LIMIT_SECONDS
from tests.faults.cluster_nodes import cluster, kind, nodes, owner, port_of  # noqa: F401 - fixtures
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx
    from redis.asyncio import Redis, RedisCluster

    from leasequeue.dashboard.sampler import Sampler

COUNT = 4


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[AsyncWorkQueue]:
    async with AsyncWorkQueue.from_url(redis_url, "emails", shards=COUNT) as one:
        yield one


def items(count: int) -> list[Item]:
    return [Item(b"x", id=f"i{n}") for n in range(count)]


async def pages(client: httpx.AsyncClient, *paths: str) -> list[str]:
    answers = [await client.get(path) for path in paths]
    for path, one in zip(paths, answers, strict=True):
        assert one.status_code == 200, f"{path}: {one.text}"
    return [one.text for one in answers]


def cells(page: str, row: str) -> list[str]:
    """Return the texts of the cells of the row of a table that has a text."""
    [found] = [one for one in re.findall(r"<tr.*?</tr>", page, re.DOTALL) if row in one]
    cells = re.findall(r"<t[hd].*?</t[hd]>", found, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", "", one).split()) for one in cells]


@pytest.mark.parametrize("found", [False, True])
async def test_the_overview_has_one_row_with_the_sums(
    redis_url: str, queue: AsyncWorkQueue, *, found: bool
) -> None:
    await queue.add_items(items(100))
    await queue.add_item(Item(b"x", id="later"), delay=60)
    assert await queue.lease_many(10, 60)
    async with open_board(redis_url if found else queue) as (_, client):
        overview, page = await pages(client, "/", "/queues/emails")
        assert re.findall(r'<tr id="q-([^"]+)"', overview) == ["emails"]
        assert "1 of 1" in overview
        assert cells(overview, 'id="q-emails"')[:1] == ["emails 4 shards no worker serves this"]
        assert cells(overview, 'id="q-emails"')[2:6] == ["90", "10", "1", "0"]
        assert "4 shards" in page
        for shard in queue.shards:
            assert cells(page, f"<td>{shard.name}")[1:5] == [*map(str, await shard.counts())]


async def test_queues_of_one_name_with_and_without_shards_are_refused(
    redis_url: str, queue: AsyncWorkQueue
) -> None:
    async with (
        AsyncWorkQueue.from_url(redis_url, "emails") as plain,
        AsyncWorkQueue.from_url(redis_url, "other") as other,
    ):
        with pytest.raises(ValueError, match="different names"):
            async with open_board(plain, queue):
                pass
        async with open_board(queue, other, queue) as (_, client):
            [overview] = await pages(client, "/")
            assert re.findall(r'<tr id="q-([^"]+)"', overview) == ["emails", "other"]


async def test_a_job_is_found_shown_and_acted_on_whatever_shard_it_is_in(
    redis_url: str, redis: Redis, name: str
) -> None:
    for by in ("id", "group"):
        queue = AsyncWorkQueue(f"{name}-{by}", redis, shards=COUNT, shard_by=by)
        path = f"/queues/{queue.name}/jobs"
        async with queue, open_board(redis_url, rights=Rights.all, show_data=True) as (_, client):
            await queue.events.keep(count=1000)
            for n in range(8):
                data = data_of("send", f'{{"to": "{n}"}}'.encode(), None)
                await queue.add_item(Item(data, id=f"j{n}"), group=f"g{n}", delay=60 * (n == 7))
            found = await client.get("/jobs?q=j5", follow_redirects=True)
            assert found.url.path == f"{path}/j5"
            assert "added" in found.text, "its events"
            by_call = (await client.get(f"/jobs?q=queue:{queue.name} args.to:6")).text
            assert re.findall(r'href="[^"]*/jobs/(j\d)"', by_call) == ["j6"]
            assert (await client.post(f"{path}/j7/promote")).headers["location"].endswith("count=1")
            assert (
                (await client.post(f"{path}/j6/cancel", data={"sure": "y"}))
                .headers["location"]
                .endswith("count=1")
            )
            leases = await queue.lease_many(8, 60)
            released = await client.post(f"{path}/{leases[3].id}/release", data={"sure": "y"})
            assert released.headers["location"].endswith("count=1")
            assert [*await queue.counts()] == [1, 6, 0, 0]
            assert "waiting" in (await client.get(f"{path}/{leases[3].id}")).text
            await queue.admin.delete()


async def test_the_queue_is_paused_purged_and_resumed_as_one(queue: AsyncWorkQueue) -> None:
    await queue.add_items(items(40))
    await queue.schedules.every(3600, "hourly", start=None)
    async with open_board(queue, rights=Rights.all) as (_, client):
        await client.post("/queues/emails/pause", data={"reason": "work"})
        assert [(await one.stats()).paused is None for one in queue.shards] == [False] * COUNT
        [page] = await pages(client, "/queues/emails")
        assert "Paused" in page
        assert "/move" not in page, "each shard could be moved alone"
        await client.post("/queues/emails/resume")
        await queue.shards[2].pause()
        await client.post("/queues/emails/purge", data={"sure": "y"})
        assert (await queue.counts()).waiting == 0
        [page] = await pages(client, "/queues/emails")
        assert "Paused" not in page
        assert cells(page, queue.shards[2].name)[0].endswith("paused")
        assert "/resume" in page
        await client.post("/queues/emails/run-schedule", data={"schedule": "hourly"})
        assert (await queue.counts()).waiting == 1
        [overview, schedules] = await pages(client, "/", "/schedules")
        assert "paused" not in cells(overview, 'id="q-emails"')[0]
        assert "hourly" in schedules


async def test_dead_letters_of_all_shards_are_paged_and_requeued_once_each(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead, "ROWS", 7)
    monkeypatch.setattr(dead, "STEP", 30)
    ids = {f"i{n}" for n in range(60)}
    await queue.add_items(items(60))
    while leases := await queue.lease_many(100, 60, block=False):
        await queue.fail_many([Failure(one, "ValueError: no", retry_in=None) for one in leases])
    async with open_board(queue, rights=Rights.all) as (_, client):
        seen: list[str] = []
        link: str | None = "/dead?queue=emails"
        while link is not None:
            [page] = await pages(client, link)
            seen += re.findall(r'name="letter" value="emails/(i\d+)"', page)
            older = re.search(r'<a href="\./(dead\?[^"]+)">Older', page)
            link = "/" + older[1].replace("&amp;", "&") if older else None
        assert sorted(seen) == sorted(ids)
        await client.post("/dead/requeue", data={"letter": [f"emails/{one}" for one in seen[:10]]})
        assert [*await queue.counts()] == [10, 0, 0, 50]
        asked = (await client.get("/dead/drop-all?queue=emails")).text
        assert "all 50 dead letters" in asked
        fields = dict(ShownPage(asked).forms[-1].fields)
        while fields:
            answer = await client.post("/dead/drop-all", data={**fields, "sure": "y"})
            fields = {} if answer.status_code == 303 else dict(ShownPage(answer.text).forms[-1].fields)
        assert [*await queue.counts()] == [10, 0, 0, 0]


async def test_a_worker_is_one_on_the_page_and_is_told_on_all_shards(
    redis_url: str, queue: AsyncWorkQueue
) -> None:
    await queue.add_items(items(20))
    runs = [[f"i{n}", "send", time.time() * 1000] for n in range(20)]
    for at, shard in enumerate(queue.shards):
        await register(redis_url, shard.name, "one", running=runs[at::COUNT])
    async with open_board(queue, rights=Rights.all) as (_, client):
        listed, page = await pages(client, "/workers", "/workers/one")
        assert re.findall(r'<tr id="w-([^"]+)"', listed) == ["one"]
        assert re.findall(r'href="\./queues/([^"/]+)"', listed) == ["emails"]
        assert {*re.findall(r'href="\.\./queues/emails/jobs/(i\d+)"', page)} == {one[0] for one in runs}
        [worker] = await Fleet(queue).workers()
        assert worker.queues == ("emails",)
        assert {*worker.sessions} == {one.name for one in queue.shards}
        assert {run.queue for run in worker.running} == {"emails"}
        await client.post("/workers/one/stop", data={"sure": "y"})
        told = [(await Fleet(shard).workers())[0].stopping for shard in queue.shards]
        assert told == [True] * COUNT
        assert (
            await client.post("/workers/one/cancel", data={"queue": "emails", "item": "i7", "sure": "y"})
        ).is_redirect
        assert await queue.find("i7") is None


async def test_a_worker_that_was_failed_on_one_shard_is_read_there_too(
    redis_url: str, queue: AsyncWorkQueue
) -> None:
    """It has another session there since."""
    await queue.add_item(Item(b"x"))
    for shard in queue.shards:
        await register(redis_url, shard.name, "one", running=[[shard.name, "send", time.time() * 1000]])
    sessions = [(await Fleet(shard).workers())[0].sessions[shard.name] for shard in queue.shards]
    assert len({*sessions}) > 1
    async with open_board(queue) as (_, client):
        listed, page = await pages(client, "/workers", "/workers/one")
        assert listed.count("<tr id=") == 1
        for session in sessions:
            assert session in page


def seen(queue: AsyncWorkQueue, at: float, waiting: int, leases: int) -> QueueStats:
    return QueueStats(
        queue=queue.name, counts=Counts(waiting, 0, 0, 0), oldest_age=0.0, oldest_age_error=None,
        wait=WaitTimes(), leases=leases, paused=None, limit=Limit(), workers=(), at=at,
    )  # fmt: skip


def test_a_shard_that_is_away_counts_with_what_it_said_last(queue: AsyncWorkQueue) -> None:
    first, second = queue.shards[:2]
    history, away = QueueHistory("emails"), ConnectionLost("away", maybe_applied=False)
    history.add_shards({"a": seen(first, 100, 10, 50), "b": seen(second, 107, 5, 20)})
    history.add_shards({"a": seen(first, 110, 10, 60), "b": away})
    assert history.stats is not None
    assert history.stats.counts.waiting == 15
    assert (history.away, history.problem) == ({"b": away}, None)
    assert history.rates == (1.0, 1.0), "by one clock"
    history.add_shards({"a": away, "b": away})
    assert history.problem is away


async def test_a_page_costs_the_same_for_any_number_of_viewers_and_items(
    redis_url: str, queue: AsyncWorkQueue
) -> None:
    costs = []
    for count, viewers in ((10, 1), (2_000, 20)):
        await queue.add_items(items(count))
        async with open_board(queue) as (app, client):
            app.state.board.sampler._every = 3600
            app.state.board.reads._clock = lambda: 0.0
            await pages(client, "/")
            before = await scripts_run(redis_url)
            await pages(client, *["/", "/queues/emails"] * viewers)
            costs.append(await scripts_run(redis_url) - before)
    assert costs[0] == costs[1] <= 10 * COUNT


async def test_what_other_nodes_have_is_shown_while_one_is_away(
    nodes: list[Redis],  # noqa: F811
    cluster: RedisCluster,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "REPLY_SECONDS", LIMIT_SECONDS)
    for name in ("STATS_SECONDS", "SHARD_SECONDS"):
        monkeypatch.setattr(sampling, name, LIMIT_SECONDS)
    for node in nodes:
        await node.config_set("cluster-require-full-coverage", "no")
    url = f"redis://127.0.0.1:{port_of(nodes[0])}"
    async with AsyncWorkQueue("emails", cluster, shards=6) as queue, open_board(url) as (app, client):
        sampler: Sampler = app.state.board.sampler
        sampler._every = 0.01
        await queue.add_items(items(60))
        every = ("/", "/queues/emails", "/workers", "/dead", "/schedules", "/jobs?q=task:send", "/autoscaler")
        for page in await pages(client, *every):
            assert "cannot be read" not in page
        lost = next(node for node in nodes[1:] if node is not owner(nodes, queue.shards[0].name))
        away = [one.name for one in queue.shards if owner(nodes, one.name) is lost]
        os.kill((await lost.info("server"))["process_id"], signal.SIGKILL)

        async def is_noticed() -> bool:
            await sampler.look(["emails"])
            return {*sampler.histories["emails"].away} == {*away}

        app.state.board.queues._find_at = -math.inf  # each turn looks for queues, in vain
        await until("two shards are away", is_noticed)
        await sampler.turn()
        for path in every:
            [page] = await pages(client, path)
            assert "Of the queue emails, 2 of 6 shards cannot be read" in page, path
        [overview, page] = await pages(client, "/", "/queues/emails")
        assert cells(overview, 'id="q-emails"')[2] == "60"
        assert "cannot be read in part" in overview
        for shard in queue.shards:
            assert ("cannot be read" in cells(page, f"<td>{shard.name}")[0]) == (shard.name in away)
        lives = next(f"i{n}" for n in range(60) if queue.shard_of(f"i{n}").name not in away)
        assert "waiting" in (await client.get(f"/queues/emails/jobs/{lives}")).text
        dies = next(f"i{n}" for n in range(60) if queue.shard_of(f"i{n}").name in away)
        assert (await client.get(f"/queues/emails/jobs/{dies}")).status_code == 503
