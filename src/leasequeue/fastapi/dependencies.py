"""Dependencies of path operations: the task queue and the queue that the application was started with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, TypeVar

from fastapi import Depends
from fastapi.requests import HTTPConnection

from leasequeue.errors import LeasequeueError
from leasequeue.fastapi.lifespan import STATE, Serving
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.tasks.queue import TaskQueue


class DependencyMissing(LeasequeueError, LookupError):
    """A path operation asks for a queue or task queue that the application was not started with.

    Attributes:
        wanted: What was asked for.
        problem: Why it is not there, and what to do.
    """

    def __init__(self, wanted: str, problem: str) -> None:
        self.wanted = wanted
        self.problem = problem
        super().__init__(f"{wanted}: {problem}")


T = TypeVar("T")


def tasks_of(name: str) -> Callable[[HTTPConnection], Awaitable[TaskQueue]]:
    """Return a dependency: the task queue of a name, for applications with several.

        MailTasks = Annotated[TaskQueue, Depends(tasks_of("mail"))]

    A request raises DependencyMissing if the application was not started with it.

    Args:
        name: The name of the task queue.
    """

    async def named_tasks(connection: HTTPConnection) -> TaskQueue:
        return _named(serving_of(connection, name).sources.named_task_queues, name, "task queue")

    return named_tasks


def queue_of(name: str) -> Callable[[HTTPConnection], Awaitable[AsyncWorkQueue]]:
    """Return a dependency: the queue of a name, for applications with several.

        Emails = Annotated[AsyncWorkQueue, Depends(queue_of("emails"))]

    A request raises DependencyMissing if the application was not started with it.

    Args:
        name: The name of the queue: of one that was given to `lifespan`, or of a task queue or task.
    """

    async def named_queue(connection: HTTPConnection) -> AsyncWorkQueue:
        return _named(serving_of(connection, name).sources.queues, name, "queue")

    return named_queue


async def _only_tasks(connection: HTTPConnection) -> TaskQueue:
    return _only(serving_of(connection, "Tasks").sources.named_task_queues, "Tasks", "tasks_of")


async def _only_queue(connection: HTTPConnection) -> AsyncWorkQueue:
    return _only(serving_of(connection, "Queue").sources.main_queues, "Queue", "queue_of")


#: The task queue of the application. A request raises DependencyMissing if there are several, or none.
Tasks = Annotated[TaskQueue, Depends(_only_tasks)]
#: The queue of the application, or that of its task queue. A request raises DependencyMissing if there are
#: several.
Queue = Annotated[AsyncWorkQueue, Depends(_only_queue)]


def find_serving(connection: HTTPConnection) -> Serving | None:
    """Return what the lifespan has put into the state of a request; None if it has not run."""
    found = connection.scope.get("state", {}).get(STATE)
    return found if isinstance(found, Serving) else None


def serving_of(connection: HTTPConnection, wanted: str) -> Serving:
    """Return what the lifespan has put into the state of a request."""
    found = find_serving(connection)
    if found is None:
        raise DependencyMissing(
            wanted,
            "the lifespan has not run. Write FastAPI(lifespan=leasequeue.fastapi.lifespan(tasks)), pass your "
            "own one as its then=…, and start the application in tests: with TestClient(app) as client",
        )
    return found


def _named(found: Mapping[str, T], name: str, kind: str) -> T:
    if name not in found:
        raise DependencyMissing(
            name, f"lifespan(…) was given no {kind} of this name, but {', '.join(found) or 'none'}"
        )
    return found[name]


def _only(found: Mapping[str, T], wanted: str, instead: str) -> T:
    if len(found) != 1:
        problem = f"there are several: ask for one with Depends({instead}({next(iter(found), '')!r}))"
        raise DependencyMissing(wanted, problem if found else "lifespan(…) was given no task queue")
    return next(iter(found.values()))
