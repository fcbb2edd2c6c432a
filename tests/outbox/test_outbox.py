"""Calls that are added in transactions of PostgreSQL, and relayed to their queues."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from leasequeue import AsyncWorkQueue, FanOut, Item, TaskQueue, Worker, telemetry
from leasequeue.codecs import Zstd
from leasequeue.errors import (
    ConnectionLost,
    ExtraMissing,
    InvalidArgument,
    InvalidCall,
    NotReplicated,
    PartlyApplied,
)
from leasequeue.outbox import Outbox
from tests.eventually import eventually
from tests.outbox.conftest import Mails, send_mail
from tests.queue.asking import until
from tests.telemetry.recorded import Recorded, place_of
from tests.worker.working import working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from redis.asyncio import Redis

    from leasequeue import Call


class RolledBack(Exception):
    """Ends a transaction."""


def with_sqlalchemy(database: str) -> dict[str, Any]:
    """Return the arguments with which an engine connects."""
    return {"url": "postgresql+psycopg://", "connect_args": psycopg.conninfo.conninfo_to_dict(database)}


async def in_session(mails: Mails, call: Call[str], end: Callable[[], None]) -> None:
    engine = create_engine(**with_sqlalchemy(mails.database))
    try:
        with Session(engine) as session, session.begin():
            mails.outbox.add(session, call)
            end()
    finally:
        engine.dispose()


async def in_async_session(mails: Mails, call: Call[str], end: Callable[[], None]) -> None:
    engine = create_async_engine(**with_sqlalchemy(mails.database))
    try:
        async with AsyncSession(engine) as session, session.begin():
            await mails.outbox.add(session, call)
            end()
    finally:
        await engine.dispose()


async def in_psycopg(mails: Mails, call: Call[str], end: Callable[[], None]) -> None:
    with psycopg.connect(mails.database) as connection:
        mails.outbox.add(connection, call)
        end()


async def in_async_psycopg(mails: Mails, call: Call[str], end: Callable[[], None]) -> None:
    async with await psycopg.AsyncConnection.connect(mails.database) as connection:
        await mails.outbox.add(connection, call)
        end()


def fail() -> None:
    raise RolledBack


def go_on() -> None:
    """Let the transaction commit."""


@pytest.mark.parametrize("insert", [in_session, in_async_session, in_psycopg, in_async_psycopg])
async def test_a_call_runs_if_and_only_if_its_transaction_commits(mails: Mails, insert: Any) -> None:
    with pytest.raises(RolledBack):
        await insert(mails, mails.send.options(id="never").call("eve"), fail)
    await insert(mails, mails.send.options(id="one").call("ann"), go_on)
    job = mails.send.job("one")
    assert (await job.status()).state == "unknown"
    assert await mails.drain() == 1
    await Worker(mails.tasks, concurrency=1).drain()
    assert await job.result(timeout=60) == "sent to ann"
    assert (mails.rows(), await mails.drain()) == ([], 0)
    assert (await mails.send.job("never").status()).state == "unknown"


async def test_an_item_has_the_options_of_its_call(mails: Mails) -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    tags = ["a", "b"]
    mails.insert(
        mails.send.options(id="1", group="g", priority=3, tags=tags, expires_in=timedelta(1)).call("ann"),
        mails.send.options(id="2", delay=3600, correlation="c-7").call("bob"),
        mails.send.options(id="3", at=in_an_hour).call("cleo"),
    )
    earlier = f"UPDATE {mails.outbox.table} SET added = added - interval '1000 s'"  # noqa: S608 - our own name
    with psycopg.connect(mails.database) as connection:
        connection.execute(earlier.encode())
    queue = mails.tasks.queue
    await mails.drain()
    one, two, three = [view for item_id in "123" if (view := await queue.find(item_id))]
    now = datetime.now(UTC).timestamp()
    assert one.expires is not None
    assert one.expires < now + 24 * 3600 - 999
    assert (one.group, one.priority, one.tags, two.group, two.tags) == ("g", 3, tuple(tags), None, ())
    assert three.due == pytest.approx(in_an_hour.timestamp(), abs=0.002)
    assert two.due is not None
    assert now < two.due < now + 3600 - 999, "it counts from the transaction"
    assert b'"correlation":"c-7"' in (two.data or b"")


async def test_rows_of_a_queue_and_group_are_added_in_order(
    mails: Mails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasequeue.outbox.BATCH_ROWS", 120)
    other = mails.tasks.task(name="other", queue=f"{mails.tasks.name}-other")(lambda: None)
    calls: list[Call[Any]] = []
    for number in range(300):
        group = (None, "g", "h")[number % 3]
        priority = 1 if number % 50 > 40 else 0
        calls.append(mails.send.options(id=f"{number}", group=group, priority=priority).call("ann"))
        calls.append(other.options(id=f"{number}").call())
    mails.insert(*calls)
    assert await mails.drain() == 600
    found: dict[Any, list[int]] = {}
    for lease in await mails.tasks.queue.lease_many(1000, 60):
        found.setdefault((int(lease.id) % 3, int(lease.id) % 50 > 40), []).append(int(lease.id))
    assert [len(ids) for ids in found.values()].count(0) == 0
    assert sum(map(len, found.values())) == 300
    assert all(ids == sorted(ids) for ids in found.values())
    theirs = await other.queue.lease_many(1000, 60)
    assert [lease.id for lease in theirs] == [f"{number}" for number in range(300)]


async def test_a_job_belongs_to_the_trace_of_its_add(mails: Mails) -> None:
    recorded = Recorded()
    recorded.switch_on()
    try:
        with recorded.tracer_provider.get_tracer("app").start_as_current_span("request"):
            mails.insert(mails.send.call("ann"), mails.send.call("bob"))
        mails.insert(mails.send.call("cleo"))
        assert await mails.drain() == 3
        [request] = [span for span in recorded.spans if span.name == "request"]
        both, alone = recorded.producers
    finally:
        telemetry.uninstrument()
    assert both.parent is not None
    assert (both.parent.trace_id, both.parent.span_id) == place_of(request)
    assert alone.parent is None
    assert recorded.count("messaging.client.sent.messages") == 3


async def test_rows_are_relayed_to_the_shards_of_a_queue(redis_url: str, name: str, database: str) -> None:
    async with TaskQueue.from_url(redis_url, name, shards=4, shard_by="group") as tasks:
        mails = Mails(tasks, database)
        mails.insert(*(mails.send.options(group=f"g{number % 7}").call("ann") for number in range(50)))
        assert await mails.drain() == 50
        assert (await tasks.queue.counts()).waiting == 50


async def test_what_the_other_shards_have_added_is_settled_when_one_is_away(
    redis_url: str, name: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_add(*_: Any, **__: Any) -> list[bool]:
        raise ConnectionLost("the node is away", maybe_applied=False)

    async with TaskQueue.from_url(redis_url, name, shards=4) as tasks:
        mails = Mails(tasks, database)
        mails.insert(*(mails.send.options(id=f"{number}").call("ann") for number in range(20)))
        away = tasks.queue.shard_of("0")
        theirs = [f"{number}" for number in range(20) if tasks.queue.shard_of(f"{number}") is away]
        with monkeypatch.context() as patched:
            patched.setattr(away, "add_items", fail_to_add)
            with pytest.raises(PartlyApplied):
                await mails.drain()
        assert mails.rows() == theirs
        assert (await tasks.queue.counts()).waiting == 20 - len(theirs)
        assert await mails.drain() == len(theirs)
        assert ((await tasks.queue.counts()).waiting, mails.rows()) == (20, [])


async def test_nothing_is_settled_that_replicas_lack_when_another_shard_is_away(
    redis_url: str, name: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TaskQueue.from_url(redis_url, name, shards=4) as tasks:
        mails = Mails(tasks, database)
        mails.insert(*(mails.send.options(id=f"{number}").call("ann") for number in range(20)))
        away, late = tasks.queue.shard_of("0"), tasks.queue.shard_of("1")
        assert late is not away
        add_items = late.add_items

        async def fail_to_add(*_: Any, **__: Any) -> list[bool]:
            raise ConnectionLost("the node is away", maybe_applied=False)

        async def not_replicated(*given: Any, **options: Any) -> list[bool]:
            added = await add_items(*given, **options)
            raise NotReplicated(added, replicas=1, confirmed=0, connected=0, waited=1)

        with monkeypatch.context() as patched:
            patched.setattr(away, "add_items", fail_to_add)
            patched.setattr(late, "add_items", not_replicated)
            with pytest.raises(PartlyApplied):
                await mails.drain()
        assert len(mails.rows()) == 20
        assert await mails.drain() == 20
        assert ((await tasks.queue.counts()).waiting, mails.rows()) == (20, [])


async def test_what_one_shard_refuses_is_set_aside(redis: Redis, name: str, database: str) -> None:
    async with TaskQueue(name, redis, shards=4) as tasks:
        mails = Mails(tasks, database)
        wrong = tasks.queue.shard_of("0")
        await redis.set(f"{wrong.name}:queue", "of another type")
        mails.insert(*(mails.send.options(id=f"{number}").call("ann") for number in range(20)))
        theirs = [f"{number}" for number in range(20) if tasks.queue.shard_of(f"{number}") is wrong]
        assert await mails.drain() == 20
        assert mails.rows() == theirs
        assert all("WrongKeyType" in text for text in mails.rows("error"))
        others = [one for one in tasks.queue.shards if one is not wrong]
        assert sum([(await one.counts()).waiting for one in others]) == 20 - len(theirs)


async def test_a_batch_is_bounded_by_its_bytes(mails: Mails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasequeue.outbox.BATCH_BYTES", 1000)
    mails.insert(*(mails.send.call("x" * 600) for _ in range(5)))
    relay = mails.outbox.relay(mails.database)
    async with await relay._connect() as connection:
        assert [len(await relay._read(connection)), len(await relay._read(connection))] == [2, 2]
        assert await relay._relay(connection) == 2, "one that is larger goes alone, or last"
    assert await mails.drain() == 3


async def test_a_relay_is_notified_of_a_commit(mails: Mails) -> None:
    async with mails.outbox.relay(mails.database, interval=timedelta(days=1)):
        for number in range(3):
            job_id = f"{number}"
            mails.insert(mails.send.options(id=job_id).call("ann"))

            async def is_there(job_id: str = job_id) -> bool:
                return await mails.tasks.queue.find(job_id) is not None

            await until("it is relayed", is_there)


async def test_a_worker_relays_in_its_lifespan(mails: Mails) -> None:
    @asynccontextmanager
    async def relaying() -> AsyncIterator[dict[str, object]]:
        async with mails.outbox.relay(mails.database):
            yield {}

    async def is_done() -> bool:
        return (await mails.send.job("one").status()).state == "completed"

    async with working(Worker(mails.tasks, lifespan=relaying)):
        mails.insert(mails.send.options(id="one").call("ann"))
        await until("the job is done", is_done)
    assert mails.rows() == []


async def test_one_relay_works_at_a_time_and_another_takes_over(
    mails: Mails, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads: list[object] = []
    relays = [mails.outbox.relay(mails.database, interval=0.05) for _ in range(3)]
    read = type(relays[0])._read

    async def noted(self: Any, connection: Any) -> Any:
        leads.append(self)
        return await read(self, connection)

    monkeypatch.setattr(type(relays[0]), "_read", noted)
    async with relays[0]:
        await eventually("the first one leads", lambda: len(leads) > 3)
        async with relays[1], relays[2]:
            count = len(leads)
            await eventually("it goes on", lambda: len(leads) > count + 3)
            assert {*leads} == {relays[0]}
            relays[0]._running.cancel()  # type: ignore[union-attr] # it runs
            await eventually("another one leads", lambda: leads[-1] is not relays[0])
            mails.insert(mails.send.call("ann"))
            await eventually("the row is relayed", lambda: not mails.rows())


async def test_a_relay_that_stands_still_is_replaced(mails: Mails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasequeue.outbox.DEAD_SECONDS", 0.3)
    slow, quick = (mails.outbox.relay(mails.database, interval=0.05) for _ in range(2))
    async with await slow._connect() as connection:
        await slow._lead(connection)  # and then it does nothing more
        mails.insert(mails.send.call("ann"))
        assert await quick.drain() == 1
        with pytest.raises(psycopg.OperationalError, match="idle-session timeout"):
            await slow._relay(connection)


WRONG = {
    "null": "InvalidArgument: options: got None, expected a JSON object",
    '{"at": "soon"}': "ValueError: Invalid isoformat",
    '{"delay": "x"}': "InvalidArgument: delay: got 'x'",
    '{"colour": "red"}': "TypeError: unexpected keyword argument 'colour'",
    '{"group": ""}': "InvalidArgument: group: got ''",
    '{"priority": 99}': "InvalidArgument: priority: got 99",
}


async def test_rows_that_a_queue_refuses_are_set_aside_and_stop_no_others(
    mails: Mails, caplog: pytest.LogCaptureFixture
) -> None:
    into = f"INSERT INTO {mails.outbox.table} (queue, id, data, options)"
    insert = f"{into} VALUES (%s, %s, %s, %s)".encode()
    with psycopg.connect(mails.database) as connection:
        for number, options in enumerate(WRONG):
            connection.execute(insert, (mails.tasks.name, f"{number}", b"x", options))
        connection.execute(insert, (mails.tasks.name, "x" * 600, b"x", "{}"))
        connection.execute(insert, ("", "y", b"x", "{}"))
    good = [mails.send.options(id=f"good-{number}").call("ann") for number in range(3)]
    mails.insert(*good)
    with caplog.at_level(logging.ERROR, "leasequeue.outbox"):
        assert await mails.drain() == len(WRONG) + 5
    assert await mails.waiting() == ["good-0", "good-1", "good-2"], "in order, and the others are not there"
    texts = mails.rows("error")
    for text, part in zip(
        texts, [*WRONG.values(), "InvalidArgument: id: ", "InvalidArgument: "], strict=True
    ):
        assert part in text
    assert len([record for record in caplog.records if "is set aside" in record.getMessage()]) == len(texts)
    assert await mails.drain() == 0
    with psycopg.connect(mails.database) as connection:
        repair = f"UPDATE {mails.outbox.table} SET options = '{{}}', error = NULL WHERE id = '0'"  # noqa: S608 - as above
        connection.execute(repair.encode())
    assert await mails.drain() == 1
    assert (await mails.waiting())[-1] == "0"


async def test_a_row_that_only_the_server_refuses_is_found_among_others(mails: Mails) -> None:
    async def refuse(items: list[Item], **_: Any) -> list[bool]:
        if any(item.id == "1" for item in items):
            raise InvalidArgument("data", "…", "other data")
        return await add_items(items)

    add_items = mails.tasks.queue.add_items
    mails.tasks.queue.add_items = refuse  # type: ignore[method-assign,assignment] # for this test
    mails.insert(*(mails.send.options(id=f"{number}").call("ann") for number in range(4)))
    assert await mails.drain() == 4
    assert (await mails.waiting(), mails.rows()) == (["0", "2", "3"], ["1"])


async def test_a_call_is_refused_whose_queue_a_relay_would_open_otherwise(
    mails: Mails, redis_url: str, name: str
) -> None:
    """It would be added where no worker looks, or unencrypted."""
    with psycopg.connect(mails.database) as connection:
        for wrong in ({"shards": 4}, {"codec": Zstd()}):
            async with TaskQueue.from_url(redis_url, f"{name}-others", **wrong) as others:
                with pytest.raises(InvalidArgument, match="the shards or the codec of other queues"):
                    mails.outbox.add(connection, others.task(send_mail).call("ann"))
    assert mails.rows() == []


async def test_calls_of_other_queues_are_taken_that_a_relay_opens_alike(
    redis_url: str, redis: Redis, name: str, database: str
) -> None:
    async with (
        TaskQueue.from_url(redis_url, name, codec=Zstd(above=9)) as tasks,
        TaskQueue.from_url(redis_url, f"{name}-alike", codec=Zstd(above=9)) as alike,
        AsyncWorkQueue(f"{name}-wide", redis, shards=4) as wide,
    ):
        mails = Mails(tasks, database)
        named = tasks.task(name="named", queue=f"{name}-named")(send_mail)
        given = tasks.task(name="given", queue=AsyncWorkQueue.from_url(redis_url, wide.name, shards=4))(
            send_mail
        )
        mails.insert(*(task.call("ann") for task in (named, given, alike.task(send_mail))))
        assert await mails.drain() == 3
        for queue in (named.queue, wide, alike.queue):
            assert (await queue.counts()).waiting == 1
        await given.queue.close()


async def test_what_cannot_be_used_is_refused(mails: Mails) -> None:
    outbox, call = mails.outbox, mails.send.call("ann")
    other = TaskQueue.from_url("redis://elsewhere", "other").task(lambda: None, name="other")  # type: ignore[call-overload]

    @mails.tasks.task
    async def fan() -> FanOut[int]:
        raise NotImplementedError

    with psycopg.connect(mails.database) as connection:
        wrong_calls: list[tuple[str, Any]] = [
            ("call", "ann"),
            ("call", other.call()),
            ("replace", mails.send.options(replace=True).call("ann")),
            ("id", mails.send.options(id="a\0b").call("ann")),
        ]
        for argument, given in wrong_calls:
            with pytest.raises(InvalidArgument) as caught:
                outbox.add(connection, given)
            assert caught.value.argument == argument
        with pytest.raises(InvalidCall, match="fans out"):
            outbox.add(connection, fan.call())
        with pytest.raises(InvalidArgument, match=r"connection: got .*, expected a session"):
            outbox.add(create_engine(**with_sqlalchemy(mails.database)), call)  # type: ignore[call-overload]
    assert mails.rows() == []
    for wrong in ("Robert'); --", "UPPER", "a.b.c", 7):
        with pytest.raises(InvalidArgument, match="table: got"):
            Outbox(mails.tasks, table=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="tasks: got"):
        Outbox(mails.tasks.queue)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="dedupe_for: got 0"):
        Outbox(mails.tasks, dedupe_for=0)
    with pytest.raises(InvalidArgument, match="interval: got 0"):
        outbox.relay(mails.database, interval=0)
    for where in ("postgresql+psycopg://u:secret@h/d", "u:secret@h", None):
        with pytest.raises(InvalidArgument, match="database: got") as caught:
            outbox.relay(where)  # type: ignore[arg-type]
        assert "secret" not in str(caught.value)


async def test_without_psycopg_a_relay_says_what_to_install(
    mails: Mails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraMissing, match=r"leasequeue\[outbox\]"):
        mails.outbox.relay(mails.database)


@asynccontextmanager
async def pooler(database: str, folder: Path) -> AsyncIterator[str]:
    """Forward connections as a connection pooler does, which gives other numbers of processes."""
    home = psycopg.conninfo.conninfo_to_dict(database)["host"]
    name = ".s.PGSQL.5432"

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(f"{home}/{name}")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, changed: bytes) -> None:
            while data := await source.read(65536):
                at = data.find(changed) if changed else -1
                target.write(data if at < 0 else data[: at + 5] + b"\0\0\0\7" + data[at + 9 :])
            target.close()

        await asyncio.gather(copy(reader, requests, b""), copy(answers, writer, b"K\0\0\0\x0c"))

    async with await asyncio.start_unix_server(forward, f"{folder}/{name}"):
        yield f"host={folder} user=tests dbname=postgres"


async def test_a_connection_pooler_is_refused(mails: Mails, tmp_path: Path) -> None:
    async with pooler(mails.database, tmp_path) as location:
        with pytest.raises(InvalidArgument, match="got 'a connection pooler', expected PostgreSQL itself"):
            await mails.outbox.relay(location).drain()
