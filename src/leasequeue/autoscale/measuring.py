"""Measure a job: from the counters of its queue, seen again and again, to the signals of `wanted_workers`.

Pure: what is remembered between two calls is a JSON object, which another copy of the autoscaler can
continue with.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from leasequeue.autoscale.arrivals import ArrivalCounts, Arrivals, ArrivalSpread, Count, arrivals, follow
from leasequeue.autoscale.model import Signals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasequeue.queue import QueueStats, WorkerStats

#: Two calls that are further apart (s) are not compared: the loop was away, or a clock was set.
LONGEST_INTERVAL = 3600.0
#: The service time is the mean of about so many items, or of four times as many as are leased at once; but of
#: so many of the last, or four times as many as that, if their mean differs by this many standard errors; and
#: what a worker did before it was first seen counts as so many items at most.
MOST_ITEMS, LATE_ITEMS, CHANGE, NEW_ITEMS = 1000.0, 100.0, 3.5, 30.0
#: How many items the assumption is worth that service times vary as those of an exponential distribution.
PRIOR_ITEMS = 5.0
#: The limits of a squared coefficient of variation of service times.
MOST_VARIED = 100.0
#: Of how many workers the counters are remembered. It is always the same ones, as long as they are there.
REMEMBERED = 32
#: How many leases there must have been until the time they are held is an estimate, and of how many it is the
#: mean.
FEWEST_LEASES, MOST_LEASES = 5.0, 100.0
#: The variation of shorter service times (s) is not known.
SHORTEST = 1e-9
#: No count of a server and no time is larger.
LARGEST = 1e15


class Measured(NamedTuple):
    """What `measure` returns."""

    signals: Signals
    #: What the next call is to be given: JSON values, of about 2 kB.
    memory: dict[str, object]


#: Items, seconds and squares.
_Work = tuple[float, float, float]


class _Memory(msgspec.Struct, forbid_unknown_fields=True):
    """What is remembered of one job; at first, nothing. The times are those of the caller's clock."""

    at: float = math.inf
    demand: float = 0.0
    leases: float = 0.0
    leased: float = 0.0
    #: What arrived, and in how many seconds: see `arrivals`.
    window: list[tuple[float, float]] = []
    spread: tuple[float, float] = ArrivalSpread()
    last: list[tuple[float, float]] = []
    aside: list[tuple[float, float]] = []
    before: float = 0.0
    #: In how many seconds how many items were leased lately.
    begun: tuple[float, float] = (0.0, 0.0)
    #: For how many seconds none was.
    still: float = 0.0
    #: Items, seconds and squares of the runs of workers that say so, faded out; and of the last of them.
    done: _Work = (0.0, 0.0, 0.0)
    late: _Work = (0.0, 0.0, 0.0)
    #: How many items were leased at once while the last ones were done, at most.
    peak: float = 0.0
    workers: dict[str, _Work] = {}
    #: For how many seconds items were leased, and how many: for workers that say nothing.
    held: tuple[float, float] = (0.0, 0.0)


