"""Everything that Leasequeue does, at once, on queues of one server: what each part does, and when."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
)

from leasequeue import AsyncWorkQueue, Fleet, Item, TaskQueue, Worker, list_queues
from leasequeue.errors import (
    ConnectionLost,
    EventsError,
    JobUnknown,
    LeasequeueError,
    ServerBusy,
    ServerReadOnly,
)
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from leasequeue.queue.queue import engines_of
from leasequeue.states import ITEM_STATES
from leasequeue.wire import connection as connections
from leasequeue.wire import server_errors
from tests.failover.topologies import REPLY_SECONDS, TAG
from tests.history.recording import record_calls
from tests.queue.asking import until
from tests.queue.keyspace import audit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.failover.topologies import Node, Topology
    from tests.history.events import Event

NAMES = ("jobs", "waits", "limited", "scheduled")
#: How long a caller pauses between two calls (s).
PAUSE = 0.05
#: How long the leases last, and the long runs (s).
LEASE_SECONDS, LONG_SECONDS = 2.0, 3.0
#: How long all parts may take to begin, to be served again, and to end (s).
TIMEOUT = 60.0
#: All parts, as the table names them: what a part does is in `Workload`.
PARTS = (
    *("add", "blocked lease", "run", "complete", "renew", "result", "cancel", "limits", "flow"),
    *("schedule", "events", "fleet", "metrics"),
)
#: The part of redis-py's own client.
PLAIN = "redis-py"
#: What a server answers while another one takes over.
ANSWERS: dict[str, type[Exception] | str] = {
    "READONLY": ReadOnlyError,
    "MOVED": MovedError,
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "NOREPLICAS": "NOREPLICAS",
}


class PlacedLog:
    """The events of one queue object, each with the address of the server that its connection leads to.

    It takes the place of a `HistoryLog`.

    Args:
        on_event: Called with each event.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self.queue: AsyncWorkQueue | None = None
        self._on_event = on_event

    def write(self, *events: Event) -> None:
        """Note events; `process` is the address."""
        where = ""
        engine = engines_of(self.queue).running if self.queue is not None else None
        connection = engine.runner._link._connection if engine is not None else None
        if connection is not None and connection.address is not None:
            where = "{}:{}".format(*connection.address)
        for event in events:
            self._on_event(event._replace(process=where))


