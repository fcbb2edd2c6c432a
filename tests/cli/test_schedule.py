"""`leasehold schedule`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.cli.program import usage_error

if TYPE_CHECKING:
    from leasehold import AsyncWorkQueue
    from tests.cli.program import Leasehold

START = datetime(2030, 1, 31, 9, tzinfo=UTC)


async def test_ls_lists_the_next_due_first(leasehold: Leasehold, queue: AsyncWorkQueue) -> None:
    outcome = await leasehold("schedule", "ls", queue.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", f"{queue.name} has no schedules")
    await queue.schedules.every(3_600, "slow", b"12", start=START)
    await queue.schedules.every(0.5, "fast", catch_up="skip")
    await queue.schedules.cron("0 3 * * *", "nightly", tz="Europe/Berlin")
    outcome = await leasehold("schedule", "ls", queue.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles, *rows = outcome.out.splitlines()
    assert titles.split() == ["name", "when", "next", "due", "catch", "up", "bytes", "data"]
    assert [row.split()[0] for row in rows] == ["fast", "nightly", "slow"]
    assert "every 0.5 s" in rows[0]
    assert "skip" in rows[0]
    assert "0 3 * * * (Europe/Berlin)" in rows[1]
    assert "every 3,600 s from 2030-01-31T09:00:00.000Z" in rows[2]


async def test_ls_prints_json(leasehold: Leasehold, queue: AsyncWorkQueue) -> None:
    await queue.schedules.every(3_600, "slow", b"\xff", start=START)
    outcome = await leasehold("schedule", "ls", queue.name, "--json")
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


async def test_rm_removes_the_given_ones(leasehold: Leasehold, queue: AsyncWorkQueue) -> None:
    for name in ("a", "b", "c", "d"):
        await queue.schedules.every(3_600, name)
    assert await leasehold("schedule", "rm", queue.name, "a", "c") == (0, "2 removed\n", "")
    outcome = await leasehold("schedule", "rm", queue.name, "b", "z")
    assert (outcome.code, outcome.out) == (1, "1 removed\n")
    assert outcome.error == f"{queue.name!r} has no schedule 'z'"
    outcome = await leasehold("schedule", "rm", queue.name, "z", "--json")
    assert (outcome.code, outcome.document) == (1, {"queue": queue.name, "removed": 0, "missed": ["z"]})
    assert [view.name for view in await queue.schedules.list()] == ["d"]
    assert "Missing argument 'NAME'" in usage_error(await leasehold("schedule", "rm", queue.name))
