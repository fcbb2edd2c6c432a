"""The task queues and queues that an application serves, by name."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from leasequeue.errors import ConnectionLost, InvalidArgument, LeasequeueError
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.tasks.queue import TaskQueue

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
