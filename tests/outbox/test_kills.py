"""Relay, database and server are killed at each step: each row is added, and its job is done once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from redis.asyncio import Redis

from leasequeue import ConnectionLost, TaskQueue
from tests.eventually import eventually
from tests.outbox.conftest import Mails
from tests.outbox.steps import STEPS, at_each_step
from tests.queue.asking import until
from tests.queue.test_forks import fork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.postgres import Postgres

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_relays_that_are_killed_at_their_steps_run_each_row_once(
    database: str, redis_url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.outbox.BATCH_ROWS", 40)
    mails = Mails(TaskQueue.from_url(redis_url, name), database)
    ids = [f"{number}" for number in range(200)]
    mails.insert(*(mails.send.options(id=one).call("ann") for one in ids))
    completed = tmp_path / "completed"

    async def complete_all() -> None:
        with completed.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # so that the lines come in the order of the leases
            file.write("".join(f"{one}\n" for one in await mails.complete_all()))

    async def relay_until(last: str) -> None:
        async def die(step: str, _: object) -> None:
            if step == last:
                await complete_all()
                os.kill(os.getpid(), signal.SIGKILL)

        at_each_step(die)
        await mails.outbox.relay(database, interval=0.05).run()

    def in_child(last: str) -> None:
        asyncio.run(relay_until(last))

    async def finish() -> None:
        await mails.drain()
        await complete_all()
        await mails.tasks.close()

    # All at once: when one is killed, another takes over.
    relays = [fork(partial(in_child, step)) for step in STEPS]
    ends = [os.waitstatus_to_exitcode(os.waitpid(relay, 0)[1]) for relay in relays]
    assert ends == [-signal.SIGKILL] * len(STEPS)
    asyncio.run(finish())
    assert completed.read_text().split() == ids, "each once, and in order"
    assert mails.rows() == []


async def test_a_killed_database_loses_no_row_and_repeats_none(
    mails: Mails, server_of_rows: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kill() -> None:
        await asyncio.to_thread(server_of_rows.kill)
        await asyncio.to_thread(server_of_rows.start)

    await killed_at_each_step(mails, kill, monkeypatch)


async def test_a_killed_server_of_the_queue_loses_no_row_and_repeats_none(
    make_server: MakeServer, database: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(port: int = 0) -> Any:
        server = await make_server(dir=tmp_path, port=port)
        async with Redis.from_url(server.url) as admin:
            await admin.config_set("appendfsync", "always")
        return server

    server = await start()

    async def kill() -> None:
        nonlocal server
        os.kill(server.pid, signal.SIGKILL)
        await eventually("the server has gone", lambda: not server.running)
        server = await start(server.port)

    async with TaskQueue.from_url(server.url, name) as tasks:
        await killed_at_each_step(Mails(tasks, database), kill, monkeypatch)


async def test_rows_wait_for_a_server_that_is_away(
    make_server: MakeServer, database: str, name: str, tmp_path: Path
) -> None:
    server = await make_server(dir=tmp_path)
    async with TaskQueue.from_url(server.url, name, reply_timeout=0.2) as tasks:
        mails = Mails(tasks, database)
        mails.insert(*(mails.send.options(id=f"{number}").call("ann") for number in range(3)))
        await server.stop()
        with pytest.raises(ConnectionLost):
            await mails.drain()
        assert mails.rows("error") == [None] * 3, "none is set aside"
        await make_server(dir=tmp_path, port=server.port)

        async def is_relayed() -> bool:
            with suppress(ConnectionLost):
                await mails.drain()
            return not mails.rows()

        await until("they are relayed", is_relayed)
        assert await mails.complete_all() == ["0", "1", "2"]


async def killed_at_each_step(
    mails: Mails, kill: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relay rows while something is killed and started again, once at each step."""
    monkeypatch.setattr("leasequeue.outbox.BATCH_ROWS", 40)
    ids = [f"{number}" for number in range(200)]
    mails.insert(*(mails.send.options(id=one).call("ann") for one in ids))
    done: list[str] = []
    left = [*STEPS, "before _send", "before _settle"]

    async def fault(step: str, _: Any) -> None:
        if step in left:
            left.remove(step)
            done.extend(await mails.complete_all())
            await kill()

    at_each_step(fault, monkeypatch.setattr)
    async with mails.outbox.relay(mails.database, interval=0.05):
        await eventually("it was killed at each step", lambda: not left)
        await eventually("all are relayed", lambda: rows_left(mails) == 0)
        done += await mails.complete_all()
    assert done == ids, "each once, and in order"


def rows_left(mails: Mails) -> int:
    """Return how many rows there are; -1: the database is away."""
    try:
        return len(mails.rows())
    except psycopg.OperationalError:
        return -1
