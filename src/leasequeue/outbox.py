"""Add tasks in the transaction of a database: a transactional outbox in PostgreSQL.

    outbox = Outbox(tasks)

    with Session(engine) as session, session.begin():
        session.add(User(email="ann@example.org"))
        outbox.add(session, send_mail.call("ann@example.org"))

    async with outbox.relay("postgresql://localhost/shop"):
        await Worker(tasks).run()

A row of the outbox is written with the other rows of the transaction. A relay adds it to its queue after the
commit, and deletes it: see `Relay`. Adding needs the library of the transaction alone, a relay the extra
`leasequeue[outbox]`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, overload

from leasequeue import telemetry
from leasequeue.durations import Backoff, seconds
from leasequeue.errors import (
    AccessDenied,
    ExtraMissing,
    InvalidArgument,
    LeasequeueError,
    PartlyApplied,
    QueueClosed,
    ServerRefused,
    ServerTooOld,
)
from leasequeue.errors.describing import describe
from leasequeue.errors.log import Log
from leasequeue.item import Item
from leasequeue.queue.encoding import adding, item_row, row_size, trips
from leasequeue.queue.queue import engines_of
from leasequeue.queue.shards.opening import layout_of
from leasequeue.tasks.queue import TaskQueue
from leasequeue.tasks.task import Call

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from psycopg import AsyncConnection

    from leasequeue.durations import Duration
    from leasequeue.queue import AsyncWorkQueue
    from leasequeue.tasks.job import Job

__all__ = ["Outbox", "Relay"]

R = TypeVar("R")

#: The maximum number of rows, and of bytes of their data, that a relay reads at once.
BATCH_ROWS, BATCH_BYTES = 500, 4 << 20
#: After so long without a statement, PostgreSQL ends the session of a relay, and another goes on (s).
DEAD_SECONDS = 30.0
#: Finds out soon that a database is gone which cannot say so. The connection string may say otherwise.
_CONNECTION = {
    "application_name": "leasequeue outbox",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

_TABLE = re.compile(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}", re.ASCII)
_DDL = """\
CREATE TABLE {table} (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    id text NOT NULL,
    data bytea NOT NULL,
    options jsonb NOT NULL DEFAULT '{{}}',
    added timestamptz NOT NULL DEFAULT now(),
    error text
)"""
#: PostgreSQL sends the notification when the transaction commits, once for all its rows.
_INSERT = """\
WITH added AS (
    INSERT INTO {table} (queue, id, data, options) VALUES ({queue}, {id}, {data}, CAST({options} AS jsonb))
    RETURNING number
) SELECT pg_notify('{table}', '') FROM added"""
_READ = """\
SELECT number, queue, id, data, options, options->>'group',
    extract(epoch FROM clock_timestamp() - added)::float8
FROM (
    SELECT *, sum(octet_length(data)) OVER (ORDER BY number) - octet_length(data) AS bytes_before
    FROM (SELECT * FROM {table} WHERE error IS NULL ORDER BY number LIMIT %s) AS oldest
) AS measured
WHERE bytes_before < %s ORDER BY number"""
_LOCK = "SELECT pg_try_advisory_lock(hashtext('leasequeue outbox'), '{table}'::regclass::oid::int)"
_SET_ASIDE = "UPDATE {table} SET error = %s WHERE number = %s"
_DELETE = "DELETE FROM {table} WHERE number = ANY(%s)"

log = Log("leasequeue.outbox")


class SqlConnection(Protocol):
    """What takes a row: a session or connection of SQLAlchemy, or one or a cursor of psycopg or Django."""

    def execute(self, statement: Any, parameters: Any, /) -> Any:
        """Execute a statement in the transaction."""
        ...


class AsyncSqlConnection(Protocol):
    """The same of `AsyncSession`, of SQLAlchemy's `AsyncConnection` and of that of psycopg."""

    def execute(self, statement: Any, parameters: Any, /) -> Coroutine[Any, Any, Any]:
        """Execute a statement in the transaction."""
        ...


