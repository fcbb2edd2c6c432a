"""The statistics of a queue: its counts, how long its items wait, and what its workers say of themselves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasehold.queue.limits import Limit, Pause, read_limit, read_pause
from leasehold.queue.registry import Registry
from leasehold.queue.views import Counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.queue.engine import Engine
    from leasehold.queue.registry import Registration


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
    #: How many leases there have been, ever: the last token.
    leases: int
    #: The pause of the whole queue; None: it is not paused.
    paused: Pause | None
    #: The limits of the whole queue, if it has its own.
    limit: Limit
    #: Its workers.
    workers: tuple[WorkerStats, ...]

    @property
    def workers_alive(self) -> int:
        """How many of its workers are alive."""
        return sum(not one.dead for one in self.workers)


async def read_stats(engine: Engine, name: str) -> QueueStats:
    """Return what is known of a queue. See `AsyncWorkQueue.stats`."""
    reply, registrations = await asyncio.gather(
        engine.run("sample_queue"), Registry(lambda: engine).workers()
    )
    now_ms, waiting, leased, scheduled, dead, token, age_ms, error_ms, paused, rate, concurrency, *waits = (
        reply
    )
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
    )


def _number(value: Any) -> float:
    """Return a number of a registration, which any client may write."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 1e15 else 0


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="surrogateescape")
