"""`leasequeue schedule`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leasequeue import TaskQueue
from tests.cli.program import use
from tests.worker.working import new_worker

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue

START = datetime(2030, 1, 31, 9, tzinfo=UTC)


async def test_ls_lists_the_next_due_first(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await use(queue)
    outcome = await leasequeue("schedule", "ls", queue.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{queue.name} has no schedules")
    await queue.schedules.every(3_600, "slow", b"12", start=START)
    await queue.schedules.every(0.5, "fast", catch_up="skip")
    await queue.schedules.cron("0 3 * * *", "nightly", tz="Europe/Berlin")
    outcome = await leasequeue("schedule", "ls", queue.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles, *rows = outcome.out.splitlines()
    assert titles.split() == ["name", "when", "next", "due", "catch", "up", "bytes", "data"]
    assert [row.split()[0] for row in rows] == ["fast", "nightly", "slow"]
    assert "every 0.5 s" in rows[0]
    assert "skip" in rows[0]
    assert "0 3 * * * (Europe/Berlin)" in rows[1]
    assert "every 3,600 s from 2030-01-31T09:00:00.000Z" in rows[2]


async def test_ls_prints_json(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.schedules.every(3_600, "slow", b"\xff", start=START)
    outcome = await leasequeue("schedule", "ls", queue.name, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.document == {
        "queue": queue.name,
        "name": "slow",
        "kind": "every",
        "interval": 3_600.0,
        "start": "2030-01-31T09:00:00.000Z",
        "expression": None,
        "tz": None,
        "catch_up": "once",
        "next_due": "2030-01-31T09:00:00.000Z",
        "size": 1,
        "data": "/w==",
        "data_encoding": "base64",
    }


async def test_rm_removes_the_given_ones(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    for name in ("a", "b", "c", "d"):
        await queue.schedules.every(3_600, name)
    assert await leasequeue("schedule", "rm", queue.name, "a", "c") == (0, "2 removed\n", "")
    outcome = await leasequeue("schedule", "rm", queue.name, "b", "z")
    assert (outcome.code, outcome.out) == (1, "1 removed\n")
    assert outcome.error == f"{queue.name!r} has no schedule 'z'"
    outcome = await leasequeue("schedule", "rm", queue.name, "z", "--json")
    assert (outcome.code, outcome.document) == (1, {"queue": queue.name, "removed": 0, "missed": ["z"]})
    assert [view.name for view in await queue.schedules.list()] == ["d"]


async def test_add_stores_a_schedule_for_an_item(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    add = ("schedule", "add", queue.name, "poll")
    every = (*add, "feed", "--every", "5m", "--start", "2030-01-31T09:00Z", "--catch-up", "all")
    assert (await leasequeue(*every)).code == 1
    assert await leasequeue(*every, "--create") == (0, "scheduled\n", "")
    assert await leasequeue(*every) == (0, "unchanged\n", "")
    [view] = await queue.schedules.list()
    assert (view.name, view.interval, view.start, view.catch_up) == ("poll", 300, START, "all")
    assert view.data == b"feed"
    outcome = await leasequeue(*add, "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.document == {"queue": queue.name, "name": "poll", "changed": True}
    [view] = await queue.schedules.list()
    assert (view.expression, view.tz, view.catch_up) == ("0 3 * * *", "Europe/Berlin", "once")
    assert view.data == b""


async def test_run_adds_the_item_of_a_schedule_now(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.schedules.every(3_600, "poll", b"feed", start=START)
    first = await leasequeue("schedule", "run", queue.name, "poll")
    assert (first.code, first.err) == (0, "")
    second = await leasequeue("schedule", "run", queue.name, "poll", "--json")
    assert second.code == 0
    assert second.document == {"queue": queue.name, "id": second.document["id"], "added": True}
    leases = await queue.lease_many(9, 30, block=False)
    assert [lease.id for lease in leases] == [first.out.strip(), second.document["id"]]
    assert all(lease.id.startswith("poll@20") and lease.data == b"feed" for lease in leases)
    [view] = await queue.schedules.list()
    assert view.next_due == START
    outcome = await leasequeue("schedule", "run", queue.name, "z")
    assert (outcome.code, outcome.error) == (1, f"{queue.name!r} has no schedule 'z'")


async def test_run_needs_the_codec_of_the_data(
    leasequeue: Leasequeue, make_queue: MakeQueue, name: str
) -> None:
    codec = "tests.queue.test_codecs:BOTH"
    queue = make_queue(codec=codec)
    await queue.schedules.every(3_600, "poll", b"a secret", start=START)
    outcome = await leasequeue("schedule", "run", name, "poll")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.error == "the data of 'poll' is encoded by aes.new: set LEASEQUEUE_CODEC"
    assert await queue.queue_len() == 0
    assert (await leasequeue("schedule", "run", name, "poll", LEASEQUEUE_CODEC=codec)).code == 0
    assert [lease.data for lease in await queue.lease_many(9, 30, block=False)] == [b"a secret"]


async def test_a_task_is_scheduled_and_run_from_the_command_line(
    leasequeue: Leasequeue, redis_url: str, name: str
) -> None:
    async with TaskQueue.from_url(redis_url, name) as tasks:

        @tasks.task
        async def greet(name: str, greeting: str = "Hello") -> str:
            return f"{greeting}, {name}!"

        given = ("--task", "greet", "--args", '{"name": "Zoë"}')
        outcome = await leasequeue("schedule", "add", name, "hourly", "--every", "1h", "--create", *given)
        assert outcome == (0, "scheduled\n", "")
        outcome = await leasequeue("schedule", "run", name, "hourly")
        await new_worker(tasks).drain()
        assert await greet.job(outcome.out.strip()).result(timeout=120) == "Hello, Zoë!"


async def test_an_expression_that_cannot_be_read_is_refused(
    leasequeue: Leasequeue, queue: AsyncWorkQueue
) -> None:
    outcome = await leasequeue("schedule", "add", queue.name, "poll", "--cron", "0 3 * *", "--create")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.error.startswith("expression: got '0 3 * *', expected a cron expression")
    assert await queue.schedules.list() == []