class Outbox:
    """A table of PostgreSQL in which transactions put calls of tasks, for their queues.

        outbox = Outbox(tasks)
        outbox.add(session, send_mail.call("ann@example.org"))

    Args:
        tasks: The task queue of the calls. All of its queues are on one server, and those of all rows of one
            table, too. Calls of another one are taken if their queue has the shards and the codec with which
            this one opens a queue of the name.
        table: The name of the table, with or without that of a schema; make it with the statement `ddl`.
        dedupe_for: How long, in seconds, an id stays taken after a relay has added it. A row runs once unless
            a relay is killed, or stands still, between adding it and deleting it, its job ends, and all
            relays are away for longer than this. The server keeps some 100 bytes for each row meanwhile.

    Raises:
        InvalidArgument: If an argument cannot be used.
    """

    def __init__(
        self, tasks: TaskQueue, *, table: str = "leasequeue_outbox", dedupe_for: Duration = 86_400
    ) -> None:
        if not isinstance(tasks, TaskQueue):
            raise InvalidArgument("tasks", tasks, "a TaskQueue")
        if not isinstance(table, str) or not _TABLE.fullmatch(table):
            allowed = "a name of a-z, 0-9 and _, which may follow that of a schema and a dot"
            raise InvalidArgument("table", table, allowed)
        self.tasks = tasks
        self.table = table
        self.dedupe_for = seconds("dedupe_for", dedupe_for, zero=False)

    @property
    def ddl(self) -> str:
        """The statement that makes the table, for your migrations."""
        return _DDL.format(table=self.table)

    @overload
    def add(self, connection: AsyncSqlConnection, call: Call[R]) -> Coroutine[Any, Any, Job[R]]: ...
    @overload
    def add(self, connection: SqlConnection, call: Call[R]) -> Job[R]: ...

    def add(self, connection: Any, call: Call[R]) -> Job[R] | Coroutine[Any, Any, Job[R]]:
        """Add a call in a transaction: it runs after the commit, and never if that is rolled back.

            job = outbox.add(session, send_mail.call("ann@example.org"))
            job = await outbox.add(async_session, send_mail.call("ann@example.org"))

        Args:
            connection: The transaction: a `Session`, `AsyncSession` or connection of SQLAlchemy, or a
                connection or cursor of psycopg, or of Django. If its `execute` is a coroutine, await this.
            call: The call. `delay` and `expires_in` count from the begin of the transaction. An id of your
                own, or of the content, is taken for `dedupe_for` at least.

        Returns:
            Its job. Until a relay has added it, its calls raise JobUnknown.

        Raises:
            InvalidArgument: If an argument cannot be used, or the call has `replace`. Nothing was executed.
            InvalidCall: As in `Call.item`.
        """
        execute = getattr(connection, "execute", None)
        if not callable(execute):
            allowed = "a session or connection of SQLAlchemy, or a connection or cursor of psycopg or Django"
            raise InvalidArgument("connection", connection, allowed)
        row = self._row(call)
        job = call.job(row["id"])
        if any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(connection).__mro__):
            from sqlalchemy import text

            executed = execute(text(self._insert(":{}")), row)
        else:
            executed = execute(self._insert("%({})s"), row)
        return _after(executed, job) if inspect.isawaitable(executed) else job

    def relay(self, database: str, *, interval: Duration = 5.0) -> Relay:
        """Return a relay, which moves rows to their queues.

        Args:
            database: Where the table is, as psycopg takes it: `postgresql://USER@HOST/NAME`. Its host is
                PostgreSQL itself, version 14 or newer, and no connection pooler.
            interval: How often to look without having been notified, in seconds: for rows that other
                programs insert, and for whether the relay that works is gone.

        Raises:
            ExtraMissing: If `leasequeue[outbox]` is not installed.
            InvalidArgument: If an argument cannot be used.
        """
        return Relay(self, database, interval=interval)

    def _insert(self, parameter: str) -> str:
        names = {name: parameter.format(name) for name in ("queue", "id", "data", "options")}
        return _INSERT.format(table=self.table, **names)

    def _opens(self, queue: AsyncWorkQueue) -> bool:
        """Return whether a relay adds to this queue as its own task queue does."""
        known = self.tasks._queues.get(queue.name)  # noqa: SLF001 - `_queue_of` would note it
        layout = None if known is None else layout_of(known)
        return layout_of(queue) == layout and _codecs_of(queue) == _codecs_of(known or self.tasks.queue)

    def _row(self, call: Call[Any]) -> dict[str, Any]:
        """Check a call, and return its row."""
        if not isinstance(call, Call):
            raise InvalidArgument("call", call, "a call of a task: task.call(…)")
        if call.queue.url != self.tasks.queue.url:
            allowed = f"one for a queue on {self.tasks.queue.url}, as those of `tasks`"
            raise InvalidArgument("call", call, allowed)
        if not self._opens(call.queue):
            allowed = (
                f"one of {self.tasks!r}, as its relay does not know the shards or the codec of other queues"
            )
            raise InvalidArgument("call", call, allowed)
        options = dict(call.options)
        if options.get("replace"):
            allowed = "False: a replacement is not added if a row of its id was added within `dedupe_for`"
            raise InvalidArgument("replace", given=True, allowed=allowed)
        item = call.item()
        if "\0" in item.id:
            raise InvalidArgument("id", item.id, "a text without NUL, which PostgreSQL does not store")
        item_row(item, call.delay, call.at, adding(**call.options))
        for name, value in (("delay", call.delay), *options.items()):
            if name in ("delay", "expires_in", "dedupe_for") and value:
                options[name] = seconds(name, value, zero=False)  # type: ignore[arg-type] # as checked above
        if call.at is not None:
            options["at"] = call.at.isoformat()
        if telemetry.active is not None and (trace := telemetry.active.current_trace()):
            options["trace"] = trace.decode()
        written = json.dumps(options, default=list)  # tags may be a set
        return {"queue": call.queue.name, "id": item.id, "data": item.data, "options": written}


