"""What is known of a worker: frozen, with named fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasequeue.queue.registry import Registration


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run of a worker that had not ended at its last heartbeat."""

    #: The queue and the item; of a batch, the first one.
    queue: str
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
    name: str
    host: str
    pid: int
    #: The queues of the fleet that it serves, each with the session that holds its leases there.
    sessions: Mapping[str, str]
    #: Whether its time without a heartbeat has passed, or it is being failed, on one of the queues.
    dead: bool
    #: Until when it is alive, in seconds since 1970, by the server's clock; None: it is permanent.
    alive_until: float | None
    #: Whether it fetches nothing more, and whether it was told to stop.
    quiet: bool
    stopping: bool
    #: When it started, in seconds since 1970, by its own clock.
    started: float | None
    #: The versions of `leasequeue` and `python`, and the run id of its server.
    versions: Mapping[str, str]
    server: str
    #: How many runs it may have at once, how many have ended since it started, and how many of them failed.
    concurrency: int
    runs: int
    failures: int
    #: What runs on the queues of the fleet, the oldest first: up to 100 of each.
    running: tuple[RunView, ...]

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues of the fleet that it serves."""
        return tuple(self.sessions)


def worker_id(one: Registration) -> str:
    """Return the id of a worker, which is the same on all its queues."""
    return _text(one.about.get("worker")) or one.session


def view_of(found_id: str, found: Mapping[str, Registration]) -> WorkerView:
    """Return what a worker of this id says of itself on some queues, by their names."""
    latest = next(iter(found.values()))
    about = latest.about
    ends = [one.until_ms for one in found.values() if one.until_ms is not None]
    versions = about.get("versions")
    started = _number(about.get("started"))
    runs = [run for queue, one in found.items() for run in _runs_of(queue, one.about.get("running"))]
    return WorkerView(
        id=found_id,
        name=_text(about.get("name")) or latest.session,
        host=_text(about.get("host")),
        pid=_number(about.get("pid")),
        sessions={queue: one.session for queue, one in found.items()},
        dead=any(one.expired for one in found.values()),
        alive_until=min(ends) / 1000 if ends else None,
        quiet=about.get("quiet") is True,
        stopping=any(one.told == "stop" for one in found.values()),
        started=started / 1000 if started else None,
        versions={_text(key): _text(value) for key, value in versions.items()}
        if isinstance(versions, dict)
        else {},
        server=_text(about.get("server")),
        concurrency=_number(about.get("concurrency")),
        runs=_number(about.get("runs")),
        failures=_number(about.get("failures")),
        running=tuple(sorted(runs, key=lambda run: run.since)),
    )


def _runs_of(queue: str, rows: Any) -> Iterable[RunView]:
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 3:
            since = _number(row[2]) / 1000
            yield RunView(queue=queue, item_id=_text(row[0]), handler=_text(row[1]), since=since)


def _text(value: object) -> str:
    """Return a text of a registration, which any client may write."""
    return value if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
