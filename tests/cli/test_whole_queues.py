"""`leasequeue peek`, `mv`, `purge`, `rm`, `recover`, `clear-leases` and `clean --lines`."""

from __future__ import annotations

import json
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.queue.queue import engine_of
from tests.cli.program import started
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue


async def fill(queue: AsyncWorkQueue, *ids: str) -> None:
    assert all(await queue.add_items([Item(f"data {one}".encode(), id=one) for one in ids]))


@pytest.mark.seed("WRQ-O18")
async def test_peek_shows_what_is_leased_next(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("peek", queue.name)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error == f"{queue.name} has no waiting items"
    await fill(queue, "a", "b", "c")
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
    await fill(queue, "a", "b", "c", "d")
    outcome = await leasequeue("mv", queue.name, other.name, "--count", "1")
    assert (outcome.code, outcome.out) == (0, "1 moved\n")
    outcome = await leasequeue("mv", queue.name, other.name, "c", "missing", "--json")
    assert (outcome.code, outcome.document) == (1, {"queue": queue.name, "moved": 1, "missed": ["missing"]})
    assert "'missing' was not moved" in outcome.error
    outcome = await leasequeue("mv", queue.name, other.name, "--json")
    assert outcome.document == {"queue": queue.name, "moved": 2, "missed": []}
    assert [view.id for view in await other.inspect()] == ["a", "c", "b", "d"]


@pytest.mark.seed("WRQ-O21")
async def test_purge_removes_what_waits(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await fill(queue, "dead", "leased", "a", "b")
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
    await fill(queue, "a", "b")
    outcome = await leasequeue("ls", queue.name)
    assert (outcome.table[1], outcome.err) == ([queue.name, "2", "0", "0", "0"], "")
    await engine_of(queue).bulk.run("close_queue", count=1)
    outcome = await leasequeue("ls", queue.name)
    assert outcome.table[1] == [queue.name, "0", "0", "0", "0"]
    assert f"{queue.name} is being deleted" in outcome.error
    outcome = await leasequeue("fsck", queue.name)
    assert (outcome.code, outcome.table[1][1]) == (3, "unfinished_deletion")
    await leasequeue("rm", queue.name, "--yes")
    assert (await leasequeue("ls", queue.name)).err == ""


@pytest.mark.seed("WRQ-O21")
async def test_rm_deletes_queues(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    other = make_queue(name=f"{queue.name}-other")
    await fill(queue, "a", "b")
    await fill(other, "c")
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
    assert (await leasequeue("rm", queue.name, "--yes")).table == [["queue", "deleted"], [queue.name, "0"]]


@pytest.mark.seed("RRQ-O5")
async def test_recover_returns_what_was_leased_long_ago(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await fill(queue, "a", "b\x1b", "c")
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
        await fill(one, "a", "b")
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


@pytest.mark.seed("RWQ-O21")
async def test_clean_answers_lines(queue: AsyncWorkQueue, redis: Redis, redis_url: str) -> None:
    await fill(queue, "expired")
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
    await fill(queue, "expired")
    await take(queue, 0.001)
    outcome = await leasequeue("clean", "--lines", "--json", stdin=f"light:{queue.name}\n".encode())
    assert outcome.code == 0
    [line] = [json.loads(line) for line in outcome.out.splitlines()]
    assert (line["queue"], line["cleaned"], line["reclaimed"]) == (queue.name, "light", 1)
