"""A queue with shards is one queue to the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.cli import exporter as exporter_module
from leasequeue.queue.limits import Limit
from leasequeue.queue.shards.naming import shard_names
from tests.cli.program import started, usage_error
from tests.cli.test_stats import exporting, metrics_of
from tests.cli.test_unknown_queues import on_queues
from tests.queue.asking import taken, until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.cli.program import Leasequeue

pytestmark = [pytest.mark.core, pytest.mark.server]

COUNT = 4


@pytest.fixture
async def queue(redis: Redis, name: str) -> AsyncIterator[AsyncWorkQueue]:
    """Return a queue with shards and 20 items that wait, i0 to i19."""
    async with AsyncWorkQueue(name, redis, shards=COUNT) as one:
        await one.add_items([Item(b"x", id=f"i{n}") for n in range(20)])
        yield one


async def fail(queue: AsyncWorkQueue, count: int, error: str) -> list[str]:
    """Make dead letters of so many items, one after the other; return their ids."""
    ids = []
    for _ in range(count):
        lease = await taken(queue.lease(30, block=False))
        await queue.fail(lease, error)
        ids.append(lease.id)
    return ids


async def test_it_is_one_line(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.lease_many(5, 60)
    for words in (("ls",), ("ls", queue.name), ("stats",)):
        outcome = await leasequeue(*words)
        assert (outcome.code, outcome.err) == (0, "")
        assert [row[:5] for row in outcome.table[1:]] == [[queue.name, "15", "5", "0", "0"]]
    [document] = (await leasequeue("stats", "--json")).documents
    assert (document["queue"], document["leases"]) == (queue.name, 5)
    await queue.pause()
    assert (await leasequeue("ls")).table[1][-1] == "yes"
    await queue.shards[2].resume()
    assert len((await leasequeue("ls")).table[1]) == 5, "it is not paused as a whole"


async def test_one_in_which_nothing_is_to_be_done_is_not_listed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await queue.admin.purge()
    assert (await leasequeue("ls")).out == ""
    await queue.shards[-1].schedules.every(60, "often")
    assert len((await leasequeue("ls")).table) == 2


async def test_a_shard_is_a_queue_by_its_own_name(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    shard = queue.shards[-1]
    waiting = str((await shard.counts()).waiting)
    assert (await leasequeue("ls", shard.name)).table[1][:2] == [shard.name, waiting]


async def test_items_are_added_shown_and_cancelled(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    assert (await leasequeue("add", queue.name, "hello", "--id", "a")).code == 0
    assert (await leasequeue("add", queue.name, "hello", "--id", "a")).code == 1
    (tmp_path / "lines").write_text("one\ntwo\none\n")
    outcome = await leasequeue("add", queue.name, "--file", str(tmp_path / "lines"), "--content-id")
    assert outcome.out == "2 added, 1 already there\n"
    assert await redis.keys(f"{queue.name}:*") == [], "none of them is in a queue without shards"
    assert len((await leasequeue("show", queue.name, "--json")).documents) == 20, "of 23"
    assert (await leasequeue("show", queue.name, "a", "--json")).document["item"]["data"] == "hello"
    assert len((await leasequeue("peek", queue.name, "--count", "3", "--json")).documents) == 3
    outcome = await leasequeue("cancel", queue.name, "a", "i1", "b", "--json")
    assert (outcome.code, outcome.document["cancelled"], outcome.document["missed"]) == (1, 2, ["b"])
    assert (await leasequeue("cancel", queue.name, "--data", "x")).out == "19 cancelled\n"


async def test_lines_that_were_added_before_an_error_are_counted(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    await redis.delete(key := f"{queue.shards[1].name}:queue")
    await redis.set(key, "of another type")
    (tmp_path / "lines").write_text("".join(f"{n}\n" for n in range(40)))
    outcome = await leasequeue("add", queue.name, "--file", str(tmp_path / "lines"), "--content-id")
    assert outcome.code == 5
    added = [one for one in queue.shards if one is not queue.shards[1]]
    count = sum([(await one.counts()).waiting for one in added])
    before = sum(queue.shard_of(f"i{n}") is not queue.shards[1] for n in range(20))
    assert f"({count - before} items were added before the error)" in outcome.error
    assert count > before


async def test_dead_letters_are_those_of_all_shards(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    old, new = await fail(queue, 8, "ValueError: old"), await fail(queue, 8, "ValueError: new")
    listed = [row[0] for row in (await leasequeue("dead", "ls", queue.name)).table[1:]]
    died = {letter.id: letter.died_at for letter in await queue.dead_letters.list()}
    assert {*listed} == {*old, *new}
    assert [died[one] for one in listed] == sorted(died.values(), reverse=True)
    outcome = await leasequeue("dead", "ls", queue.name, "--error", "old", "--count", "3", "--json")
    assert {line["id"] for line in outcome.documents} <= {*old}
    assert [died[line["id"]] for line in outcome.documents] == sorted(died[one] for one in old)[:-4:-1]
    assert outcome.documents[0]["queue"] == queue.name
    assert (await leasequeue("dead", "show", queue.name, old[0])).code == 0
    outcome = await leasequeue("dead", "requeue", queue.name, "--all", "--error", "old")
    assert outcome.out == "8 requeued\n"
    assert (await leasequeue("dead", "drop", queue.name, new[0], new[0])).out == "1 dropped\n"
    assert (await leasequeue("dead", "requeue", queue.name, "--all")).out == "7 requeued\n"
    assert (await queue.counts()).waiting == 19


async def test_those_that_are_chosen_are_requeued_in_the_order_in_which_they_died(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.admin.purge()
    one = queue.shards[1]
    ids = [f"n{n}" for n in range(60) if queue.shard_of(f"n{n}") is one][:3]
    await queue.add_items([Item(b"x", id=item_id) for item_id in ids])
    for lease in await one.lease_many(3, 30):
        await one.fail(lease, "an error")
    await redis.zadd(f"{one.name}:dead", dict(zip(ids, (3_000, 1_000, 2_000), strict=True)))
    assert (await leasequeue("dead", "requeue", queue.name, "--all", "--error", "an")).code == 0
    assert [view.id for view in await one.inspect()] == [ids[1], ids[2], ids[0]]


async def test_limits_pauses_and_schedules_are_of_the_whole_queue(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    outcome = await leasequeue("limits", queue.name, "--concurrency", "6", "--json")
    assert (outcome.document["queue"], outcome.document["concurrency"]) == (queue.name, 6)
    assert "from 4 to" in usage_error(await leasequeue("limits", queue.name, "--concurrency", "3"))
    assert (await leasequeue("limits", queue.name, "--remove", "all")).code == 0
    assert (await queue.limits.get()).queue == Limit()
    assert (await leasequeue("pause", queue.name)).code == 0
    assert await queue.lease(30, block=False) is None
    assert (await leasequeue("resume", queue.name)).code == 0
    assert (await leasequeue("resume", queue.name)).code == 1
    assert (await leasequeue("schedule", "add", queue.name, "daily", "x", "--every", "1d")).code == 0
    assert (await leasequeue("schedule", "ls", queue.name, "--json")).document["name"] == "daily"
    ran = (await leasequeue("schedule", "run", queue.name, "daily")).out.strip()
    assert await queue.shard_of("daily").find(ran) is not None
    assert (await leasequeue("schedule", "rm", queue.name, "daily")).code == 0
    assert await queue.schedules.list() == []


async def test_events_of_all_shards_are_printed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    assert (await leasequeue("events", queue.name)).code == 2
    assert (await leasequeue("events", queue.name, "--keep", "1000")).code == 0
    await queue.add_items([Item(b"x", id=f"e{n}") for n in range(12)])
    outcome = await leasequeue("events", queue.name, "--json", "--kind", "added")
    assert sorted(line["id"] for line in outcome.documents) == sorted(f"e{n}" for n in range(12))
    assert "the `cursor` of an event" in usage_error(await leasequeue("events", queue.name, "--since", "1"))
    assert (await leasequeue("events", queue.name, "--stop")).code == 0


async def test_tags_of_all_shards_are_listed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id=f"t{n}") for n in range(9)], tags=["red"])
    assert (await leasequeue("tags", queue.name, "--json")).documents == [{"tag": "red", "items": 9}]
    assert (await leasequeue("tags", queue.name, "red", "--cancel")).out == "9 cancelled\n"
    assert await queue.tags.list() == {}


async def test_items_of_any_shard_are_promoted_and_change_their_priority(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    ids = [f"later{n}" for n in range(6)]
    await queue.add_items([Item(b"x", id=one) for one in ids], delay=600)
    assert (await leasequeue("priority", queue.name, *ids, "--level", "7")).out == "6 changed\n"
    assert (await leasequeue("promote", queue.name, *ids)).out == "6 promoted\n"
    views = [await queue.find(one) for one in ids]
    assert [(one.state, one.priority) for one in views if one] == [("waiting", 7)] * 6


async def test_groups_of_all_shards_are_listed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x", id=f"t{n}") for n in range(9)], group="red")
    outcome = await leasequeue("groups", queue.name, "--json")
    assert outcome.documents == [{"group": "red", "waiting": 9, "leased": 0, "scheduled": None}]
    assert (await leasequeue("groups", queue.name, "red", "--purge")).out == "9 purged\n"
    outcome = await leasequeue("groups", queue.name, "red", "--to", "another", "--create")
    assert "a queue without shards" in outcome.error


async def test_all_shards_are_cleaned_and_checked(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    one, other = queue.shards[1:3]
    for shard in (one, other):
        await redis.set(f"{shard.name}:item:lost", "x")
    assert (await leasequeue("clean", queue.name, "--deep", "--json")).document["restored"] == 2
    for shard in (one, other):
        await redis.rpush(f"{shard.name}:queue", "ghost")
    outcome = await leasequeue("fsck", queue.name, "--json")
    assert outcome.code == 1
    assert [line["queue"] for line in outcome.documents] == [one.name, other.name], "each is named"
    await queue.lease_many(10, 60)
    ids = (await leasequeue("recover", queue.name, "--elapsed", "0s", "--count", "3")).out.split()
    assert len(ids) == 3
    assert (await leasequeue("clear-leases", queue.name, "--yes", "--json")).document["cleared"] == 7
    await queue.lease_many(10, 60)
    outcome = await leasequeue("clear-leases", "--yes", "--json")
    assert [(line["queue"], line["cleared"]) for line in outcome.documents] == [(queue.name, 10)]


@pytest.mark.slow
async def test_a_watch_cleans_all_shards(queue: AsyncWorkQueue, redis_url: str) -> None:
    async with started("clean", "--watch", "--every", "100ms", "--url", redis_url, queue.name) as process:
        assert process.stderr is not None
        assert queue.name.encode() in await process.stderr.readline()
        await queue.shards[-1].schedules.every(0.1, "poll")

        async def has_ticked() -> bool:
            return (await queue.counts()).waiting > 20

        await until("the schedule of a shard has ticked", has_ticked)
        process.terminate()
        assert await process.wait() == 0


async def test_whole_queues_are_purged_and_deleted(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    outcome = await leasequeue("mv", queue.name, "{other}", "--create")
    assert "one of its 4 `shards`" in usage_error(outcome)
    assert (await leasequeue("purge", queue.name, "--yes")).out == "20 purged\n"
    await queue.add_item(Item(b"x", id="a"))
    outcome = await leasequeue("rm", queue.name, "--yes", "--json")
    assert (outcome.document["queue"], outcome.code) == (queue.name, 0)
    assert await redis.exists(f"{{{queue.name}}}:shards") == 0
    outcome = await leasequeue("ls", "--all", "--json")
    assert {*shard_names(queue.name, COUNT)} >= {line["queue"] for line in outcome.documents}


async def test_no_item_is_moved_to_where_no_worker_looks(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    async with AsyncWorkQueue(f"{queue.name}-old", redis) as old:
        await old.add_item(Item(b"x", id="a"), group="red")
        for words in (("mv", old.name, queue.name), ("groups", old.name, "red", "--to", queue.name)):
            assert "a queue without shards" in usage_error(await leasequeue(*words))
        assert (await old.counts()).waiting == 1


async def test_a_deletion_that_was_stopped_can_be_repeated(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    """The number of shards is deleted last, or nobody would find the others."""
    await redis.delete(key := f"{queue.shards[2].name}:queue")
    await redis.set(key, "of another type")
    assert (await leasequeue("rm", queue.name, "--yes")).code == 5
    await redis.delete(key)
    assert (await leasequeue("rm", queue.name, "--yes")).code == 0
    assert await redis.keys(f"{{{queue.name}*:item:*") == []
    assert await redis.exists(f"{{{queue.name}}}:shards") == 0


async def test_a_queue_of_the_same_name_without_shards_is_told(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    async with AsyncWorkQueue(queue.name, redis) as hidden:
        await hidden.add_item(Item(b"x"))
    outcome = await leasequeue("ls")
    assert outcome.table[1][:2] == [queue.name, "20"]
    assert f"{queue.name} is the queue with 4 shards" in outcome.error
    await redis.delete(f"{queue.name}:queue", f"{queue.name}:fence")
    assert (await leasequeue("ls")).err == ""


async def test_workers_are_listed_and_ordered(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    worker = new_worker(name="bee")
    worker.handler(queue)(lambda _: None)
    async with working(worker):

        async def is_registered() -> bool:
            return bool((await leasequeue("workers", "ls", queue.name, "--json")).out)

        await until("it is registered", is_registered)
        for words in (("workers", "ls"), ("workers", "ls", queue.name)):
            assert [row[:2] for row in (await leasequeue(*words)).table[1:]] == [["bee", "working"]]
        assert (await leasequeue("workers", "quiet", queue.name, "bee")).code == 0
        await until("it is quiet", lambda: _has(leasequeue, queue, "quiet"))
        assert (await leasequeue("workers", "resume", queue.name, "bee")).code == 0


async def test_a_worker_on_shards_is_checked_as_one(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    (program := tmp_path / "sharded.py").write_text(
        "from leasequeue import TaskQueue\n"
        f"tasks = TaskQueue.from_url({redis_url!r}, {queue.name!r}, shards={COUNT})\n"
        "@tasks.task\n"
        "async def resize() -> None: ...\n"
    )
    outcome = await leasequeue("worker", f"{program}:tasks", "--check")
    assert (outcome.code, outcome.err) == (0, "")
    rows = [row for row in outcome.table if row[:1] == [queue.name]]
    assert [(row[1], row[-4:]) for row in rows] == [("resize", ["20", "0", "0", "0"])]


async def _has(leasequeue: Leasequeue, queue: AsyncWorkQueue, state: str) -> bool:
    return state in (await leasequeue("workers", "ls", queue.name)).out


#: Those that need a queue without shards, and say so.
REFUSED = {"mv"}
#: Those that are called above, or that have nothing to do with shards but the opening of the queue.
CALLED = {
    *("add", "cancel", "clear-leases", "dead drop", "dead ls", "dead requeue", "dead show", "events", "fsck"),
    *("clean", "limits", "ls", "pause", "peek", "purge", "recover", "resume", "rm", "schedule add"),
    *("schedule ls", "schedule rm", "schedule run", "show", "stats", "workers fail", "workers ls"),
    *("workers quiet", "workers resume", "workers stop", "acl", "top", "tags", "groups"),
    *("promote", "priority", "upgrade"),
}


def test_no_command_is_forgotten() -> None:
    assert {one for one in on_queues() if not one.startswith("flow ")} == CALLED | REFUSED


# ----------------------------------------------------------------------------------------------- the exporter


async def test_metrics_have_one_series_for_all_shards(queue: AsyncWorkQueue, redis_url: str) -> None:
    for names in ((), (queue.name,)):
        async with exporting(redis_url, *names) as exporter:
            if not names:
                assert await exporter._find()
            await exporter.sample_all()
            found = metrics_of(exporter)
        labels = {match[1] for one in found if (match := re.search('destination_name="([^"]*)"', one))}
        assert labels == {queue.name}
        assert (
            found[f'leasequeue_queue_items{{messaging_destination_name="{queue.name}",state="waiting"}}']
            == 20
        )


async def test_the_exporter_notices_that_a_queue_has_got_shards(
    redis: Redis, redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = f'leasequeue_queue_items{{messaging_destination_name="{name}",state="waiting"}}'
    async with exporting(redis_url, name) as exporter:
        await exporter.sample_all()
        assert metrics_of(exporter)[waiting] == 0
        async with AsyncWorkQueue(name, redis, shards=COUNT) as queue:
            await queue.add_items([Item(b"x") for _ in range(7)])
        monkeypatch.setattr(exporter_module, "SHARDS_SECONDS", 0.0)
        await exporter.sample_all()
        assert metrics_of(exporter)[waiting] == 7