def _codecs_of(queue: AsyncWorkQueue) -> list[Any]:
    """Return what is equal if two queues encode alike: the types of their codecs, and the values in these."""
    codecs = engines_of(queue.shards[0]).payloads.codecs
    return [(type(one), getattr(one, "__dict__", id(one))) for one in codecs]


async def _after(executed: Any, job: Job[R]) -> Job[R]:
    await executed
    return job


class _OutboxRow(NamedTuple):
    number: int
    queue: str
    id: str
    data: bytes
    options: Any
    group: str | None
    #: For how many seconds it has been in the table.
    age: float


class Relay:
    """Moves the rows of an outbox to their queues, in the order in which they were inserted.

        async with outbox.relay("postgresql://localhost/shop"):
            await Worker(tasks).run()

    Any number of processes may run one; one of them works, and another takes over when that ends, or has
    stood still for 30 s. A row is deleted after it was added, and its id stays taken for `dedupe_for`, so
    that adding it again does nothing. Rows of one queue and group are added in order. Of transactions that
    overlap, the first commit may come first; where order matters, let them lock the same row before they add.

    Errors are logged, and after a wait of at most `interval` the relay goes on: with the database or the
    server away, rows wait. A row that its queue refuses, as its group or its options are invalid, is set
    aside: the text is in its column `error`, and it is not tried again until that is null.
    """

    def __init__(self, outbox: Outbox, database: str, *, interval: Duration) -> None:
        try:
            from psycopg import AsyncConnection, ProgrammingError
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise ExtraMissing("the relay of an outbox", "outbox") from error
        try:
            self._where: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(database)}
        except (ProgrammingError, TypeError, AttributeError):
            allowed = "a connection string of PostgreSQL, such as postgresql://USER@HOST/NAME"
            raise InvalidArgument("database", "(not shown)", allowed) from None  # it may have a password
        self._connection_class = AsyncConnection
        self._outbox = outbox
        self._interval = seconds("interval", interval, zero=False)
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to relay in the background."""
        self._running = asyncio.create_task(self.run(), name="leasequeue outbox")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])

    async def run(self) -> None:
        """Relay until cancelled."""
        backoff = Backoff(longest=self._interval)
        while True:
            try:
                async with await self._connect() as connection:
                    await self._lead(connection)
                    while True:
                        while await self._relay(connection):
                            backoff.reset()
                        backoff.reset()
                        async for _ in connection.notifies(timeout=self._interval, stop_after=1):
                            pass
            except Exception as error:  # noqa: BLE001 - whatever it is, the rows wait
                log.warning("the relay of %s waits: %s", self._outbox.table, describe(error))
            await backoff.wait()

    async def drain(self) -> int:
        """Relay the rows that are there, and return how many; if another relay works, wait for its end.

        Raises:
            LeasequeueError: If a queue cannot be reached. Rows that a queue refuses are set aside, as always.
            psycopg.Error: If the database cannot be reached, or answers with an error.
        """
        count = 0
        async with await self._connect() as connection:
            await self._lead(connection)
            while some := await self._relay(connection):
                count += some
        return count

    async def _connect(self) -> AsyncConnection:
        self._outbox.tasks._import_modules()  # noqa: SLF001 - they may have tasks on other queues
        connection = await self._connection_class.connect(**self._where, autocommit=True)
        try:
            await self._prepare(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _prepare(self, connection: AsyncConnection) -> None:
        """Check that this is PostgreSQL itself, and listen."""
        found = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
        if found != (connection.info.backend_pid,):
            allowed = "PostgreSQL itself: behind a connection pooler, no relay knows that it is alone"
            raise InvalidArgument("database", "a connection pooler", allowed)
        dead_ms = 1000 * max(DEAD_SECONDS, 6 * self._interval)
        await connection.execute(f"SET idle_session_timeout = {dead_ms:.0f}".encode())
        await connection.execute(f'LISTEN "{self._outbox.table}"'.encode())

    async def _lead(self, connection: AsyncConnection) -> None:
        """Wait until no other relay works on the table, for as long as the connection lasts."""
        lock = _LOCK.format(table=self._outbox.table).encode()
        while await (await connection.execute(lock)).fetchone() != (True,):  # noqa: ASYNC110 - of others
            await asyncio.sleep(self._interval)

    async def _relay(self, connection: AsyncConnection) -> int:
        """Relay the oldest rows; return how many there were."""
        rows = await self._read(connection)
        lanes: dict[tuple[str, str | None], list[_OutboxRow]] = {}
        for row in rows:
            lanes.setdefault((row.queue, row.group), []).append(row)
        done: list[int] = []
        refused: dict[int, Exception] = {}
        errors = await asyncio.gather(
            *(self._add(lane, done, refused) for lane in lanes.values()), return_exceptions=True
        )
        await self._settle(connection, done, refused)
        for error in filter(None, errors):
            raise error
        return len(rows)

    async def _read(self, connection: AsyncConnection) -> list[_OutboxRow]:
        read = _READ.format(table=self._outbox.table).encode()
        found = await connection.execute(read, (BATCH_ROWS, BATCH_BYTES))
        return [_OutboxRow(*row) for row in await found.fetchall()]

    async def _add(self, lane: Sequence[_OutboxRow], done: list[int], refused: dict[int, Exception]) -> None:
        """Add rows of one queue and group in order, trip by trip; stop at an error that concerns them all."""
        for how, rows in self._alike(lane, refused):
            try:
                await self._send(rows, **how)
            except Exception as error:
                left, why = rows, error
                if isinstance(error, PartlyApplied) and not error.replicated:
                    raise  # the rows stay until replicas have them
                if isinstance(error, PartlyApplied) and isinstance(error.__cause__, Exception):
                    added = [answer is not None for answer in error.answers]
                    done += [row.number for row, is_added in zip(rows, added, strict=True) if is_added]
                    left = [row for row, is_added in zip(rows, added, strict=True) if not is_added]
                    why = error.__cause__
                if _is_for_all(why):
                    raise
                if len(left) == 1:
                    refused[left[0].number] = why
                else:
                    for row in left:  # one of them is refused
                        await self._add([row], done, refused)
            else:
                done += [row.number for row in rows]

    def _alike(
        self, lane: Iterable[_OutboxRow], refused: dict[int, Exception]
    ) -> Iterator[tuple[dict[str, Any], list[_OutboxRow]]]:
        """Divide rows into calls: as many as go in one trip, of the same options."""
        made: list[tuple[dict[str, Any], _OutboxRow]] = []
        for row in lane:
            try:
                made.append((self._options(row), row))
            except (TypeError, ValueError) as error:
                refused[row.number] = error
        for how, some in itertools.groupby(made, key=lambda pair: pair[0]):
            rows = [row for _, row in some]
            for start, stop in trips([row_size(len(row.data), slow=True) for row in rows]):
                yield how, rows[start:stop]

    def _options(self, row: _OutboxRow) -> dict[str, Any]:
        """Return the options of a row as `add_items` takes them, less the time that has passed."""
        if not isinstance(row.options, dict):
            raise InvalidArgument("options", row.options, "a JSON object: the options of `add_item`")
        how = dict(row.options)
        if "at" in how:
            how["at"] = datetime.fromisoformat(how["at"])
        if "delay" in how:
            how["delay"] = max(0.0, seconds("delay", how["delay"], zero=True) - row.age)
        if "expires_in" in how:
            how["expires_in"] = max(0.001, seconds("expires_in", how["expires_in"], zero=False) - row.age)
        own = seconds("dedupe_for", how.get("dedupe_for", 0), zero=True)
        how["dedupe_for"] = max(self._outbox.dedupe_for, own)
        return how

    async def _send(self, rows: Sequence[_OutboxRow], *, trace: str | None = None, **how: Any) -> None:
        queue = self._outbox.tasks._queue_of(rows[0].queue)  # noqa: SLF001 - a row may name any of its server
        items = [Item(row.data, row.id) for row in rows]
        with telemetry.continued(None if trace is None else trace.encode()):
            await queue.add_items(items, **how)

    async def _settle(
        self, connection: AsyncConnection, done: Sequence[int], refused: dict[int, Exception]
    ) -> None:
        """Delete the rows that were added, and set aside those that were refused."""
        table = self._outbox.table
        for number, error in refused.items():
            text = describe(error).replace("\0", "�")
            log.error("row %d of %s is set aside: %s", number, table, text)
            await connection.execute(_SET_ASIDE.format(table=table).encode(), (text, number))
        if done:
            await connection.execute(_DELETE.format(table=table).encode(), ([*done],))


def _is_for_all(error: Exception) -> bool:
    """Return whether other rows would get the error, too, and these again: a later try may do better."""
    if isinstance(error, LeasequeueError) and error.transient:
        return True
    no_server = isinstance(error, (QueueClosed, ServerRefused, ServerTooOld))
    return no_server and not isinstance(error, AccessDenied)
