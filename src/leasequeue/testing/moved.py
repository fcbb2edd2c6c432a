"""Queue objects of a program that lead to queues of a test, and a check that nothing else is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.queue.engines import Engines
from leasequeue.worker.run import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.queue.queue import AsyncWorkQueue


class MovedQueues:
    """The queues that workers of a program serve, in a test.

    Args:
        open_queue: Opens a queue of the test; the same name gives another object of the same queue.
    """

    def __init__(self, open_queue: Callable[[str], AsyncWorkQueue]) -> None:
        self._open = open_queue
        #: For each queue object of the program: its name there, and the object of the test that it became.
        self._moved: dict[AsyncWorkQueue, tuple[str, AsyncWorkQueue]] = {}
        #: The queues that the workers of the test serve.
        self._served: set[AsyncWorkQueue] = set()
        self._before: Callable[[Engines], None] | None = None

    def queue_like(self, queue: AsyncWorkQueue) -> AsyncWorkQueue:
        """Return a queue of the test that stands for one of the program, whose object leads there, too."""
        if self._before is None:
            self._before = Engines.before_use
            Engines.before_use = staticmethod(self._check)
        name, _ = self._moved.get(queue, (queue.name, queue))
        if queue not in self._moved:
            ours = self._open(name)
            self._moved[queue] = (name, ours)
            _exchange(queue, ours)
        served = self._open(name)
        self._served.add(served)
        return served

    def undo(self) -> None:
        """Give the queue objects of the program their own queues again."""
        if self._before is not None:
            Engines.before_use = staticmethod(self._before)
            self._before = None
        while self._moved:
            queue, (_, ours) = self._moved.popitem()
            _exchange(queue, ours)

    def _check(self, used: Engines) -> None:
        """Let no run of these workers use a queue of another server."""
        run = RUNNING.get()
        if run is None or run.handler.queue not in self._served:
            return
        if used.url is None or used.url not in {queue.url for queue in self._served}:
            raise AssertionError(
                f"{run.handler.name} uses the queue {used.name!r} of another server than the test's, "
                f"{used.url or 'a cluster'}: provide the queue, and give the test's in provide="
            )


def _exchange(one: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
