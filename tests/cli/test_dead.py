"""`leasequeue dead`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import time
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.cli.program import started
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue

TRACEBACK = 'Traceback (most recent call last):\n  File "work.py", line 1, in work\n'


@pytest.fixture(autouse=True)
async def dead(queue: AsyncWorkQueue) -> None:
    """Make five dead letters, d4 last."""
    for number in range(5):
        await queue.add_item(Item(b"data", id=f"d{number}"))
        await queue.fail(await take(queue), f"{TRACEBACK}ValueError: {number}\n")


async def left(queue: AsyncWorkQueue) -> list[str]:
    """Return the ids of the dead letters."""
    return sorted(letter.id for letter in await queue.dead_letters.list())


async def test_ls_lists_the_newest_first_with_the_last_line_of_the_error(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    outcome = await leasequeue("dead", "ls", queue.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles, *rows = outcome.table
    assert titles == ["id", "task", "died", "attempt", "bytes", "error"]
    assert [(row[0], row[1], row[3:]) for row in rows] == [
        (f"d{number}", "-", ["1", "4", "ValueError:", f"{number}"]) for number in (4, 3, 2, 1, 0)
    ]


async def test_ls_shows_whole_errors_on_a_pipe(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b"x", "long"))
    await queue.fail(await take(queue), f"Traceback\n  a line\nValueError: {'long ' * 100}end")
    outcome = await leasequeue("dead", "ls", queue.name, "--count", "1")
    assert outcome.out.splitlines()[1].endswith(f"ValueError: {'long ' * 100}end")


async def test_ls_has_a_limit_and_a_start(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("dead", "ls", queue.name, "--count", "2", "--start", "1", "--json")
    assert [line["id"] for line in outcome.documents] == ["d3", "d2"]
    outcome = await leasequeue("dead", "ls", queue.name, "--count", "2")
    assert outcome.error == "3 more: see --count and --start"
    await queue.dead_letters.drop_all()
    outcome = await leasequeue("dead", "ls", queue.name)
    assert (outcome.code, outcome.error) == (0, f"{queue.name} has no dead letters")


@pytest.fixture
async def failed(queue: AsyncWorkQueue) -> None:
    """Make four more dead letters. Two are too long to be listed with their data."""
    long = "x" * (8 << 20)
    for item_id, task, note, error in (
        ("m1", "send_mail", "", "TimeoutError: no answer"),
        ("m2", "send_mail", "", "ValueError: no address"),
        ("r1", "resize", long, "TimeoutError: no answer"),
        ("m3", "send_mail", long, "TimeoutError: no answer"),
    ):
        data = json.dumps({"task": task, "args": {"note": note}}).encode()
        await queue.add_item(Item(data, id=item_id))
        await queue.fail(await take(queue), error)


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (("--task", "send_mail"), ["m3", "m2", "m1"]),
        (("--error", "Timeout"), ["m3", "r1", "m1"]),
        (("--task", "send_mail", "--error", "Timeout", "--since", "1h"), ["m3", "m1"]),
        (("--error", "no such text"), []),
    ],
    ids=" ".join,
)
async def test_ls_and_requeue_choose_by_task_error_and_time(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, filters: tuple[str, ...], ids: list[str]
) -> None:
    outcome = await leasequeue("dead", "ls", queue.name, *filters)
    assert [row[0] for row in outcome.table[1:]] == ids
    assert outcome.err == "" if ids else outcome.error == f"{queue.name} has no such dead letters"
    tried = await leasequeue("dead", "requeue", queue.name, "--all", "--dry-run", *filters)
    assert (tried.code, tried.out) == (0, f"{len(ids)} would be requeued\n")
    assert len(await left(queue)) == 9
    done = await leasequeue("dead", "requeue", queue.name, "--all", *filters)
    assert (done.code, done.out) == (0, f"{len(ids)} requeued\n")
    assert [view.id for view in await queue.inspect()] == ids[::-1]


async def test_old_dead_letters_are_left_out_by_the_servers_clock(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await redis.zadd(f"{queue.name}:dead", {"d1": (time.time() - 7_200) * 1000})
    outcome = await leasequeue("dead", "ls", queue.name, "--since", "1h", "--count", "2")
    assert [row[0] for row in outcome.table[1:]] == ["d4", "d3"]
    assert outcome.error == "2 more: see --count and --start"
    assert (
        await leasequeue("dead", "requeue", queue.name, "--all", "--dry-run")
    ).out == "5 would be requeued\n"
    await leasequeue("dead", "requeue", queue.name, "--all", "--since", "1h")
    assert await left(queue) == ["d1"]


async def test_ls_shows_the_task(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_item(Item(b'{"task": "send_mail", "args": {}}', id="m1"))
    await queue.fail(await take(queue), "an error")
    assert (await leasequeue("dead", "ls", queue.name, "--count", "1")).table[1][:2] == ["m1", "send_mail"]


async def test_show_prints_one_in_full(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("dead", "show", queue.name, "d1")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Traceback (most recent call last):\n" in outcome.out
    assert outcome.out.endswith("\n  ValueError: 1\n\ndata\n  data\n")
    document = (await leasequeue("dead", "show", queue.name, "d1", "--json")).document
    assert document["error"].endswith("\nValueError: 1\n")
    assert {key: document[key] for key in ("queue", "id", "data", "attempt", "token")} == {
        "queue": queue.name,
        "id": "d1",
        "data": "data",
        "attempt": 1,
        "token": 2,
    }
    outcome = await leasequeue("dead", "show", queue.name, "d9")
    assert (outcome.code, outcome.error) == (1, f"{queue.name!r} has no dead letter with the id 'd9'")


async def test_requeue_moves_the_given_ones(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    assert await leasequeue("dead", "requeue", queue.name, "d3", "d1") == (0, "2 requeued\n", "")
    assert [view.id for view in await queue.inspect()] == ["d3", "d1"]
    assert await left(queue) == ["d0", "d2", "d4"]


async def test_requeue_reports_which_were_not_moved_and_why(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"new", id="d0"))
    outcome = await leasequeue("dead", "requeue", queue.name, "d0", "d1", "d9")
    assert (outcome.code, outcome.out) == (1, "1 requeued\n")
    assert outcome.err.splitlines() == [
        "leasequeue: 'd0' was not moved: its id is in the queue again",
        "leasequeue: 'd9' is not a dead letter",
    ]
    outcome = await leasequeue("dead", "requeue", queue.name, "d0", "d9", "--json")
    assert outcome.code == 1
    assert outcome.document == {"queue": queue.name, "requeued": 0, "missed": ["d0", "d9"]}


async def test_requeue_moves_all_the_oldest_first(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("dead", "requeue", queue.name, "--all", "--json")
    assert (outcome.code, outcome.document["requeued"]) == (0, 5)
    assert [view.id for view in await queue.inspect()] == ["d0", "d1", "d2", "d3", "d4"]


async def test_drop_deletes_the_given_ones(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("dead", "drop", queue.name, "d3", "d9")
    assert (outcome.code, outcome.out, outcome.error) == (1, "1 dropped\n", "'d9' is not a dead letter")
    assert await left(queue) == ["d0", "d1", "d2", "d4"]


async def test_drop_deletes_those_older_than_a_duration(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    assert await leasequeue("dead", "drop", queue.name, "--older-than", "1d") == (0, "0 dropped\n", "")
    outcome = await leasequeue("dead", "drop", queue.name, "--older-than", "0s", "--json")
    assert (outcome.code, outcome.document["dropped"]) == (0, 5)


async def test_drop_deletes_all_only_after_a_confirmation(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    outcome = await leasequeue("dead", "drop", queue.name, "--all")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Nothing was done: without a terminal, confirm with --yes" in outcome.error
    assert len(await left(queue)) == 5
    assert await leasequeue("dead", "drop", queue.name, "--all", "--yes") == (0, "5 dropped\n", "")


@pytest.mark.parametrize(("answer", "code", "stay"), [(b"y\n", 0, 0), (b"\n", 1, 5)])
async def test_drop_asks_for_a_confirmation_on_a_terminal(
    queue: AsyncWorkQueue, redis_url: str, answer: bytes, code: int, stay: int
) -> None:
    ours, theirs = pty.openpty()
    try:
        arguments = ("dead", "drop", queue.name, "--all", "--url", redis_url)
        async with started(*arguments, stdin=theirs) as process:
            assert process.stderr
            question = await process.stderr.readuntil(b"[y/N]:")
            assert f"Drop all dead letters of {queue.name}".encode() in question
            os.write(ours, answer)
            await asyncio.wait_for(process.communicate(), 120)
        assert process.returncode == code
    finally:
        os.close(ours)
        os.close(theirs)
    assert len(await left(queue)) == stay


async def test_ls_without_a_queue_lists_the_newest_of_all_queues(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    other, spoiled = make_queue(name=f"{queue.name}-b"), make_queue(name=f"{queue.name}-c")
    await other.add_item(Item(b'{"task": "send_mail", "args": {}}', id="m1"))
    await other.fail(await take(other), "TimeoutError")
    await redis.zadd(f"{other.name}:dead", {"m1": (time.time() + 60) * 1000})
    await redis.set(f"{spoiled.name}:dead", "of another type")
    outcome = await leasequeue("dead", "ls", "--count", "3")
    assert [row[:2] for row in outcome.table] == [
        ["queue", "id"],
        *([other.name, "m1"], [queue.name, "d4"], [queue.name, "d3"]),
    ]
    assert outcome.err == "leasequeue: 3 more: see --count\n"

    found = (await leasequeue("dead", "ls", "--json")).documents
    assert [one["id"] for one in found] == ["m1", "d4", "d3", "d2", "d1", "d0"]
    assert {one["queue"] for one in found} == {queue.name, other.name}
    chosen = await leasequeue("dead", "ls", "--task", "send_mail", "--since", "1h")
    assert [row[:2] for row in chosen.table[1:]] == [[other.name, "m1"]]
    both = await leasequeue("dead", "ls", queue.name, other.name, "--error", "ValueError")
    assert [row[1] for row in both.table[1:]] == ["d4", "d3", "d2", "d1", "d0"]
    healthy = await leasequeue("dead", "ls", spoiled.name, queue.name, "--count", "1")
    assert [row[1] for row in healthy.table[1:]] == ["d4"]
    assert healthy.err.startswith(f"leasequeue: {spoiled.name}: ")
    assert (await leasequeue("dead", "ls", "--error", "unheard of")).err.endswith("no such dead letters\n")
    refused = await leasequeue("dead", "ls", "--start", "1")
    assert (refused.code, "needs one QUEUE" in refused.err) == (2, True)
