"""Fleet: the workers of some queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasequeue.errors import InvalidArgument, WorkerUnknown
from leasequeue.fleet.views import WorkerView, view_of, worker_id
from leasequeue.queue.internals import registry
from leasequeue.queue.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from leasequeue.queue.registry import Order, Registration

#: How many workers are failed with one walk over the leases.
TOGETHER = 100


class Fleet:
    """The workers of some queues: who works, who is dead, and telling them what to do.

    Each running `Worker` registers on its queues, with a heartbeat every 10 s. It is dead when 30 s have
    passed without one; its peers then return its items, with no leader and no lock. So a fleet needs no
    program of its own: this is to look, and to act by hand.

        fleet = Fleet(queue)
        for worker in await fleet.workers():
            print(worker.name, worker.runs, [run.item_id for run in worker.running])
        await fleet.quiet("web-1/4711")

    Workers of other libraries do not register.

    Args:
        queues: The queues, at least one. A worker that serves several of them is one worker.

    Raises:
        InvalidArgument: If there is none, or two have the same name.
    """

    def __init__(self, *queues: AsyncWorkQueue) -> None:
        wrong = [one for one in queues or (None,) if not isinstance(one, AsyncWorkQueue)]
        if wrong:
            raise InvalidArgument("queues", wrong[0], "one or more queues")
        self._queues = {one.name: one for one in queues}
        if len(self._queues) < len(queues):
            raise InvalidArgument("queues", [one.name for one in queues], "queues with different names")

    async def workers(self) -> list[WorkerView]:
        """Return the workers that are registered, those that started first first.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        views = [view_of(name, found) for name, found in (await self._registered()).items()]
        return sorted(views, key=lambda one: (one.started or 0.0, one.name))

    async def dead(self) -> list[WorkerView]:
        """Return the workers that are dead, and not failed yet.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return [one for one in await self.workers() if one.dead]

    async def fail(self, worker: WorkerView | str) -> int:
        """Fail a worker, dead or not: return its items to the front of the queues, at once.

        Only those of this worker return, in the order in which they were leased, and wake others that wait.
        The attempts count. Whatever the worker still sends for them is rejected. If it is alive, it notices
        this at its next heartbeat, stops its runs, and works on under another session.

        Args:
            worker: The worker, its `id`, one of its sessions, or its name.

        Returns:
            How many items this call returned. While it runs, a worker that is alive may notice and release
            its items itself, as attempts that do not count, and another client may fail it as well.

        Raises:
            WorkerUnknown: If it is not registered: it has stopped, or was failed already.
            InvalidArgument: If several workers have this name.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`. Repeating is safe.
        """
        found = await self._find(worker)
        calls = [registry(self._queues[queue]).fail(session) for queue, session in found.items()]
        returned = [count for count in await asyncio.gather(*calls) if count is not None]
        if not returned:
            raise WorkerUnknown(_name_of(worker))
        return sum(returned)

    async def fail_dead(self) -> int:
        """Fail all dead workers, as their peers do; return how many items were returned.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`. Repeating is safe.
        """
        dead: dict[str, list[str]] = {}
        for one in await self.dead():
            for queue, session in one.sessions.items():
                dead.setdefault(queue, []).append(session)
        calls = [
            registry(self._queues[queue]).fail_many(dict.fromkeys(sessions[at : at + TOGETHER]), expired=True)
            for queue, sessions in dead.items()
            for at in range(0, len(sessions), TOGETHER)
        ]
        return sum(sum(counts.values()) for counts in await asyncio.gather(*calls))

    async def quiet(self, worker: WorkerView | str) -> None:
        """Have a worker fetch nothing more, of any of its queues. Its runs go on; see `resume`.

        It is told at once, and again at its next heartbeat if the message was lost.

        Args:
            worker: As for `fail`.

        Raises:
            WorkerUnknown, InvalidArgument, QueueClosed, ServerError: As in `fail`.
        """
        await self._tell(worker, "quiet")

    async def resume(self, worker: WorkerView | str) -> None:
        """Have a worker fetch again that was told to be quiet; see `quiet`."""
        await self._tell(worker, "resume")

    async def stop(self, worker: WorkerView | str) -> None:
        """Have a worker stop as `Worker.stop` does; see `quiet`.

        What supervises its process, such as `leasequeue worker --processes`, may start another.
        """
        await self._tell(worker, "stop")

    # -------------------------------------------------------------------------- inside

    async def _registered(self) -> dict[str, dict[str, Registration]]:
        """Return the registrations by worker and queue."""
        found: dict[str, dict[str, Registration]] = {}
        answers = await asyncio.gather(*(registry(queue).workers() for queue in self._queues.values()))
        for name, registrations in zip(self._queues, answers, strict=True):
            for one in registrations:
                mine = found.setdefault(worker_id(one), {})
                other = mine.get(name, one)
                # One that has begun anew under another session is there twice, until the first is failed.
                mine[name], before = (other, one) if one.expired else (one, other)
                if before is not mine[name]:
                    found[before.session] = {name: before}
        return found

    async def _find(self, worker: WorkerView | str) -> dict[str, str]:
        """Return the sessions of a worker by queue."""
        if isinstance(worker, WorkerView):
            return {queue: one for queue, one in worker.sessions.items() if queue in self._queues}
        if not isinstance(worker, str):
            raise InvalidArgument("worker", worker, "a WorkerView, a session, or a name")
        views = await self.workers()
        for one in views:
            if worker == one.id or worker in one.sessions.values():
                return dict(one.sessions)
        named = [one for one in views if one.name == worker]
        if len(named) > 1:
            raise InvalidArgument("worker", worker, f"an id, as {len(named)} workers have this name")
        if not named:
            raise WorkerUnknown(worker)
        return dict(named[0].sessions)

    async def _tell(self, worker: WorkerView | str, what: Order) -> None:
        found = await self._find(worker)
        calls = [registry(self._queues[queue]).tell(session, what) for queue, session in found.items()]
        if not any(await asyncio.gather(*calls)):
            raise WorkerUnknown(_name_of(worker))


def _name_of(worker: WorkerView | str) -> str:
    return worker.name if isinstance(worker, WorkerView) else worker