def measure(stats: QueueStats, memory: Mapping[str, object], now: float, *, trial: float = 0.0) -> Measured:
    """Return what is known of a job, given new statistics of its queue.

    Any statistics and any memory will do: counters that go back, a clock that jumps and a memory of another
    make are left out. One call alone has no rates; from the second on, the rate of arrivals is exact in the
    mean, as a token is given with each lease.

    Args:
        stats: The statistics; the ages of their workers are those of runs in progress.
        memory: What the last call returned; empty: this is the first.
        now: When they were so, in seconds, by a clock that all copies share: best that of the server.
        trial: How long a higher rate has to last until all of it is believed (s): see `trial_of`.
    """
    last = _read(memory)
    seen = _Seen.of(stats)
    interval = now - last.at
    known = 0 < interval <= LONGEST_INTERVAL and seen.leases >= last.leases
    window, before, aside = ([Count(*one) for one in some] for some in (last.window, last.last, last.aside))
    counts = ArrivalCounts(window, ArrivalSpread(*last.spread), before, aside, last.before)
    begun, held, still = last.begun, last.held, 0.0
    if known:
        leases = seen.leases - last.leases
        entered = max(0.0, seen.demand - last.demand + leases)
        counts = follow(counts, Count(max(0.001, round(interval, 3)), entered), trial)
        begun = _faded(begun, interval, leases)
        still = 0.0 if leases else min(last.still + interval, LONGEST_INTERVAL)
        held = _fade(held, leases, (interval * (last.leased + seen.leased) / 2, leases))
    more, workers = _work_done(stats.workers, last)
    faded = min(1.0, more[0] / max(LATE_ITEMS, 4 * last.peak))
    peak = max(seen.leased, last.peak * (1 - faded))
    most_late = max(LATE_ITEMS, 4 * peak)
    done, late = _mixed(last.done, more, max(MOST_ITEMS, most_late)), _mixed(last.late, more, most_late)
    # Of a burst, the long runs end last: then the last ones are no sample.
    if late[0] > 0.99 * most_late and seen.leased >= peak / 2 and _differ(done, late):
        done = late
    after = _Memory(
        at=now,
        demand=seen.demand,
        leases=seen.leases,
        leased=seen.leased,
        window=[*counts.window],
        spread=counts.spread,
        last=[*counts.last],
        aside=[*counts.aside],
        before=counts.before,
        begun=begun,
        still=round(still, 3),
        done=done,
        late=late,
        peak=round(peak, 3),
        workers=workers,
        held=held,
    )
    return Measured(_signals(stats, seen, arrivals(counts, trial), after), msgspec.to_builtins(after))


class _Seen(NamedTuple):
    """The counters of a queue, within sensible limits."""

    #: All that a worker should begin: what waits, is due, or was left by a worker.
    demand: float
    #: What live workers hold.
    leased: float
    abandoned: float
    leases: float

    @classmethod
    def of(cls, stats: QueueStats) -> _Seen:
        leased = _number(stats.counts.leased)
        abandoned = min(leased, _number(stats.expired) + _number(stats.orphaned))
        due = min(_number(stats.due), _number(stats.counts.scheduled))
        demand = _number(stats.counts.waiting) + due + abandoned
        return cls(demand, leased - abandoned, abandoned, _number(stats.leases))


def _signals(stats: QueueStats, seen: _Seen, rates: Arrivals, known: _Memory) -> Signals:
    service_time, variation = _service(stats.workers, known)
    begun_in, begun = known.begun
    # It is known that the oldest item began to wait between two calls.
    oldest_age = stats.oldest_age + (stats.oldest_age_error or 0.0) / 2
    return Signals(
        waiting=int(seen.demand),
        leased=int(seen.leased),
        abandoned=int(seen.abandoned),
        due_soon=int(_number(stats.due_soon)),
        oldest_age=_number(oldest_age) if seen.demand else 0.0,
        arrival_rate=rates.rate,
        arrival_trend=rates.trend,
        arrival_error=rates.error,
        arrival_variation=rates.variation,
        lease_rate=begun / begun_in if begun_in > 0 else 0.0,
        since_lease=known.still,
        service_time=service_time,
        service_variation=variation,
        ready=int(sum(_number(one.concurrency) for one in stats.workers if not (one.dead or one.quiet))),
        limit=stats.limit.concurrency if stats.paused is None else 0,
    )


def _service(workers: Sequence[WorkerStats], known: _Memory) -> tuple[float | None, float]:
    """Return how long a worker takes for one item, and the squared coefficient of variation of that.

    Present runs that are longer than the mean of those that have ended count as well, so that a few quick
    runs do not hide many long ones: as if they ended now, or if they are more than have ended, later.
    """
    items, seconds, squares = known.done
    mean = seconds / items if items > 0 else 0.0
    chosen = {one.id for one in _remembered(workers)}
    ages = [_number(age) for one in workers if one.id in chosen for age in one.ages]
    longer = [age for age in ages if age > mean]
    held, leases = known.held
    if items == 0:  # the best that is known: the oldest run at the last heartbeat, or how long items are held
        longer += [held / leases] if leases >= FEWEST_LEASES and held > 0 else []
        longer = [max(longer)] if longer else []
    counted = items + (min(float(len(longer)), items) if items > 0 else len(longer))
    if counted > 0:
        seconds, squares = seconds + sum(longer), squares + sum(age * age for age in longer)
        mean = seconds / counted
        if mean < SHORTEST:
            return mean, 1.0
        found = max(0.0, squares / counted / (mean * mean) - 1)
        return mean, min((found * counted + PRIOR_ITEMS) / (counted + PRIOR_ITEMS), MOST_VARIED)
    return (0.0 if leases >= FEWEST_LEASES else None), 1.0


