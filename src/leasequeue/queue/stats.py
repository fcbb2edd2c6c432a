"""The statistics of a queue: its counts, how long its items wait, and what its workers say of themselves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasequeue.queue.limits import Limit, Pause, read_limit, read_pause
from leasequeue.queue.views import Counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.registry import RegisteredWorker


@dataclass(frozen=True, kw_only=True)
class WaitTimes:
    """How long items waited until they were leased, in seconds: of a sample of the last 5 minutes.

    A call of `stats` samples the item that was added last, whose wait is counted from that call. If it was
    completed before the next one, the time of its lease is estimated from the tokens that were given in
    between.
    """

    #: The mean; 0 if there is no sample.
    mean: float = 0.0
    #: The median.
    median: float = 0.0
    #: The longest.
    longest: float = 0.0
    #: How many items were sampled, at most 64.
    samples: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkerStats:
    """What a worker said of itself at its last heartbeat. What it did not say is 0 or empty."""

    #: Its session when it started, which is the same on all its queues.
    id: str
    #: Its name.
    name: str
    #: Whether its time without a heartbeat has passed, or it is being failed.
    dead: bool
    #: How many runs it may have at once.
    concurrency: int
    #: How many runs it had, of all its queues.
    running: int
    #: How many runs have ended since it started.
    runs: int
    #: How many items of these runs failed.
    failures: int
    #: For how many seconds these runs lasted, all together.
    run_seconds: float
    #: Whether it fetches nothing more.
    quiet: bool = False
    #: How many items of this queue its runs had.
    items: int = 0
    #: For how many seconds these items ran, all together. An item of a batch counts as if it had taken its
    #: part of the time.
    item_seconds: float = 0.0
    #: The sum of the squares of these times, for their variation.
    item_squares: float = 0.0
    #: Its session on this queue, which holds its leases.
    session: str = ""
    #: Its other sessions on shards of the queue: it has one where it was failed.
    others: tuple[str, ...] = ()
    #: The machine on which it runs.
    host: str = ""
    #: Its version of `leasequeue`.
    version: str = ""
    #: For how many seconds its runs of this queue had run, of up to 100 of them, the longest first.
    ages: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """What is known of a queue at one moment."""

    #: The queue's name.
    queue: str
    #: How many items are in each state.
    counts: Counts
    #: For how many seconds the oldest waiting item has waited at least; 0 if none waits. An item that is due,
    #: or whose lease has expired, counts as waiting. After a release or a retry, the time counts from then.
    oldest_age: float
    #: By how many seconds it may have waited longer. None: unknown, as items were waiting when the sample
    #: began, or in more lanes than are sampled.
    oldest_age_error: float | None
    #: How long items waited that were leased.
    wait: WaitTimes
    #: How many leases there have been, ever: the last token. Those that were released, and are no attempts,
    #: count.
    leases: int
    #: The pause of the whole queue; None: it is not paused.
    paused: Pause | None
    #: The limits of the whole queue, if it has its own.
    limit: Limit
    #: Its workers.
    workers: tuple[WorkerStats, ...]
    #: When this was so, by the server's clock, in seconds since 1970.
    at: float = 0.0
    #: How many of the scheduled items are due, though not reclaimed yet.
    due: int = 0
    #: How many others will be due within the `horizon` of the call.
    due_soon: int = 0
    #: How many of the leases have expired, though they are not reclaimed yet.
    expired: int = 0
    #: How many others are held by workers whose time without a heartbeat has passed, of the 128 that expire
    #: next.
    orphaned: int = 0

    @property
    def workers_alive(self) -> int:
        """How many of its workers are alive."""
        return sum(not one.dead for one in self.workers)


async def read_stats(engine: Engine, name: str, *, horizon_ms: int | None, note: bool) -> QueueStats:
    """Return what is known of a queue. See `AsyncWorkQueue.stats`."""
    may_note = note and "SET" not in engine.runner.rights.refused  # the script tries, if it is not known yet
    reply, registrations = await asyncio.gather(
        engine.run(
            "sample_queue",
            horizon_ms=b"" if horizon_ms is None else horizon_ms,
            note=int(may_note),
            every_ms=b"",
        ),
        engine.registry.workers(),
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


def _worker(one: RegisteredWorker) -> WorkerStats:
    at = one.number("at")  # by its own clock, as are the times at which its runs began
    return WorkerStats(
        id=one.id,
        name=one.name,
        dead=one.dead,
        session=one.session,
        host=one.text("host"),
        version=one.versions.get("leasequeue", ""),
        concurrency=one.count("concurrency"),
        running=one.count("active"),
        runs=one.count("runs"),
        failures=one.count("failures"),
        run_seconds=one.number("run_seconds"),
        quiet=one.about.get("quiet") is True,
        items=one.count("items"),
        item_seconds=one.number("item_seconds"),
        item_squares=one.number("item_squares"),
        ages=tuple((at - since) / 1000 for _, _, since in one.running if 0 < since <= at),
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="surrogateescape")