class Workload:
    """Clients of all kinds, in one process.

    Args:
        topology: Where they work.

    Attributes:
        events: What was called, and what was answered.
        served: When each part was served, by `time.monotonic()`.
        answers: How often Leasequeue was given each of `ANSWERS`.
        errors: What failed with an error that is not transient.
        unknown: What callers waited for, and was lost.
        done: The ids of items that have run, and of those that were cancelled.
        dead: The ids of items whose runs were interrupted too often.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.events: list[Event] = []
        self.served: dict[str, list[float]] = defaultdict(list)
        self.answers: Counter[str] = Counter()
        self.errors: list[str] = []
        self.unknown: list[str] = []
        self.done: set[str] = set()
        self.dead: set[str] = set()
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)
        self._ends = asyncio.Event()
        self._began: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._cancelled: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._adding: list[asyncio.Task[None]] = []
        self._waiting: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._stack.enter_context(counted(self.answers))
        short = {"socket_timeout": REPLY_SECONDS, "socket_connect_timeout": REPLY_SECONDS}
        self._plain = await self._stack.enter_async_context(self._topology.client(**short))
        self._client = self._open_client()
        self._jobs, self._waits, self._limited, self._scheduled = [await self._open(one) for one in NAMES]
        self._session = self._jobs.session
        self._tasks = TaskQueue(f"{TAG}:flow", self._client, reply_timeout=REPLY_SECONDS)
        await self._stack.enter_async_context(self._tasks)
        self._worker = Worker(self._tasks, lease_time=LEASE_SECONDS, clean_every=1, dead_after=600)
        await self.declare()
        self._declare_handlers()
        self._working = asyncio.create_task(self._worker.run())
        self._stack.callback(self._working.cancel)
        adding = {
            "add": self._add,
            "": self._add_others,
            "result": self._result,
            "cancel": self._cancel,
            "flow": self._flow,
        }
        waiting = {
            PLAIN: self._write_plainly,
            "blocked lease": self._lease,
            "events": self._read_events,
            "fleet": self._fleet,
            "metrics": self._metrics,
        }
        for tasks, parts in ((self._adding, adding), (self._waiting, waiting)):
            tasks += [
                asyncio.create_task(self._repeat(part, step), name=part) for part, step in parts.items()
            ]
            for task in tasks:
                self._stack.callback(task.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def declare(self) -> None:
        """Declare what programs declare when they start: events, limits and schedules."""
        await self._waits.events.keep(count=1000)
        await self._waits.events.publish()
        await self._limited.limits.set(rate="50/s", burst=5, concurrency=4)
        await self._scheduled.schedules.every(0.2, "often", "x")

    async def steady(self) -> list[str]:
        """Return when each part has been served again three times; return those that were not in time."""
        since = time.monotonic()
        deadline = since + TIMEOUT

        def stopped() -> list[str]:
            return [one for one in (*PARTS, PLAIN) if sum(at > since for at in self.served[one][-3:]) < 3]

        while stopped() and time.monotonic() < deadline and not self.errors:  # noqa: ASYNC110 - many parts
            await asyncio.sleep(PAUSE)
        return [] if self.errors else stopped()

    async def check(self, primary: Node) -> None:
        """Check that all have followed to this server without another session, and that new ones do."""
        names = {f"{TAG}:{name}" for name in NAMES}
        run_id = (await primary.redis.info("server"))["run_id"]

        client = self._open_client()

        async def is_registered() -> bool:
            [found] = [one.server for one in await Fleet(self._jobs).workers() if not one.dead]
            # Where one name has led to two servers, the worker does not name its connections any more.
            return found == run_id or (self._topology.renamed and not found)

        async def is_listed() -> bool:
            return names <= {*await list_queues(client, prefix=TAG)}

        async def is_new() -> bool:
            async with AsyncWorkQueue(f"{TAG}:new", client) as queue:
                await queue.add_item(Item("x"))
                leases = await queue.lease_many(1, LEASE_SECONDS)
                return all(await queue.renew_many(leases, 60)) and all(await queue.complete_many(leases))

        async def is_healthy() -> bool:
            return self._worker.health().ok

        for what, ask in {
            "the worker is registered there": is_registered,
            "the queues are listed": is_listed,
            "a new object works": is_new,
            "the worker is healthy": is_healthy,
        }.items():

            async def holds(ask: Callable[[], Awaitable[bool]] = ask) -> bool:
                with contextlib.suppress(ConnectionLost, ServerBusy, ServerReadOnly):
                    return await ask()
                return False

            try:
                await until(what, holds, within=TIMEOUT / 2)
            except (AssertionError, LeasequeueError) as error:
                self.errors.append(f"{what}: {error!r}")
        if self._jobs.session != self._session:
            self.errors.append("it has another session")

    async def stop(self, primary: Node) -> set[str]:
        """Add nothing more, let the worker do all that is left, and return what it could not."""
        self._ends.set()
        await asyncio.wait(self._adding, timeout=TIMEOUT / 2)
        deadline = time.monotonic() + TIMEOUT / 2
        while (left := await self._left()) and time.monotonic() < deadline:  # noqa: ASYNC110 - the server knows
            await asyncio.sleep(PAUSE)
        self._worker.stop()
        await asyncio.wait([self._working], timeout=TIMEOUT / 2)
        if not self._working.done():
            self.errors.append("the worker does not stop")
        elif (error := self._working.exception()) is not None:
            self.errors.append(f"the worker: {error!r}")
        for task in self._waiting:
            task.cancel()
        for task in (await asyncio.wait(self._waiting, timeout=TIMEOUT / 2))[1]:
            if task.get_name() != PLAIN:  # redis-py's client may swallow a cancellation; it is not judged
                self.errors.append(f"{task.get_name()} does not end when it is cancelled")
        try:
            await audit(primary.redis, f"{TAG}:jobs")
        except AssertionError as error:
            self.errors.append(f"the keys of the queue: {error}")
        return left

    async def _left(self) -> set[str]:
        """Return the items that no worker has done, also those whose lease was granted in a lost answer."""
        left = set[str]()
        for queue in (self._jobs, self._waits, self._limited):
            try:
                letters = await queue.dead_letters.list(data=False)
                for state in ITEM_STATES:
                    left |= {view.id for view in await queue.inspect(state, data=False)}
                # Again what waits: a lease may have expired, or an item fallen due, between two of these.
                left |= {view.id for view in await queue.peek(100, data=False)}
                self.dead |= {letter.id for letter in letters}
            except LeasequeueError as error:
                left |= {repr(error)}
        return left

    # ------------------------------------------------------------------------------------- what is recorded

    def serve(self, part: str) -> None:
        """Note that a part was served."""
        self.served[part].append(time.monotonic())

    def _record(self, event: Event) -> None:
        self.events.append(event)
        if event.outcome is True and event.kind in ("renew", "complete"):
            self.serve(event.kind)

    def _open_client(self) -> Any:
        """Return a client as `from_url` makes it: it has not looked for other nodes of the cluster itself."""
        client = self._topology.client()
        self._stack.push_async_callback(client.aclose)
        return client

    async def _open(self, name: str) -> AsyncWorkQueue:
        queue = AsyncWorkQueue(f"{TAG}:{name}", self._client, reply_timeout=REPLY_SECONDS)
        log = PlacedLog(self._record)
        log.queue = record_calls(queue, log)  # type: ignore[arg-type]  # it takes the place of one
        return await self._stack.enter_async_context(queue)

    async def _repeat(self, part: str, step: Callable[[], Awaitable[object]]) -> None:
        """Take a step again and again, as a program that repeats what has failed with a transient error."""
        while not self._ends.is_set() or part in ("blocked lease", PLAIN):
            try:
                if await step() is not False:
                    self.serve(part)
            except JobUnknown as error:
                self.unknown.append(error.item_id)
            except EventsError:
                pass  # some are lost, or the setting is: the reader begins again
            except LeasequeueError as error:
                if not error.transient:
                    self.errors.append(f"{part}: {error!r}")
                    return
            except (RedisError, OSError) as error:
                if part != PLAIN:
                    self.errors.append(f"{part}: {error!r}")
                    return
            await asyncio.sleep(PAUSE)

    async def _insist(self, queue: AsyncWorkQueue, kind: str) -> str:
        """Add an item until the server has acknowledged it, and return its id."""
        item = Item(kind, id=f"{kind}-{next(self._numbers)}")
        while True:
            try:
                await queue.add_item(item)
            except LeasequeueError as error:
                if not error.transient:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                return item.id

    # -------------------------------------------------------------------------------------------- the worker

    def _declare_handlers(self) -> None:
        worker, tasks = self._worker, self._tasks

        @worker.handler(self._jobs, keep_result=60)
        async def handle(data: bytes, lease: Lease) -> bytes:
            self.serve("run")
            self._began[lease.id].set()
            try:
                await asyncio.sleep(LONG_SECONDS if data in (b"long", b"cancel") else 0)
            except asyncio.CancelledError:
                self._cancelled[lease.id].set()
                raise
            self.done.add(lease.id)
            return lease.id.encode()

        @worker.handler(self._limited)
        async def limited(_: bytes, lease: Lease) -> None:
            self.serve("limits")
            self.done.add(lease.id)  # the answer to its completion may be lost

        @worker.handler(self._scheduled)
        async def scheduled(_: bytes) -> None:
            self.serve("schedule")

        @tasks.task
        async def first(number: int) -> int:
            return number

        @tasks.task
        async def then(number: int) -> int:
            return number + 1

        self._first, self._then = first, then

    # -------------------------------------------------------------------------------------------- the callers

    async def _write_plainly(self) -> None:
        await self._plain.set(f"{TAG}:plain", "x")

    async def _add(self) -> None:
        await self._insist(self._jobs, "short")

    async def _add_others(self) -> None:
        await self._insist(self._waits, "waits")
        await self._insist(self._limited, "limited")
        if len(self.served[""]) % 10 == 0:
            await self._insist(self._jobs, "long")

    async def _lease(self) -> None:
        lease = await self._waits.lease(LEASE_SECONDS)
        assert lease is not None
        self.serve("blocked lease")
        while True:
            try:
                await self._waits.complete(lease)  # False: it has expired, or the answer was lost
            except LeasequeueError as error:
                if not error.transient:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                self.done.add(lease.id)
                return

    async def _result(self) -> None:
        item_id = await self._insist(self._jobs, "result")
        while True:
            try:
                value = await self._jobs.results.wait(item_id)
            except LeasequeueError as error:
                if not error.transient:
                    raise
                await asyncio.sleep(PAUSE)
            else:
                assert value in (item_id.encode(), None)  # None: the run's result was lost
                return

    async def _cancel(self) -> bool:
        item_id = await self._insist(self._jobs, "cancel")
        try:
            async with asyncio.timeout(LONG_SECONDS):
                await self._began[item_id].wait()
                if await self._jobs.cancel(item_id):
                    self.done.add(item_id)
                    await self._cancelled[item_id].wait()
                    return True
        except TimeoutError:
            pass
        return False

    async def _flow(self) -> None:
        run = await self._first.call(1).then(self._then).add()
        assert await run.result(timeout=TIMEOUT) == 2

    async def _read_events(self) -> bool:
        async for _ in self._waits.events(live=True):
            self.serve("events")
        return False

    async def _fleet(self) -> bool:
        workers = await Fleet(self._jobs).workers()
        return any(not one.dead and one.sessions for one in workers)

    async def _metrics(self) -> None:
        await self._jobs.stats()


@contextlib.contextmanager
def counted(answers: Counter[str]) -> Iterator[None]:
    """Count what servers answer to Leasequeue inside the block."""

    def count(error: object) -> None:
        for word, kind in ANSWERS.items():
            if word in str(error) if isinstance(kind, str) else type(error) is kind:
                answers[word] += 1

    handle = connections.Connection._handle_rare

    def handled(connection: connections.Connection, reply: Any) -> bool:
        count(reply)
        return handle(connection, reply)

    def translated(error: BaseException, **more: Any) -> LeasequeueError:
        count(error)
        return server_errors.translate(error, **more)

    with (
        patch.object(connections.Connection, "_handle_rare", handled),
        patch.object(connections, "translate", translated),
    ):
        yield
