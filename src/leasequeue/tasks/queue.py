"""A task queue: many typed functions on one queue, by name."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, overload

from leasequeue import telemetry
from leasequeue.durations import Duration, Size, check_list, seconds
from leasequeue.errors import InvalidArgument, InvalidTask
from leasequeue.queue.cron import timing_of
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.queue.streams import KEEP_STREAM_SECONDS, MAX_STREAM_BYTES
from leasequeue.tasks.definition import Definition, TaskSettings
from leasequeue.tasks.serving import UnknownTasks, dispatcher_of, handler_of
from leasequeue.tasks.task import AsyncTask, BatchTask, Call, PlainTask, Task
from leasequeue.wire.endpoints import Client, client_for
from leasequeue.worker.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
    from types import TracebackType

    from leasequeue.codecs import Codecs
    from leasequeue.tasks.job import Job
    from leasequeue.tasks.task import BatchDecorator, TaskDecorator
    from leasequeue.worker.dispatch import Dispatcher
    from leasequeue.worker.handler import RunIn

P = ParamSpec("P")
R = TypeVar("R")


class TaskQueue:
    """Many functions on one queue, called by name with typed arguments.

        tasks = TaskQueue.from_url("redis://localhost", "default")

        @tasks.task(timeout=60)
        async def send_mail(to: str, subject: str = "Hi") -> str: ...

        job = await send_mail.add("ann@example.org")     # in any process
        await job.result(timeout=10)

        Worker(tasks)                                    # or: leasequeue worker app:tasks

    The arguments are checked where a task is added, by type checkers and by the call. On the server, a task
    is an item whose data is JSON, `{"task": "send_mail", "args": {"to": "ann@example.org"}, "meta": {}}`, so
    that any language can add one.

    Args:
        name: The queue's name; see `AsyncWorkQueue`.
        redis: A client of redis-py; see `AsyncWorkQueue`.
        include: The names of modules with tasks; a worker imports them when it starts.
        keep_unknown: For how long a worker releases tasks that it does not know, in seconds, from when they
            were to run first. Then they are dead letters, when a worker has met them for ten minutes.
        return_to: See `AsyncWorkQueue`.
        reply_timeout: See `AsyncWorkQueue`.
        clock: For tests: see `AsyncWorkQueue`.
        replicas: See `AsyncWorkQueue`.
        shards: See `AsyncWorkQueue`. Queues that tasks name have none.
        shard_by: See `AsyncWorkQueue`.
        codec: See `AsyncWorkQueue`. Queues that tasks name have it, too.

    Attributes:
        queue: The queue.

    Raises:
        InvalidArgument: If an argument cannot be used.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        name: str,
        redis: Client,
        *,
        include: Sequence[str] = (),
        keep_unknown: Duration = 86_400,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
        replicas: int = 0,
        shards: int | None = None,
        shard_by: Literal["id", "group"] = "id",
        codec: Codecs = None,
    ) -> None:
        self._redis = redis
        self._how: dict[str, Any] = {
            "return_to": return_to,
            "reply_timeout": reply_timeout,
            "clock": clock,
            "replicas": replicas,
            "codec": codec,
        }
        self.queue = AsyncWorkQueue(name, redis, **self._how, shards=shards, shard_by=shard_by)
        self._include = check_list("include", include, "names of modules")
        self._unknown = UnknownTasks(seconds("keep_unknown", keep_unknown, zero=True))
        self._clock = clock or time.time
        self._queues: dict[str, AsyncWorkQueue] = {name: self.queue}
        self._open: Callable[[str], AsyncWorkQueue] = self._open_queue
        self._tasks: dict[str, Task[..., Any]] = {}
        #: The queues of foreign stages of its flows, which workers maintain: names, in order.
        self._foreign: dict[str, None] = {}
        #: What returns the name of the queue of each stage of its flows.
        self._stage_queues: list[Callable[[], str]] = []
        #: Whether its flows wait for signals, the items of which are on its queue.
        self._has_signals = False

    @classmethod
    def from_url(  # noqa: PLR0913 - as above
        cls,
        url: str,
        name: str,
        *,
        include: Sequence[str] = (),
        keep_unknown: Duration = 86_400,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
        replicas: int = 0,
        cluster: bool = False,
        shards: int | None = None,
        shard_by: Literal["id", "group"] = "id",
        codec: Codecs = None,
    ) -> Self:
        """Make a task queue on the server at a URL: `redis://`, `rediss://` or `unix://`.

        Args:
            url: Where the server is.
            name: The queue's name.
            include: See the class.
            keep_unknown: See the class.
            return_to: See the class.
            reply_timeout: See the class.
            clock: See the class.
            replicas: See the class.
            cluster: Whether the URL names nodes of a cluster, one or more, as in `redis://HOST:PORT,HOST:PORT`;
                the other nodes are found through them.
            shards: See `AsyncWorkQueue`.
            shard_by: See `AsyncWorkQueue`.
            codec: See the class.

        Raises:
            InvalidArgument: If the URL or another argument cannot be used.
        """
        client = client_for(url, name, cluster=cluster)
        return cls(
            name,
            client,
            include=include,
            keep_unknown=keep_unknown,
            return_to=return_to,
            reply_timeout=reply_timeout,
            clock=clock,
            replicas=replicas,
            shards=shards,
            shard_by=shard_by,
            codec=codec,
        )

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    @property
    def tasks(self) -> tuple[Task[..., Any], ...]:
        """The tasks, in the order in which they were registered."""
        return tuple(self._tasks.values())

    @overload
    def task(  # type: ignore[overload-overlap] # an async function is also one that returns a coroutine
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(
        self,
        *,
        batch: int,
        batch_wait: Duration | None = None,
        batch_by: str | None = None,
        name: str | None = None,
        queue: str | AsyncWorkQueue | None = None,
        run_in: RunIn | None = None,
        weight: float = 1.0,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        lease_time: Duration | None = None,
        keep_result: Duration | None = 3600,
        concurrency: int | None = None,
        rate: str | None = None,
    ) -> BatchDecorator: ...
    @overload
    def task(
        self,
        *,
        batch: None = None,
        name: str | None = None,
        queue: str | AsyncWorkQueue | None = None,
        run_in: RunIn | None = None,
        weight: float = 1.0,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        lease_time: Duration | None = None,
        keep_result: Duration | None = 3600,
        keep_logs: Size | None = None,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        streams: Any = None,
        keep_stream: Duration = KEEP_STREAM_SECONDS,
        max_stream: int = MAX_STREAM_BYTES,
    ) -> TaskDecorator: ...

    def task(  # noqa: PLR0913 - all but the function by name
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        queue: str | AsyncWorkQueue | None = None,
        run_in: RunIn | None = None,
        batch: int | None = None,
        batch_wait: Duration | None = None,
        batch_by: str | None = None,
        weight: float = 1.0,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        lease_time: Duration | None = None,
        keep_result: Duration | None = 3600,
        keep_logs: Size | None = None,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        streams: Any = None,
        keep_stream: Duration = KEEP_STREAM_SECONDS,
        max_stream: int = MAX_STREAM_BYTES,
    ) -> Any:
        """Make a function a task: `@tasks.task`, or `@tasks.task(timeout=60)`.

        Its arguments may have any type that JSON can hold, by their annotations: JSON's types, dataclasses,
        msgspec structs, pydantic models, datetime, UUID, Decimal, bytes, enums, and these in each other. A
        parameter whose default is `Provided()` is filled in by the worker. The task can be called like the
        function.

        Args:
            function: The function: async, or a plain one.
            name: Its name, by which workers know it; None: that of the function, without the module's.
            queue: A separate queue, or the name of one; None: that of this task queue.
            run_in: See `Worker.handler`.
            batch: See `Worker.handler`. The function takes a list, and a call one item of it. A batch has
                what was leased together; give the task a separate queue for full batches, or `batch_wait`.
            batch_wait: How long the first call of a batch waits for others, in seconds, at most 30 days: the
                calls run when `batch` of them are there, at most 250, or when the time has passed. The server
                gathers them, for all workers. If their worker dies, they gather again, before later calls. A
                call's last attempt is a separate run, and limits of the queue or 8 MiB of data cut a batch.
                None: batches have what waits. Not with limits.
            batch_by: The field of a call's argument, by its name in JSON, whose value the calls of a batch
                have in common; None: all calls gather together. A stage that takes a result does not gather.
            weight: The share of its queue; the highest of the tasks on a queue counts. See `Worker.handler`.
            retry: See `Worker.handler`.
            timeout: See `Worker.handler`.
            lease_time: See `Worker.handler`.
            keep_result: How long what the function returned is kept for `Job.result`, in seconds; None: not
                at all.
            keep_logs: How much is kept of what is logged below a run, by `logging`, for `Job.logs`: bytes, or
                a text such as `"64KiB"`, from 4 KiB to 1 MiB; the oldest records are dropped. None: nothing.
                It is kept as long as the result, or as the dead letter. Not with `batch`.
            cron: The times at which running workers add the task, as a cron expression; see
                `Schedules.cron`. All arguments need defaults, as those of a schedule are left out.
            tz: The name of the time zone of `cron`; None: UTC.
            every: Or the seconds between two times, 0.001 to 30 days.
            concurrency: How many of its calls may be leased at once, by all workers together; None: any
                number. Its calls then have the group `task:<name>`, whose limits each worker declares when it
                starts; see `Limits`. Not with a schedule.
            rate: How many may be leased in a time, such as `"10/s"`; see `Limits.set`.
            streams: The type of the chunks that its runs emit with `current_run().emit`, for those who read
                `Job.stream`; None: they emit none. Not with `batch`, nor in processes.
            keep_stream: How long they are kept after the job has ended, in seconds.
            max_stream: How many bytes of them are kept, 1,000 to 64 MiB; each counts 32 more than it has in
                JSON. Chunks of earlier runs make room; a run that emits more gets StreamFull.

        Raises:
            InvalidTask: If the function cannot be a task, or one with a schedule: the text says what to do.
            InvalidArgument: If another argument is invalid.
            ExtraMissing: If there is a `cron`, and `leasequeue[schedules]` is not installed.
        """
        settings = TaskSettings(
            run_in=run_in,
            batch=batch,
            batch_wait=batch_wait,
            batch_by=batch_by,
            weight=weight,
            retry=retry,
            timeout=timeout,
            lease_time=lease_time,
            keep_result=keep_result,
            keep_logs=keep_logs,
            timing=timing_of(cron, tz, every),
            concurrency=concurrency,
            rate=rate,
            streams=streams,
            keep_stream=keep_stream,
            max_stream=max_stream,
        )

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._register(function, name, self._queue_of(queue), settings)

        return register if function is None else register(function)

    async def add_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Add many calls of any tasks in few trips.

            jobs = await tasks.add_many([send_mail.call("ann"), resize.call("cat.jpg")])

        Returns:
            Their jobs, in order.

        Raises:
            InvalidArgument: If one is no `Call`. Nothing was sent.
            QueueClosed, ServerError: As in `AsyncWorkQueue.add_items`: some may have been added.
        """
        calls = check_list("calls", calls, "calls")
        if wrong := [one for one in calls if not isinstance(one, Call)]:
            raise InvalidArgument("calls", wrong[0], "calls of tasks: task.call(…)")
        items = [call.item() for call in calls]
        groups: dict[Any, list[int]] = {}
        keyed: list[int] = []
        for place, call in enumerate(calls):
            if call.options.get("unique_until_start") is not None:
                keyed.append(place)
                continue
            key = (call.queue, call.delay, call.at, *call.options.items())
            groups.setdefault(key, []).append(place)
        added = asyncio.gather(
            *(
                _named(
                    {calls[place].task for place in places},
                    queue.add_items([items[place] for place in places], delay=delay, at=at, **dict(options)),
                )
                for (queue, delay, at, *options), places in groups.items()
            )
        )
        # Each of these answers with the id of its job.
        one_by_one = asyncio.gather(
            *(
                _named({calls[place].task}, calls[place]._add_item(items[place]))  # noqa: SLF001 - of this room
                for place in keyed
            )
        )
        answers_of, found = await asyncio.gather(added, one_by_one)
        jobs = dict(zip(keyed, found, strict=True))
        for places, answers in zip(groups.values(), answers_of, strict=True):
            for place, created in zip(places, answers, strict=True):
                jobs[place] = calls[place].job(items[place].id, created=created)
        return [jobs[place] for place in range(len(calls))]

    def consumers(self, *, retry: RetryPolicy, lease_time: float) -> Sequence[Dispatcher]:
        """Import the included modules, and return what a worker needs to run the tasks. A `Worker` calls it.

        Args:
            retry: The worker's policy, for tasks without one.
            lease_time: The worker's lease time, in seconds, for tasks without one.
        """
        self._import_modules()
        by_queue: dict[AsyncWorkQueue, list[Task[..., Any]]] = {self.queue: []} if self._has_signals else {}
        for task in self._tasks.values():
            by_queue.setdefault(task.queue, []).append(task)
        found = [
            dispatcher_of(queue, tasks, self._unknown, retry=retry, lease_time=lease_time)
            for queue, tasks in by_queue.items()
        ]
        names = dict.fromkeys(name() for name in self._stage_queues)
        # A run on another queue cannot add to one with shards; one on that adds to its own shard.
        names |= dict.fromkeys(queue.name for queue in by_queue if not isinstance(queue, ShardedQueue))
        for one in found:
            one.feeds = [(self.name, name) for name in names]
            one.foreign = [self._queue_of(name) for name in self._foreign]
        return found

    async def close(self) -> None:
        """Close its queues; see `AsyncWorkQueue.close`."""
        await asyncio.gather(*(queue.close() for queue in self._queues.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _queue_of(self, queue: str | AsyncWorkQueue | None) -> AsyncWorkQueue:
        if queue is None:
            return self.queue
        if isinstance(queue, AsyncWorkQueue):
            known = self._queues.setdefault(queue.name, queue)
            if known.url != queue.url:
                raise InvalidArgument("queue", queue, f"one on {known.url}, where the tasks of its name are")
            return known
        if queue not in self._queues:
            self._queues[queue] = self._open(queue)
        return self._queues[queue]

    def _open_queue(self, name: str) -> AsyncWorkQueue:
        return AsyncWorkQueue(name, self._redis, **self._how)

    def _declare_stage(self, queue: Callable[[], str], *, foreign: bool) -> None:
        """Let flow runs add items to the queue of a stage; have a foreign one maintained. For `Flow`."""
        self._stage_queues.append(queue)
        if foreign:
            self._foreign[queue()] = None

    def _import_modules(self) -> None:
        for module in self._include:
            importlib.import_module(module)

    @contextmanager
    def _on(self, open_queue: Callable[[str], AsyncWorkQueue]) -> Iterator[None]:
        """Add and run all tasks on other queues for a while, those of a test."""
        self._import_modules()
        names: dict[AsyncWorkQueue, str] = {}

        def open_named(name: str) -> AsyncWorkQueue:
            queue = open_queue(name)
            names[queue] = name
            return queue

        before = self._open, self._queues
        self._open, self._queues = open_named, {}
        self._move(lambda queue: queue.name)
        try:
            yield
        finally:
            self._open, self._queues = before
            self._move(lambda queue: names.get(queue, queue.name))

    def _move(self, name_of: Callable[[AsyncWorkQueue], str]) -> None:
        """Move all tasks to the present queues, by the names of their queues."""
        self.queue = self._queue_of(name_of(self.queue))
        for task in self._tasks.values():
            task.definition.queue = self._queue_of(name_of(task.definition.queue))
            task.definition.home = self.queue

    def _register(
        self, function: Any, name: str | None, queue: AsyncWorkQueue, settings: TaskSettings
    ) -> Task[..., Any]:
        name = getattr(function, "__name__", "<unknown>") if name is None else name
        if isinstance(function, Task):
            raise InvalidTask(function.name, f"it is a task already: pass {function.name}.function")
        if not isinstance(name, str) or not name or name.startswith("<"):
            raise InvalidTask(str(name), 'it has no name: give it one, name="…"')
        if other := self._tasks.get(name):
            where = f"{other.function.__module__}.{other.function.__qualname__}"
            raise InvalidTask(
                name, f'there is a task of this name, {where}: give one of them another name, name="…"'
            )
        definition = Definition(name, function, queue, settings)
        definition.home = self.queue
        plain = AsyncTask if inspect.iscoroutinefunction(function) else PlainTask
        kind: type[Task[..., Any]] = plain if settings.batch is None else BatchTask
        task = kind(definition, self._clock)
        handler_of(task, self._unknown, retry=RetryPolicy(), lease_time=30.0)  # refuses invalid settings now
        self._tasks[name] = task
        return task

    def __repr__(self) -> str:
        return f"<task queue {self.name!r} with {len(self._tasks)} tasks>"


def _named(tasks: set[str], added: Awaitable[R]) -> Awaitable[R]:
    """Return a call that adds items; if they are those of one task, telemetry gets its name."""
    if telemetry.active is None or len(tasks) > 1:
        return added
    return telemetry.adding(next(iter(tasks)), added)
