"""The workers of queues: who works, who is dead, and telling them what to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from leasequeue.errors import InvalidArgument, WorkerUnknown
from leasequeue.queue.queue import AsyncWorkQueue, engine_of
from leasequeue.queue.shards.spreading import answers_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from leasequeue.queue.registry import Order, RegisteredWorker, Registry
    from leasequeue.queue.stats import WorkerStats

    One = TypeVar("One", RegisteredWorker, WorkerStats)

#: How many workers are failed with one walk over the leases.
TOGETHER = 100


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run of a worker that had not ended at its last heartbeat."""

    #: The queue's name.
    queue: str
    #: The item's id; of a batch, the first one.
    item_id: str
    #: The name of the handler or task.
    handler: str
    #: When it began, in seconds since 1970, by the worker's clock.
    since: float


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """A worker at its last heartbeat. What it did not say is 0, empty or None."""

    #: Its session when it started, and a number if others have started in that session: random, new at each
    #: start. Unique, while names need not be.
    id: str
    #: Its name, which need not be unique.
    name: str
    #: The machine on which it runs.
    host: str
    #: The number of its process there.
    pid: int
    #: The names of the queues of the fleet that it serves.
    queues: tuple[str, ...]
    #: Those queues, or their shards if they have some, each with the session that holds its leases there.
    sessions: Mapping[str, str]
    #: Whether its time without a heartbeat has passed, or it is being failed, on one of the queues.
    dead: bool
    #: Until when it is alive, in seconds since 1970, by the server's clock; None: it is permanent.
    alive_until: float | None
    #: Whether it fetches nothing more.
    quiet: bool
    #: Whether it was ordered to stop.
    stopping: bool
    #: When it started, in seconds since 1970, by its own clock.
    started: float | None
    #: The versions of `leasequeue` and `python`, and as `format` the newest format of the keys that it knows.
    versions: Mapping[str, str]
    #: The run id of its server; empty: it does not know it.
    server: str
    #: How many runs it may have at once.
    concurrency: int
    #: How many runs have ended since it started.
    runs: int
    #: How many of them failed.
    failures: int
    #: What runs on the queues of the fleet, the oldest first: up to 100 of each.
    running: tuple[RunView, ...]


