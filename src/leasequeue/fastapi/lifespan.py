"""The lifespan of an application that adds tasks, and may run a worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from leasequeue.durations import check_bool
from leasequeue.errors import ConnectionLost, InvalidArgument, LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.fastapi.embedded_worker import EmbeddedWorker
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.tasks.queue import TaskQueue
from leasequeue.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What an application serves.
Source: TypeAlias = TaskQueue | AsyncWorkQueue


class Sources:
    """The task queues and queues that an application serves."""

    def __init__(self, *sources: Source) -> None:
        for one in sources or (None,):
            if not isinstance(one, (TaskQueue, AsyncWorkQueue)):
                raise InvalidArgument("sources", one, "one or more task queues or queues")
        self._sources = sources
        self.task_queues = tuple(one for one in sources if isinstance(one, TaskQueue))
        _ = self.queues  # refuses those of equal names

    @property
    def named_task_queues(self) -> dict[str, TaskQueue]:
        """The task queues by name; of several on one queue, the first."""
        found: dict[str, TaskQueue] = {}
        for one in self.task_queues:
            found.setdefault(one.name, one)
        return found

    @property
    def main_queues(self) -> dict[str, AsyncWorkQueue]:
        """The queues by name, without those that only single tasks have."""
        return _by_name(queue_from(one) for one in self._sources)

    @property
    def queues(self) -> dict[str, AsyncWorkQueue]:
        """The queues by name. A task may have been registered since with its own queue."""
        of_tasks = (task.queue for one in self.task_queues for task in one.tasks)
        return _by_name((*map(queue_from, self._sources), *of_tasks))

    @property
    def queues_of_tasks(self) -> set[str]:
        """The names of the queues whose items are tasks."""
        names = {one.name for one in self.task_queues}
        return names | {task.queue.name for one in self.task_queues for task in one.tasks}

    async def check(self, *, within: float) -> None:
        """Ask the server of each queue for a reply."""
        try:
            async with asyncio.timeout(within):
                answers = await asyncio.gather(
                    *(queue.counts() for queue in self.queues.values()), return_exceptions=True
                )
        except TimeoutError as error:
            raise ConnectionLost(f"no reply within {within:g} s", maybe_applied=False) from error
        errors = [one for one in answers if isinstance(one, BaseException)]
        # What does not pass by itself comes first.
        for one in sorted(errors, key=lambda error: isinstance(error, LeasequeueError) and error.transient):
            raise one


def queue_from(source: Source) -> AsyncWorkQueue:
    """Return the queue of a task queue, and a queue itself."""
    return source.queue if isinstance(source, TaskQueue) else source


def _by_name(queues: Iterable[AsyncWorkQueue]) -> dict[str, AsyncWorkQueue]:
    found: dict[str, AsyncWorkQueue] = {}
    for one in queues:
        known = found.setdefault(one.name, one)
        if known.url != one.url:
            raise InvalidArgument("sources", one.name, "queues with different names, or on one server")
    return found


#: The name of what the lifespan puts into the state of the application's requests.
STATE = "leasequeue"
#: How long the server may take to answer at the start (s).
START_SECONDS = 5.0

#: The lifespan of an application: see Starlette.
Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
#: What happens if the embedded worker crashes.
OnCrash: TypeAlias = Literal["unhealthy", "exit"]

log = Log("leasequeue.fastapi")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What requests find in their state."""

    sources: Sources
    #: The worker in this process; None: there is none.
    worker: EmbeddedWorker | None


def lifespan(
    *sources: Source,
    worker: bool | Worker = False,
    then: Lifespan | None = None,
    on_crash: OnCrash = "unhealthy",
) -> Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]:
    """Return the lifespan of an application that uses task queues and queues.

        app = FastAPI(lifespan=lifespan(tasks, worker=True))

    At the start, the server is asked for a reply. If it refuses this client, the application does not start;
    if it is down, the application starts, and is not ready until the server is back. Each process and event
    loop has its own connections, which close when the event loop ends: the task queues stay usable, so that
    an application can be started again.

    The parts start in this order, and end in the reverse one: the application's own lifespan, the worker,
    the requests. The worker has its grace time to finish its runs.

    Args:
        sources: One or more task queues and queues.
        worker: Whether to run the tasks in this process, in the application's event loop. A worker of other
            settings, or with handlers: run that one. With True, what `then` yields is what tasks are
            passed for `Provided()`.
        then: The application's own lifespan. What it yields is in the state of the requests, too.
        on_crash: What happens if the worker crashes. It is logged, and the application is not ready any more;
            with `"exit"`, the process also ends, with the exit code 1, as after SIGTERM: in 30 s at most.
            Outside of the main thread, as in a test client, the error is raised when the application stops.

    Raises:
        InvalidArgument: If an argument is invalid.
    """
    served = Sources(*sources)
    if on_crash not in get_args(OnCrash):
        raise InvalidArgument("on_crash", on_crash, '"unhealthy" or "exit"')
    if not isinstance(worker, Worker):
        check_bool("worker", worker)
    if worker is True and not served.task_queues:
        raise InvalidArgument("worker", worker, "a task queue to work on, or a Worker with handlers")
    own = _as_lifespan(then)

    @asynccontextmanager
    async def started(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        await _check_server(served)
        embedded: EmbeddedWorker | None = None
        try:
            async with own(app) as yielded:
                state = _checked_state(yielded)
                if worker is not False:
                    chosen = _worker_of(served, state) if worker is True else worker
                    embedded = EmbeddedWorker(chosen, exits=on_crash == "exit")
                    await embedded.start()
                try:
                    yield {**state, STATE: Serving(sources=served, worker=embedded)}
                finally:
                    if embedded is not None:
                        await embedded.stop()
        finally:
            if embedded is not None:
                embedded.exit()

    return started


async def _check_server(sources: Sources) -> None:
    """Ask the server for a reply.

    Raises:
        LeasequeueError: If it will not give one later either.
    """
    try:
        await sources.check(within=START_SECONDS)
    except LeasequeueError as error:
        if not error.transient:
            raise
        log.warning("the application starts without its queues, and is not ready: %s", error)


def _as_lifespan(then: Any) -> Lifespan:
    if then is None:
        return _no_lifespan
    if not callable(then):
        raise InvalidArgument("then", then, "a function of the application that returns a context manager")
    if inspect.isasyncgenfunction(then):
        return asynccontextmanager(then)
    own: Lifespan = then
    return own


@asynccontextmanager
async def _no_lifespan(_: Any) -> AsyncIterator[None]:
    yield


def _checked_state(yielded: object) -> Mapping[str, Any]:
    if yielded is None:
        return {}
    if not isinstance(yielded, Mapping):
        raise InvalidArgument("then", yielded, "a lifespan that yields a mapping, or nothing")
    if STATE in yielded:
        raise InvalidArgument("then", STATE, "a lifespan that yields other names: this one is taken")
    return yielded


def _worker_of(sources: Sources, state: Mapping[str, Any]) -> Worker:
    @asynccontextmanager
    async def provide() -> AsyncIterator[Mapping[str, Any]]:
        yield state

    return Worker(*sources.task_queues, lifespan=provide)
