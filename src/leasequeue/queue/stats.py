"""The statistics of a queue: its counts, how long its items wait, and what its workers say of themselves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.queue.limits import Limit, Pause, read_limit, read_pause
from leasequeue.queue.registry import Registry
from leasequeue.queue.views import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.registry import Registration


@dataclass(frozen=True, kw_only=True)
class WaitTimes:
    """How long items waited until they were leased, in seconds: of a sample of the last 5 minutes."""

    #: The mean, the median and the longest; 0 if there is no sample.
    mean: float = 0.0
    median: float = 0.0
    longest: float = 0.0
    #: How many items were sampled, at most 64.
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkerStats:
    """What a worker said of itself at its last heartbeat. What it did not say is 0 or empty."""

    #: Its session when it started, which is the same on all its queues; and its name.
    id: str
    name: str
    #: Whether its time without a heartbeat has passed, or it is being failed.
    dead: bool
    #: How many runs it may have at once, and how many it had, of all its queues.
    concurrency: int
    running: int
    #: How many runs have ended since it started, how many of them failed, and for how many seconds they ran.
    runs: int
    failures: int
    run_seconds: float
    #: Whether it fetches nothing more.
    quiet: bool = False
    #: How many items of this queue its runs had, for how many seconds these ran, and the sum of the squares.
    #: Each item of a batch counts as if it had taken its part of the time.
    items: int = 0
    item_seconds: float = 0.0
    item_squares: float = 0.0
    #: For how many seconds its runs of this queue had run, of up to 100 of them, the longest first.
    ages: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """What is known of a queue at one moment."""

    #: The queue's name.
    queue: str
    #: How many items are in each state.
    counts: Counts
    #: For how many seconds the oldest waiting item has waited at least; 0 if none waits.
    oldest_age: float
    #: By how many seconds it may have waited longer. None: unknown, as items were waiting when the sample
    #: began, or in more lanes than are sampled.
    oldest_age_error: float | None
    #: How long items waited that were leased.
    wait: WaitTimes
    #: How many leases there have been, ever: the last token. Those that were released count, too.
    leases: int
    #: The pause of the whole queue; None: it is not paused.
    paused: Pause | None
    #: The limits of the whole queue, if it has its own.
    limit: Limit
    #: Its workers.
    workers: tuple[WorkerStats, ...]
    #: When this was so, by the server's clock, in seconds since 1970.
    at: float = 0.0
    #: How many of the scheduled items are due, though not reclaimed yet, and how many others will be within
    #: the time ahead that was asked for.
    due: int = 0
    due_soon: int = 0
    #: How many of the leases have expired, though they are not reclaimed yet, and how many others are held by
    #: workers whose time without a heartbeat has passed: of the 128 that expire next.
    expired: int = 0
    orphaned: int = 0

    @property
    def workers_alive(self) -> int:
        """How many of its workers are alive."""
        return sum(not one.dead for one in self.workers)


async def read_stats(engine: Engine, name: str, *, horizon_ms: int | None, note: bool) -> QueueStats:
    """Return what is known of a queue. See `AsyncWorkQueue.stats`."""
    reply, registrations = await asyncio.gather(
        engine.run("sample_queue", horizon_ms=b"" if horizon_ms is None else horizon_ms, note=int(note)),
        Registry(lambda: engine).workers(),
    )
    now_ms, waiting, leased, scheduled, dead, token, age_ms, error_ms, *others = reply
    due, due_soon, expired, orphaned, paused, rate, concurrency, *waits = others
    pause = read_pause(_text(paused))
    if pause is not None and pause.until is not None and pause.until <= now_ms / 1000:
        pause = None
    return QueueStats(
        queue=name,
        counts=Counts(waiting, leased, scheduled, dead),
        oldest_age=max(0, age_ms) / 1000,
        oldest_age_error=None if error_ms < 0 else error_ms / 1000,
        wait=_wait_times(waits),
        leases=token,
        paused=pause,
        limit=read_limit(_text(rate), _text(concurrency)),
        workers=tuple(sorted(map(_worker, registrations), key=lambda one: (one.name, one.id))),
        at=now_ms / 1000,
        due=due,
        due_soon=due_soon,
        expired=expired,
        orphaned=orphaned,
    )


def _wait_times(waits_ms: Sequence[int]) -> WaitTimes:
    if not waits_ms:
        return WaitTimes()
    ordered, count = sorted(waits_ms), len(waits_ms)
    return WaitTimes(
        mean=sum(ordered) / count / 1000,
        median=(ordered[(count - 1) // 2] + ordered[count // 2]) / 2000,
        longest=ordered[-1] / 1000,
        samples=count,
    )


def _worker(one: Registration) -> WorkerStats:
    about = one.about
    session = about.get("worker")
    name = about.get("name")
    return WorkerStats(
        id=session if isinstance(session, str) and session else one.session,
        name=name if isinstance(name, str) and name else one.session,
        dead=one.expired,
        concurrency=int(_number(about.get("concurrency"))),
        running=int(_number(about.get("active"))),
        runs=int(_number(about.get("runs"))),
        failures=int(_number(about.get("failures"))),
        run_seconds=_number(about.get("run_seconds")),
        quiet=about.get("quiet") is True,
        items=int(_number(about.get("items"))),
        item_seconds=_number(about.get("item_seconds")),
        item_squares=_number(about.get("item_squares")),
        ages=tuple(_ages(about)),
    )


def _ages(about: Mapping[str, Any]) -> Iterator[float]:
    """Yield for how long the runs of a registration had run, when the worker said so, by its own clock."""
    at, running = _number(about.get("at")), about.get("running")
    for row in running if isinstance(running, list) else ():
        since = _number(row[2]) if isinstance(row, list) and len(row) == 3 else 0
        if 0 < since <= at:
            yield (at - since) / 1000


def _number(value: Any) -> float:
    """Return a number of a registration, which any client may write."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1e15 else 0


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="surrogateescape")