class Fleet:
    """The workers of some queues: who works, who is dead, and telling them what to do.

    Each running `Worker` registers on its queues, with a heartbeat every 10 s. It is dead when 30 s have
    passed without one; its peers then return its items, with no leader and no lock. So a fleet needs no
    program of its own: this is to look, and to act by hand.

        fleet = Fleet(queue)
        for worker in await fleet.workers():
            print(worker.name, worker.runs, [run.item_id for run in worker.running])
        await fleet.quiet("web-1/4711")

    Workers of other libraries do not register. Every call raises QueueClosed and ServerError as those of
    `AsyncWorkQueue` do.

    Args:
        queues: The queues, at least one. A worker that serves several of them is one worker.

    Raises:
        InvalidArgument: If there is none, or two have the same name.
    """

    def __init__(self, *queues: AsyncWorkQueue) -> None:
        wrong = [one for one in queues or (None,) if not isinstance(one, AsyncWorkQueue)]
        if wrong:
            raise InvalidArgument("queues", wrong[0], "one or more queues")
        self._queues = {shard.name: shard for one in queues for shard in one.shards}
        #: The names of the given queues, by those of their shards.
        self._names = {shard.name: one.name for one in queues for shard in one.shards}
        if len({one.name for one in queues}) < len(queues):
            raise InvalidArgument("queues", [one.name for one in queues], "queues with different names")

    async def workers(self, sessions: Mapping[str, Collection[str]] | None = None) -> list[WorkerView]:
        """Return the workers that are registered, those that started first first.

        With `sessions`, by the names of queues, only workers with these sessions there are read.
        """
        asked = dict.fromkeys(self._names.values()) if sessions is None else sessions
        calls = {
            shard: self._registry(shard).workers(asked[name])
            for shard, name in self._names.items()
            if name in asked
        }
        found = by_worker((await answers_of(calls)).items())
        views = [
            _view_of(worker_id, registrations, self._names) for worker_id, registrations in found.items()
        ]
        return sorted(views, key=lambda one: (one.started or 0.0, one.name))

    async def dead(self) -> list[WorkerView]:
        """Return the workers that are dead, and not failed yet."""
        return [one for one in await self.workers() if one.dead]

    async def fail(self, worker: WorkerView | str) -> int:
        """Fail a worker, dead or not: return its items to the front of the queues, at once.

        Only those of this worker return, in the order in which they were leased, and wake others that wait.
        The attempts count. Whatever the worker still sends for them is rejected. If it is alive, it notices
        this when it looks who works, at the latest at its next heartbeat, stops its runs, and works on under
        another session. Repeating is safe.

        Args:
            worker: The worker, its `id`, one of its sessions, or its name.

        Returns:
            How many items this call returned. While it runs, a worker that is alive may notice and release
            its items itself, as attempts that do not count, and another client may fail it as well.

        Raises:
            WorkerUnknown: If it is not registered: it has stopped, or was failed already.
            InvalidArgument: If several workers have this name.
        """
        found = await self._find(worker)
        calls = [self._registry(queue).fail(session) for queue, session in found.items()]
        returned = [count for count in await asyncio.gather(*calls) if count is not None]
        if not returned:
            raise WorkerUnknown(_name_of(worker))
        return sum(returned)

    async def fail_dead(self) -> int:
        """Fail all dead workers, as their peers do; return how many items were returned.

        Repeating is safe.
        """
        dead: dict[str, list[str]] = {}
        for one in await self.dead():
            for queue, session in one.sessions.items():
                dead.setdefault(queue, []).append(session)
        calls = [
            self._registry(queue).fail_many(dict.fromkeys(sessions[at : at + TOGETHER]), expired=True)
            for queue, sessions in dead.items()
            for at in range(0, len(sessions), TOGETHER)
        ]
        return sum(sum(counts.values()) for counts in await asyncio.gather(*calls))

    async def quiet(self, worker: WorkerView | str) -> None:
        """Have a worker fetch nothing more, of any of its queues. Its runs continue; see `resume`.

        The order is sent at once, and again at its next heartbeat if the message was lost.

        Args:
            worker: As for `fail`.

        Raises:
            WorkerUnknown, InvalidArgument, QueueClosed, ServerError: As in `fail`.
        """
        await self._tell(worker, "quiet")

    async def resume(self, worker: WorkerView | str) -> None:
        """Have a worker fetch again that is quiet; see `quiet`."""
        await self._tell(worker, "resume")

    async def stop(self, worker: WorkerView | str) -> None:
        """Have a worker stop as `Worker.stop` does; see `quiet`.

        What supervises its process, such as `leasequeue worker --processes`, may start another.
        """
        await self._tell(worker, "stop")

    def _registry(self, queue: str) -> Registry:
        return engine_of(self._queues[queue]).registry

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
        calls = [self._registry(queue).tell(session, what) for queue, session in found.items()]
        if not any(await asyncio.gather(*calls)):
            raise WorkerUnknown(_name_of(worker))


def by_worker(answers: Iterable[tuple[str, Iterable[One]]]) -> dict[str, dict[str, One]]:
    """Return what workers say of themselves on some queues, by worker and queue."""
    found: dict[str, dict[str, One]] = {}
    for name, registrations in answers:
        for one in registrations:
            mine = found.setdefault(one.id, {})
            other = mine.get(name, one)
            # One that has begun again under another session is there twice, until the first is failed.
            mine[name], before = (other, one) if one.dead else (one, other)
            if before is not mine[name]:
                found[before.session] = {name: before}
    return found


def _view_of(worker_id: str, found: Mapping[str, RegisteredWorker], names: Mapping[str, str]) -> WorkerView:
    """Return what a worker of this id says of itself on some shards; `names`: those of their queues."""
    latest = next(iter(found.values()))
    ends = [one.until_ms for one in found.values() if one.until_ms is not None]
    started = latest.number("started")
    runs = [
        RunView(queue=names[queue], item_id=item_id, handler=handler, since=since / 1000)
        for queue, one in found.items()
        for item_id, handler, since in one.running
    ]
    return WorkerView(
        id=worker_id,
        name=latest.name,
        host=latest.text("host"),
        pid=latest.count("pid"),
        queues=(*dict.fromkeys(names[queue] for queue in found),),
        sessions={queue: one.session for queue, one in found.items()},
        dead=any(one.dead for one in found.values()),
        alive_until=min(ends) / 1000 if ends else None,
        quiet=latest.about.get("quiet") is True,
        stopping=any(one.order == "stop" for one in found.values()),
        started=started / 1000 if started else None,
        versions=latest.versions,
        server=latest.text("server"),
        concurrency=latest.count("concurrency"),
        runs=latest.count("runs"),
        failures=latest.count("failures"),
        running=tuple(sorted(runs, key=lambda run: run.since)),
    )


def _name_of(worker: WorkerView | str) -> str:
    return worker.name if isinstance(worker, WorkerView) else worker