def _work_done(found: Iterable[WorkerStats], last: _Memory) -> tuple[_Work, dict[str, _Work]]:
    """Return the work since the last call, and the counters of the workers."""
    more, first = (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
    workers: dict[str, _Work] = {}
    for one in _remembered(found):
        name = _short(one.id)
        counters = _number(one.items), _number(one.item_seconds), _number(one.item_squares)
        workers[name] = _rounded(counters)
        before = last.workers.get(name)
        if before is None:
            first = _plus(first, counters)  # all that it ever did
        else:
            since = counters[0] - before[0], counters[1] - before[1], counters[2] - before[2]
            # It may be another worker of the same id.
            more = _plus(more, since) if min(since) >= 0 else more
    return _plus(more, _part(first, NEW_ITEMS)), workers


def _mixed(known: _Work, more: _Work, most: float) -> _Work:
    """Return work of which at most so many items count, the older ones less."""
    return _rounded(_plus(_part(known, max(0.0, most - more[0])), _part(more, most)))


def _part(work: _Work, most: float) -> _Work:
    """Return work as if it had had so many items at most."""
    part = min(1.0, most / work[0]) if work[0] > 0 else 0.0
    return work[0] * part, work[1] * part, work[2] * part


def _differ(done: _Work, late: _Work) -> bool:
    """Return whether the items took another time lately than chance explains."""
    if done[0] <= late[0]:
        return False
    means = done[1] / done[0], late[1] / late[0]
    spread = max(done[2] / done[0] - means[0] ** 2, late[2] / late[0] - means[1] ** 2, 0.0025 * means[0] ** 2)
    return abs(means[1] - means[0]) > CHANGE * math.sqrt(spread / late[0])


def _remembered(workers: Iterable[WorkerStats]) -> list[WorkerStats]:
    """Return the workers whose counters are remembered: a choice that changes little if others come or go."""
    return sorted(workers, key=lambda one: (_short(one.id), one.id))[:REMEMBERED]


def _short(name: str) -> str:
    """Return a short text for the name of a worker, which is a draw as well."""
    return f"{zlib.crc32(name.encode(errors='surrogateescape')):08x}"


def _plus(one: _Work, other: _Work) -> _Work:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _rounded(values: _Work) -> _Work:
    return round(values[0], 3), round(values[1], 6), round(values[2], 9)


def _faded(begun: tuple[float, float], interval: float, leases: float) -> tuple[float, float]:
    """Return in how many seconds how many items were leased, of the last half minute or two passes."""
    kept = min(1.0, max(30.0 - interval, interval) / begun[0]) if begun[0] > 0 else 0.0
    return round(begun[0] * kept + interval, 3), round(begun[1] * kept + leases, 3)


def _fade(held: tuple[float, float], leases: float, more: tuple[float, float]) -> tuple[float, float]:
    """Return for how many seconds how many items were leased, of about the last 100 leases."""
    kept = min(1.0, max(0.0, MOST_LEASES - leases) / held[1]) if held[1] > 0 else 1.0
    return round(held[0] * kept + more[0], 6), round(held[1] * kept + more[1], 3)


def _number(value: float) -> float:
    """Return a count or a time within sensible limits; 0 for any other value."""
    return float(min(value, LARGEST)) if value > 0 else 0.0  # not a number is not above 0


def _read(memory: Mapping[str, object]) -> _Memory:
    """Return what is remembered; of what no call can have written: nothing."""
    try:
        found = msgspec.convert(memory, _Memory)
    except (msgspec.ValidationError, OverflowError):
        return _Memory()
    pairs = [*found.window, *found.last, *found.aside, found.spread, found.begun, found.held]
    values = [value for row in (*pairs, found.done, found.late, *found.workers.values()) for value in row]
    values += [found.demand, found.leases, found.leased, found.peak, found.before, found.still]
    sound = all(0 <= value <= LARGEST for value in values) and math.isfinite(found.at)
    sound = sound and len(memory) == len(_Memory.__struct_fields__)
    sound = sound and all(row[0] > 0 for row in (*found.window, *found.last, *found.aside, found.spread))
    return found if sound else _Memory()
