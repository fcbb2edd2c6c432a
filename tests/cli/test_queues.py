"""Commands about whole queues: what they hold, limits, events, checks, workers, and what moves all items."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.queue.limits import Limit
from leasequeue.queue.queue import engine_of
from leasequeue.wire import discovery
from leasequeue.wire.discovery import find_queues
from tests.cli.program import started, usage_error, use
from tests.queue.asking import take, until

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue


TITLES = ["queue", "waiting", "leased", "scheduled", "dead"]


async def fill(queue: AsyncWorkQueue) -> None:
    """Leave 4 items waiting, 3 leased, 2 scheduled, and one dead letter."""
    await queue.add_items([Item(b"x") for _ in range(8)])
    await queue.add_items([Item(b"x") for _ in range(2)], delay=100)
    leases = await queue.lease_many(4, 100)
    await queue.fail(leases[0], "given up")


async def test_the_named_queues_are_counted(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    idle = make_queue(name="{idle}")
    await fill(queue)
    await use(idle)
    outcome = await leasequeue("ls", queue.name, idle.name)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.table == [TITLES, [queue.name, "4", "3", "2", "1"], ["{idle}", "0", "0", "0", "0"]]


@pytest.mark.seed("RWQ-O23", "WRQ-O17")
async def test_without_names_the_queues_of_the_server_are_counted(
    leasequeue: Leasequeue, make_queue: MakeQueue
) -> None:
    busy, done = make_queue(name="a b:ü"), make_queue(name="{done}")
    await fill(busy)
    await use(done)
    outcome = await leasequeue("ls", "--json", "--all")
    assert (outcome.code, outcome.err) == (0, "")
    assert [line for line in outcome.documents if line["queue"] in (busy.name, done.name)] == [
        {"queue": "a b:ü", "waiting": 4, "leased": 3, "scheduled": 2, "dead": 1, "paused": False},
        {"queue": "{done}", "waiting": 0, "leased": 0, "scheduled": 0, "dead": 0, "paused": False},
    ]


async def test_a_queue_is_found_by_any_of_its_keys(make_queue: MakeQueue, redis_url: str) -> None:
    delayed, planned = make_queue(name="delayed"), make_queue(name="planned")
    await delayed.add_item(Item(b"x"), delay=100)
    await planned.schedules.every(100, "poll")
    assert {"delayed", "planned"} <= {*(await find_queues(redis_url)).names}


async def test_keys_that_only_look_like_a_queue_are_left_out(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    before = (await find_queues(redis_url)).names
    for item_id in ("other:queue", "other:dead", "other:fence"):
        await queue.add_item(Item(b"x", id=item_id))
        await queue.fail(await take(queue), "given up")
        await queue.add_item(Item(b"x", id=item_id))
    await redis.set("program:queue", "a string")
    await redis.rpush("program:fence", "a list")
    await redis.rpush(b"\xff:queue", "no text")
    await redis.rpush(":queue", "no name")
    assert {*(await find_queues(redis_url)).names} - {*before} == {queue.name}


async def test_a_search_stops_at_its_limits(
    make_queue: MakeQueue, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "STEP_KEYS", 10)
    for number in range(5):
        await make_queue(name=f"q{number}").add_items([Item(b"x") for _ in range(10)])
    assert (await find_queues(redis_url)).complete
    assert not (await find_queues(redis_url, max_keys=20)).complete
    names, complete = await find_queues(redis_url, max_queues=3)
    assert (len(names), complete) == (3, False)
    await redis.delete(*[f"q{number}:queue" for number in range(5)])


async def test_the_other_queues_are_counted_if_one_cannot_be(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x"))
    await redis.set("spoiled:dead", "a string")
    outcome = await leasequeue("ls", "spoiled", queue.name)
    assert outcome.code == 0
    assert outcome.error.startswith("spoiled: ")
    assert outcome.table == [TITLES, [queue.name, "1", "0", "0", "0"]]


# ------------------------------------------------------------------------------------------------------- fsck


async def test_what_is_repaired_is_shown_for_each_queue(
    leasequeue: Leasequeue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    first, second = make_queue(name=f"{name}-1"), make_queue(name=f"{name}-2")
    await redis.set(f"{first.name}:item:a", "x")
    await second.add_item(Item(b"x", id="b"))
    await take(second, 30)
    await redis.delete(f"{second.name}:deadlines")
    outcome = await leasequeue("fsck", first.name, second.name, "--json")
    assert outcome.code == 1
    assert outcome.documents == [
        {
            "queue": first.name,
            "problem": "lost_item",
            "count": 1,
            "repaired": True,
            "found": "an item is in no list",
            "done": "requeued, to the end",
            "examples": ["a"],
        },
        {
            "queue": second.name,
            "problem": "lost_lease",
            "count": 1,
            "repaired": True,
            "found": "an item has the lease keys of a lease, and no entry in `P:deadlines`",
            "done": "the entry was written; the lease expires with the keys",
            "examples": ["b"],
        },
    ]
    assert await leasequeue("fsck", first.name, second.name) == (0, "", "")


async def test_what_is_left_to_the_user_has_its_own_exit_code(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    await redis.set(f"{queue.name}:lease:a", "a client of another library")
    outcome = await leasequeue("fsck", queue.name)
    assert outcome.code == 3
    titles, row = outcome.table
    assert titles == ["queue", "problem", "count", "done", "examples"]
    assert row[:3] == [queue.name, "endless_foreign_lease", "1"]
    assert "not repaired: delete the key" in outcome.out


# -------------------------------------------------------------------------------------- limits, pause, resume


async def test_limits_are_set_shown_and_removed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await use(queue)
    outcome = await leasequeue("limits", queue.name)
    assert (outcome.code, outcome.out) == (0, "")
    assert "has no limits" in outcome.error
    assert (
        await leasequeue("limits", queue.name, "--rate", "10/s", "--burst", "5", "--ageing", "1m")
    ).code == 0
    assert (await leasequeue("limits", queue.name, "--group", "*", "--concurrency", "2")).code == 0
    outcome = await leasequeue("limits", queue.name, "--group", "g", "--rate", "1/m", "--json")
    assert [(row["of"], row["group"], row["rate"], row["concurrency"]) for row in outcome.documents] == [
        ("queue", None, "10/s", None),
        ("each group", "*", None, 2),
        ("group", "g", "1/m", None),
    ]
    outcome = await leasequeue("limits", queue.name, "--group", "g")
    assert (len(outcome.out.splitlines()), outcome.err) == (2, "")
    assert (await leasequeue("limits", queue.name, "--remove", "rate")).code == 0
    assert (await leasequeue("limits", queue.name, "--remove", "rate")).code == 1
    assert (await leasequeue("limits", queue.name, "--remove", "all", "--group", "g")).code == 0
    found = await queue.limits.get()
    assert (found.queue, found.each_group, found.groups) == (Limit(), Limit(concurrency=2), {})


async def test_limits_that_handlers_hold_are_set_shown_with_their_use_and_removed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await use(queue)
    name, by_hold = queue.name, ("--hold", "api")
    assert (await leasequeue("limits", name, *by_hold, "--concurrency", "2", "--rate", "9/s")).code == 0
    await queue.limits.set(group="g", concurrency=3)
    async with queue.limits.hold("api"):
        shown = (await leasequeue("limits", name, "--json")).documents
        rows = [(row["of"], row["rate"], row["concurrency"], row["used"], row["waiting"]) for row in shown]
        assert rows == [("group", None, 3, 0, None), ("hold api", "9/s", 2, 1, 0)]
        assert len((await leasequeue("limits", name, *by_hold)).table) == 2
    refused = await leasequeue("limits", name, *by_hold, "--remove", "rate")
    assert "with --hold, remove all" in refused.err
    assert (await leasequeue("limits", name, *by_hold, "--remove", "all")).code == 0
    assert (await leasequeue("limits", name, *by_hold, "--remove", "all")).code == 1
    assert await queue.limits.holds() == {}


async def test_ls_marks_queues_that_are_paused_now(
    leasequeue: Leasequeue, redis: Redis, queue: AsyncWorkQueue, make_queue: MakeQueue
) -> None:
    names = queue.name, make_queue(name=f"{queue.name}-other").name
    await use(queue)
    await use(other := make_queue(name=names[1]))
    await queue.pause(reason="deploy")
    await other.pause(group="g")
    outcome = await leasequeue("ls", *names)
    assert [row[-1] for row in outcome.table] == ["paused", "yes", "-"]
    assert [line["paused"] for line in (await leasequeue("ls", *names, "--json")).documents] == [True, False]

    await queue.pause(until=datetime.now(UTC) + timedelta(hours=1))
    assert (await leasequeue("ls", queue.name, "--json")).document["paused"] is True
    await redis.hset(f"{queue.name}:control", "paused", "1000 1 deploy")  # its time has passed
    assert (await queue.limits.get()).paused is not None
    assert (await leasequeue("ls", queue.name)).table[0] == TITLES


async def test_a_queue_and_a_group_are_paused_and_resumed(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await use(queue)
    assert (await leasequeue("resume", queue.name)).error == f"{queue.name!r} was not paused"
    assert await leasequeue("pause", queue.name, "--reason", "the mail server is down") == (
        0,
        f"{queue.name!r} is paused: its items wait until you call `leasequeue resume`\n",
        "",
    )
    timed = await leasequeue("pause", queue.name, "--group", "g", "--for", "10")
    starts = f"the group 'g' of {queue.name!r} is paused for 10 s: its items wait until 20"
    assert (timed.code, timed.out.startswith(starts)) == (0, True)
    outcome = await leasequeue("pause", queue.name, "--group", "g", "--for", "1h", "--json")
    assert (outcome.code, outcome.document["group"], outcome.document["reason"]) == (0, "g", "")
    outcome = await leasequeue("limits", queue.name)
    assert "the mail server is down" in outcome.out
    assert len(outcome.out.splitlines()) == 3
    assert await leasequeue("resume", queue.name) == (
        0,
        f"{queue.name!r} is resumed: its items are leased again\n",
        "",
    )
    outcome = await leasequeue("resume", queue.name, "--group", "g", "--json")
    assert (outcome.code, outcome.document["resumed"]) == (0, True)
    outcome = await leasequeue("resume", queue.name, "--group", "g")
    assert (outcome.code, "'g'" in outcome.error) == (1, True)
    past = await leasequeue("pause", queue.name, "--until", "2020-01-01T00:00Z")
    assert "2020-01-01T00:00:00+00:00, expected a time in the future" in usage_error(past)


# ----------------------------------------------------------------------------------------------------- events


async def test_kept_events_are_switched_on_printed_and_switched_off(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    missing = await leasequeue("events", queue.name)
    assert (missing.code, missing.out) == (2, "")
    assert "keeps no events: `leasequeue events" in missing.error
    assert (await leasequeue("events", queue.name, "--keep", "100")).error == (
        f"{queue.name} keeps about 100 events from now on"
    )
    await queue.add_item(Item(b"12", id="a"))
    await queue.complete(await take(queue))
    lines = (await leasequeue("events", queue.name)).table
    assert [(line[1], line[2]) for line in lines] == [("added", "a"), ("leased", "a"), ("completed", "a")]
    assert lines[0][0].endswith("Z")
    assert lines[0][3:] == ["size=2"]
    chosen = await leasequeue("events", queue.name, "--json", "--kind", "leased", "--id", "a")
    assert chosen.document["holder"] == queue.session
    assert chosen.document["due"] > chosen.document["at"]
    rest = await leasequeue("events", queue.name, "--json", "--since", str(chosen.document["number"]))
    assert rest.document["what"] == "completed"
    assert (await leasequeue("events", queue.name, "--stop")).code == 0
    assert (await leasequeue("events", queue.name)).code == 2


@pytest.mark.slow
async def test_published_events_are_printed_until_it_is_stopped(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    assert (await leasequeue("events", queue.name, "--publish")).code == 0
    command = ("events", queue.name, "--live", "--json", "--url", redis_url)
    async with started(*command) as process:
        assert process.stdout

        async def subscribed() -> bool:
            [(_, count)] = await redis.pubsub_numsub(f"{queue.name}:live")
            return int(count) > 0

        await until("the command reads", subscribed)
        await queue.add_item(Item(b"12", id="a"))
        await queue.complete(await take(queue), result=b"done", keep_result=None)
        events = [json.loads(await process.stdout.readline()) for _ in range(3)]
        assert [event["what"] for event in events] == ["added", "leased", "completed"]
        assert (events[2]["result"], events[2]["result_encoding"]) == ("done", "utf-8")
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


# -------------------------------------------------- peek, mv, purge, rm, recover, clear-leases, clean --lines


async def add(queue: AsyncWorkQueue, *ids: str) -> None:
    assert all(await queue.add_items([Item(f"data {one}".encode(), id=one) for one in ids]))


@pytest.mark.seed("WRQ-O18")
async def test_peek_shows_what_is_leased_next(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await use(queue)
    outcome = await leasequeue("peek", queue.name)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error == f"{queue.name} has no waiting items"
    await add(queue, "a", "b", "c")
    await take(queue)
    outcome = await leasequeue("peek", queue.name)
    assert outcome.code == 0
    assert outcome.table[1][:3] == ["b", "waiting", "6"]
    outcome = await leasequeue("peek", queue.name, "--count", "5", "--json")
    assert [(one["queue"], one["id"], one["data"]) for one in outcome.documents] == [
        (queue.name, "b", "data b"),
        (queue.name, "c", "data c"),
    ]


async def test_mv_moves_items(leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    other = make_queue(name=f"{queue.name}-other")
    await add(queue, "a", "b", "c", "d")
    outcome = await leasequeue("mv", queue.name, other.name, "--count", "1")
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.error == f"no such queue: {other.name}; there is {queue.name}, and --create makes a new one"
    )
    outcome = await leasequeue("mv", queue.name, other.name, "--count", "1", "--create")
    assert (outcome.code, outcome.out) == (0, "1 moved\n")
    outcome = await leasequeue("mv", queue.name, other.name, "c", "missing", "--json")
    assert (outcome.code, outcome.document) == (1, {"queue": queue.name, "moved": 1, "missed": ["missing"]})
    assert "'missing' was not moved" in outcome.error
    outcome = await leasequeue("mv", queue.name, other.name, "--json")
    assert outcome.document == {"queue": queue.name, "moved": 2, "missed": []}
    assert [view.id for view in await other.inspect()] == ["a", "c", "b", "d"]


@pytest.mark.seed("WRQ-O21")
async def test_purge_removes_what_waits(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await add(queue, "dead", "leased", "a", "b")
    await queue.fail(await take(queue), "an error")
    await take(queue)
    await queue.add_item(Item(b"x"), delay=100)
    outcome = await leasequeue("purge", queue.name)
    assert outcome.code == 2
    assert "Nothing was done" in outcome.error
    outcome = await leasequeue("purge", queue.name, "--yes")
    assert (outcome.code, outcome.out) == (0, "2 purged\n")
    assert await queue.counts() == (0, 1, 1, 1)
    outcome = await leasequeue("purge", queue.name, "--yes", "--scheduled", "--dead", "--json")
    assert outcome.document == {"queue": queue.name, "purged": 2, "missed": []}
    assert await queue.counts() == (0, 1, 0, 0)


async def test_a_deletion_that_was_interrupted_is_told_at_once(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await add(queue, "a", "b")
    outcome = await leasequeue("ls", queue.name)
    assert (outcome.table[1], outcome.err) == ([queue.name, "2", "0", "0", "0"], "")
    await engine_of(queue).bulk.run("close_queue", count=1)
    outcome = await leasequeue("ls", queue.name)
    assert outcome.table[1] == [queue.name, "0", "0", "0", "0"]
    assert f"{queue.name} is being deleted" in outcome.error
    outcome = await leasequeue("fsck", queue.name)
    assert (outcome.code, outcome.table[1][1]) == (3, "unfinished_deletion")
    assert (await leasequeue("rm", queue.name, "--yes")).code == 0
    assert (await leasequeue("ls", queue.name)).error.startswith("no such queue")


@pytest.mark.seed("WRQ-O21")
async def test_rm_deletes_queues(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    await add(queue, "a", "b")
    await add(other, "c")
    outcome = await leasequeue("rm", queue.name, other.name)
    assert outcome.code == 2
    assert f"Delete {queue.name}, {other.name}" in outcome.error
    assert await queue.queue_len() == 2
    outcome = await leasequeue("rm", queue.name, other.name, "--yes", "--json")
    assert outcome.code == 0
    assert outcome.documents == [
        {"queue": queue.name, "deleted": 2},
        {"queue": other.name, "deleted": 1},
    ]
    assert not await redis.keys(f"{queue.name}*")
    await use(queue)
    wrong = await leasequeue("rm", queue.name, other.name, "--yes")
    assert (wrong.code, wrong.out) == (1, "")
    assert (await leasequeue("rm", queue.name, "--yes")).table == [["queue", "deleted"], [queue.name, "0"]]
    await add(queue, "a")
    twice = await leasequeue("rm", queue.name, queue.name, "--yes")
    assert twice.table == [["queue", "deleted"], [queue.name, "1"]]


async def test_ls_lists_no_queue_that_was_deleted_or_is_used_for_nothing(
    leasequeue: Leasequeue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    deleted, planned, paused = (
        make_queue(name=f"{name}-{what}") for what in ("deleted", "planned", "paused")
    )
    for queue in (deleted, planned, paused):
        await add(queue, "a")
        assert await queue.complete(await take(queue))
    await add(deleted, "b")
    await planned.schedules.every(3_600, "hourly")
    await paused.pause()

    async def listed(*arguments: str) -> list[str]:
        found = (await leasequeue(*arguments, "--json")).documents
        return [line["queue"] for line in found if line["queue"].startswith(name)]

    shown = [paused.name, planned.name]
    assert await listed("ls") == [deleted.name, *shown]
    assert (await leasequeue("rm", deleted.name, "--yes")).code == 0
    assert await redis.keys(f"{deleted.name}:*") == [f"{deleted.name}:fence".encode()]
    assert await listed("ls") == await listed("stats") == shown
    assert "more, in which nothing is to be done: see --all" in (await leasequeue("ls")).err
    assert await listed("ls", "--all") == await listed("stats", "--all") == [deleted.name, *shown]
    assert (await leasequeue("ls", deleted.name)).table[1] == [deleted.name, "0", "0", "0", "0"]


@pytest.mark.seed("RRQ-O5")
async def test_recover_returns_what_was_leased_long_ago(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await add(queue, "a", "b\x1b", "c")
    await queue.lease_many(2, 60)
    outcome = await leasequeue("recover", queue.name, "--elapsed", "5m")
    assert (outcome.code, outcome.out) == (0, "")
    outcome = await leasequeue("recover", queue.name, "--elapsed", "0s", "--count", "1")
    assert (outcome.code, outcome.out) == (0, "a\n")
    outcome = await leasequeue("recover", queue.name, "--elapsed", "0s")
    assert outcome.out == "b\\x1b\n"
    assert [view.id for view in await queue.inspect()] == ["b\x1b", "a", "c"]
    await take(queue)
    outcome = await leasequeue("recover", queue.name, "--elapsed", "0s", "--json")
    assert outcome.document == {"queue": queue.name, "recovered": 1, "ids": ["b\x1b"]}
    assert "--elapsed" in (await leasequeue("recover", queue.name)).err


@pytest.mark.seed("RWQ-O20")
async def test_clear_leases_ends_those_of_one_queue_or_of_all(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    for one in (queue, other):
        await add(one, "a", "b")
        await one.lease_many(2, 60)
    await redis.delete(f"{other.name}:lease:a", f"{other.name}:leased_by_session:a")
    outcome = await leasequeue("clear-leases", queue.name, "--yes")
    assert outcome.table == [["queue", "cleared"], [queue.name, "2"]]
    assert await queue.counts() == (2, 0, 0, 0)
    assert await other.counts() == (0, 2, 0, 0)
    outcome = await leasequeue("clear-leases")
    assert outcome.code == 2
    assert "ALL queues" in outcome.error
    outcome = await leasequeue("clear-leases", "--yes", "--json")
    rows = {row["queue"]: row["cleared"] for row in outcome.documents}
    assert (rows[queue.name], rows[other.name]) == (0, 2)
    assert await other.counts() == (2, 0, 0, 0)


async def test_clear_leases_of_all_goes_on_after_a_queue_that_it_cannot_treat(
    leasequeue: Leasequeue, make_queue: MakeQueue, name: str, redis: Redis
) -> None:
    queues = [make_queue(name=f"{letter}-{name}") for letter in "abc"]
    for one in queues:
        await add(one, "a")
        await one.lease(60)
    deadlines = f"{queues[1].name}:deadlines"
    await redis.delete(deadlines)
    await redis.set(deadlines, "of another type")
    outcome = await leasequeue("clear-leases", "--yes", "--json")
    cleared = {row["queue"]: row["cleared"] for row in outcome.documents}
    assert outcome.code == 5
    assert outcome.error.startswith(f"{queues[1].name}: ")
    assert [cleared.get(one.name) for one in queues] == [1, None, 1]
    assert (await leasequeue("clear-leases", queues[1].name, "--yes")).code == 5


@pytest.mark.seed("RWQ-O21")
async def test_clean_answers_lines(queue: AsyncWorkQueue, redis: Redis, redis_url: str) -> None:
    await add(queue, "expired")
    await take(queue, 0.001)
    await redis.set(f"{queue.name}:item:orphan", "x")
    async with started("clean", "--lines", "--url", redis_url, stdin=PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr

        async def answer(line: str) -> bytes:
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{line}\n".encode())
            return await process.stdout.readline()

        assert await answer(f"light:{queue.name}") == f"light cleaned {queue.name}\n".encode()
        assert [view.id for view in await queue.inspect()] == ["expired"]
        assert await answer(f"deep:{queue.name}") == f"deep cleaned {queue.name}\n".encode()
        assert [view.id for view in await queue.inspect()] == ["expired", "orphan"]
        process.stdin.write(b"medium:x\n")
        assert b"expected light:QUEUE or deep:QUEUE" in await process.stderr.readline()
        assert await answer("light:a:b c") == b"light cleaned a:b c\n"
        process.stdin.close()
        assert await process.wait() == 1


async def test_clean_answers_lines_in_json_and_takes_no_queues(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await add(queue, "expired")
    await take(queue, 0.001)
    outcome = await leasequeue("clean", "--lines", "--json", stdin=f"light:{queue.name}\n".encode())
    assert outcome.code == 0
    [line] = [json.loads(line) for line in outcome.out.splitlines()]
    assert (line["queue"], line["cleaned"], line["reclaimed"]) == (queue.name, "light", 1)


# ---------------------------------------------------------------------------------------------------- workers


ABOUT = {
    "name": "mailer",
    "host": "web-1",
    "pid": 7,
    "started": 1_700_000_000_000,
    "concurrency": 5,
    "runs": 1200,
    "failures": 3,
    "running": [["m1", "send", 1_700_000_000_500]],
}


async def register(queue: AsyncWorkQueue, *, alive_ms: int = 600_000, **about: object) -> str:
    """Register the session of the test as a worker."""
    assert (await engine_of(queue).registry.beat({**ABOUT, **about}, alive_ms=alive_ms, first=True)).accepted
    return queue.session


async def test_ls_lists_the_workers(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await use(queue)
    outcome = await leasequeue("workers", "ls", queue.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", "no worker is registered")
    session = await register(queue)
    everywhere = await leasequeue("workers", "ls")
    assert everywhere.table[1][2] == queue.name
    assert everywhere.error == (
        f"what has failed for good is in the dead letters: `leasequeue dead ls {queue.name}`"
    )
    outcome = await leasequeue("workers", "ls", queue.name, queue.name)
    assert outcome.table[0] == ["worker", "state", "queues", "running", "runs", "failures", "since"]
    assert outcome.table[1][:6] == ["mailer", "working", queue.name, "1", "1,200", "3"]
    (document,) = (await leasequeue("workers", "ls", queue.name, "--json")).documents
    assert (document["name"], document["host"], document["pid"]) == ("mailer", "web-1", 7)
    assert (document["state"], document["sessions"]) == ("working", {queue.name: session})
    (run,) = document["running"]
    assert (run["id"], run["handler"]) == ("m1", "send")


async def test_ls_says_who_is_quiet_stopping_or_dead(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await register(queue, quiet=True)
    assert (await leasequeue("workers", "ls", queue.name)).table[1][1] == "quiet"
    assert (await leasequeue("workers", "stop", queue.name, "mailer")).code == 0
    assert (await leasequeue("workers", "ls", queue.name)).table[1][1] == "stopping"
    assert (await leasequeue("workers", "ls", queue.name, "--dead")).error == "no dead worker"
    await register(queue, alive_ms=-1)
    assert (await leasequeue("workers", "ls", queue.name, "--dead")).table[1][1] == "dead"


async def test_fail_returns_the_items_of_a_worker(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"x", id=one) for one in "ab")
    lease = await take(queue)
    session = await register(queue)
    outcome = await leasequeue("workers", "fail", queue.name, session, "--json")
    assert json.loads(outcome.out) == {"queue": queue.name, "worker": session, "returned": 1}
    assert [view.id for view in await queue.inspect()] == ["a", "b"]
    assert not await queue.complete(lease)
    outcome = await leasequeue("workers", "fail", queue.name, "mailer")
    assert outcome.code == 1
    assert outcome.error.startswith(
        f"no worker 'mailer' is registered on {queue.name!r}: `leasequeue workers ls"
    )


async def test_a_worker_is_told_what_to_do(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await register(queue)
    for what in ("quiet", "resume"):
        outcome = await leasequeue("workers", what, queue.name, "mailer", "--json")
        assert json.loads(outcome.out) == {"queue": queue.name, "worker": "mailer", "ordered": what}
        (one,) = await engine_of(queue).registry.workers()
        assert one.order == what
        assert (await leasequeue("workers", what, queue.name, "another")).code == 1
