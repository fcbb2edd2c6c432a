"""The answer: how many workers one job needs now. A pure function of what is seen and what is wished.

It is the largest of three parts: what arrives, what waits, and what will wait when workers that are asked for
now can work. docs/pages/reference/autoscale.md has the formulas and their sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from leasequeue.autoscale.model import Answer
from leasequeue.autoscale.waiting import Demand, fewest_workers

if TYPE_CHECKING:
    from leasequeue.autoscale.model import JobPolicy, Signals

#: Counts, rates and times above it are taken for it: a lie of a server must not become an endless sum.
_MAXIMUM = 1e18
#: The least share of the age target within which old items are begun: the older, the less time is left.
_LEAST_TIME_LEFT = 0.75
#: By how much of itself the rate may grow within the spin-up time, as the trend has it.
_MOST_GROWTH = 0.5
#: How many items are to be expected within the look-ahead, at least, for a worker to be there before them.
_RARE = 0.1
#: The workers that keep up with a load: by so much more than it, less what it may be measured too high, a
#: share of it and at most so many workers. If they are too few after all, the backlog shows it in time.
_RESERVE, _LOAD_ERROR, _MOST_LOAD_ERROR = 1.02, 0.07, 0.5
#: By what share of it a high and steady rate is measured wrong: no reason for one worker more.
_RATE_ERROR = 0.03
#: Busy workers that have begun nothing for so many times the service time are held up.
_HELD_UP = 3.0
#: The shortest time (s) that counts as that between two passes: rates are not known any sooner.
PASS = 10.0
#: Rounding errors below this are no further worker.
_ROUNDING = 1e-9


def wanted_workers(signals: Signals, policy: JobPolicy, *, spin_up: float, every: float = PASS) -> Answer:
    """Return how many workers a job needs, and why.

    Args:
        signals: What is known of the job now. NaN and negative numbers count as 0.
        policy: What is wished for it.
        spin_up: How long it takes (s) until a worker works that is asked for now.
        every: The time between two passes (s); less than 10 counts as 10.

    Returns:
        0 if nothing waits and nothing arrives or the queue is paused, else at least 1, and never more than
        the items that may be leased at once.
    """
    job = _Job.of(signals, policy, spin_up, every)
    if job.waiting + job.due_soon <= 0 and not job.arrives:
        return Answer(workers=0, why="nothing waits and nothing arrives")
    answer = _while_unknown(job) if job.service_time is None else _largest(job, job.service_time)
    limit = signals.limit
    if limit is None or answer.workers <= limit:
        return answer
    why = f"{limit:,} items may be leased at once" if limit > 0 else "the queue is paused"
    return replace(answer, workers=max(0, limit), why=f"{why}; else {answer.workers:,} workers: {answer.why}")


def _largest(job: _Job, service_time: float) -> Answer:
    for_rate = _for_rate(job, service_time)
    for_forecast = _for_forecast(job, service_time)
    held_up = _for_late(job) if job.since_lease > _HELD_UP * service_time else 0
    for_backlog = max(_for_backlog(job, service_time, for_forecast), held_up)
    workers = max(1, min(max(for_rate, for_backlog, for_forecast), _items(job)))
    if workers == for_rate:
        why = f"{job.rate:,.4g} items/s of {service_time:,.4g} s arrive"
    elif workers == held_up:
        why = f"all workers are busy for {job.since_lease:,.4g} s, and the oldest item is late"
    elif workers == for_backlog:
        why = f"{job.waiting:,.0f} items of {service_time:,.4g} s wait, the oldest for {job.age:,.4g} s"
    elif workers == for_forecast:
        why = f"{_forecast(job, service_time):,.0f} items will wait in {job.spin_up:,.4g} s"
    elif workers > 1:
        why = "one worker for each item that there is, or will be soon"
    else:
        why = "one worker for what waits or arrives"
    return Answer(
        workers=workers, for_rate=for_rate, for_backlog=for_backlog, for_forecast=for_forecast, why=why
    )


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The signals and the policy of a job, with numbers that can be calculated with: finite, 0 or more."""

    waiting: float
    busy: float
    due_soon: float
    age: float
    rate: float
    since_lease: float
    #: The rate when workers that are asked for now can work, if it grows.
    coming_rate: float
    error: float
    arrival_variation: float
    service_time: float | None
    service_variation: float
    ready: float
    requested: float
    #: The workers that work within the spin-up time, on average.
    coming: float
    spin_up: float
    every: float
    age_target: float
    confidence: float

    @classmethod
    def of(cls, signals: Signals, policy: JobPolicy, spin_up: float, every: float) -> _Job:
        """Take the numbers that can be calculated with."""
        service_time = policy.service_time
        if service_time is None:
            service_time = signals.service_time
        rate = _sound(signals.arrival_rate)
        ready = _sound(signals.ready)
        ignored = _sound(signals.abandoned) if policy.ignore_abandoned else 0.0
        requested = max(ready, _sound(signals.requested))
        growth = _sound(signals.arrival_trend) * _sound(spin_up)
        return cls(
            waiting=max(0.0, _sound(signals.waiting) - ignored),
            busy=_sound(signals.leased),
            due_soon=_sound(signals.due_soon),
            age=_sound(signals.oldest_age),
            rate=rate,
            since_lease=_sound(signals.since_lease),
            coming_rate=rate + min(growth, _MOST_GROWTH * rate),
            error=_sound(signals.arrival_error),
            arrival_variation=_sound(signals.arrival_variation),
            service_time=None if service_time is None or math.isnan(service_time) else _sound(service_time),
            service_variation=_sound(signals.service_variation),
            ready=ready,
            requested=requested,
            coming=(ready + requested) / 2 if signals.coming is None else _sound(signals.coming),
            spin_up=_sound(spin_up),
            every=max(PASS, _sound(every)),
            age_target=_sound(policy.age_target),
            confidence=min(_sound(policy.confidence), 1 - 1e-12),
        )

    @property
    def reaction(self) -> float:
        """How long it takes (s) until the workers work that the next pass asks for."""
        return self.spin_up + self.every

    def left(self, *, later: float = 0.0) -> float:
        """Return within which time (s) all that waits some time later is to be begun.

        All of it counts as old as the oldest. The spin-up time does not count: nothing can be done in it. Old
        items have a part of the target at least, or the time until more can work.
        """
        return time_left(self.age_target, self.age + later, self.spin_up, self.every)

    @property
    def deviations(self) -> float:
        """How many standard deviations the wished share of items is."""
        return deviations(self.confidence)

    @property
    def diffusion(self) -> float:
        """The variance of arrivals less begun items, per second."""
        return self.coming_rate * (self.arrival_variation + self.service_variation)

    @property
    def horizon(self) -> float:
        """How far the answer looks ahead (s)."""
        return self.spin_up + self.age_target

    @property
    def arrives(self) -> bool:
        """Whether it is likely enough that an item arrives within the time that the answer looks ahead.

        If a worker can be there in time after an item has come, it need not be there before.
        """
        likely = _RARE if self.reaction <= self.age_target else 1 - self.confidence
        return self.rate > 0 and self.rate * self.horizon >= likely


def deviations(share: float) -> float:
    """Return how many standard deviations above the mean such a share of chances lies, 0 or more."""
    share = min(share, 1 - 1e-12)
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0


def time_left(target: float, age: float, spin_up: float, every: float = PASS) -> float:
    """Return within which time (s) items of an age are to be begun.

    The spin-up time does not count: nothing could be done in it. What is older has a part of the target at
    least, but no more than the time in which workers can come twice.
    """
    least = min(_LEAST_TIME_LEFT * target, 2 * (spin_up + every))
    return max(target - max(0.0, age - spin_up), least)


def _sound(number: float) -> float:
    """Return a number that can be calculated with: finite, 0 or more."""
    return min(float(number), _MAXIMUM) if number > 0 else 0.0  # NaN is not more than 0


def _while_unknown(job: _Job) -> Answer:
    """Return the answer while no run has ended and no service time is given.

    One worker finds it out. As long as all are busy and the oldest item has waited longer than wished, twice
    as many: an item takes longer than was waited for. Never more than there are items; else never fewer than
    were asked for already.
    """
    items = math.ceil(job.waiting + job.busy + job.due_soon)
    wanted = max(1, math.ceil(job.requested), _for_late(job))
    workers = max(1, min(wanted, items))
    why = "no run has ended yet: the service time is not known"
    return Answer(workers=workers, for_backlog=workers, why=why)


def _for_late(job: _Job) -> int:
    """Return twice as many workers if all are busy and the oldest item is late, else 0."""
    is_late = job.age > job.age_target + job.spin_up and job.busy >= job.ready
    return math.ceil(2 * job.ready) if is_late else 0


def _for_rate(job: _Job, service_time: float) -> int:
    """Return how many workers keep the age target at the rate that is to come.

    The smaller of two numbers, each of which is enough. With the first, it is kept if they stay as they are
    for ever. With the second, they keep up with the rate, and it is kept until more of them can work.
    """
    if not job.arrives:
        return 0
    demand = Demand(
        rate=job.coming_rate,
        service_time=service_time,
        arrival_variation=job.arrival_variation,
        service_variation=job.service_variation,
    )
    always = fewest_workers(demand, wait=job.age_target, share=job.confidence)
    until = job.reaction
    moments = {_worst(job, until), min(service_time, until), until}
    stable = _ceil(_RESERVE * demand.load - min(_LOAD_ERROR * demand.load, _MOST_LOAD_ERROR))
    meanwhile = [_to_keep(job, service_time, 0.0, job.age_target, at) for at in moments]
    enough = min(always, max(stable, *meanwhile))
    if until > job.age_target:  # the backlog will show it too late: more may come than was measured
        less = -_RATE_ERROR * job.coming_rate * until
        surely = replace(demand, rate=demand.rate + job.deviations * job.error)
        enough = max(
            enough,
            min(
                fewest_workers(surely, wait=job.age_target, share=job.confidence),
                _to_keep(job, service_time, less, 0.0, until),
            ),
        )
    return max(1, enough)


def _for_backlog(job: _Job, service_time: float, for_forecast: int) -> int:
    """Return how many workers begin all that waits in the time that is left, and keep up until more can work.

    If the spin-up is longer than the target, more than have been asked for come too late for what waits now:
    then only the forecast asks for them.
    """
    if job.waiting <= 0:
        return 0
    needed = max(_to_keep(job, service_time, job.waiting, job.left(), at) for at in (0.0, job.reaction))
    if job.spin_up <= job.age_target:
        return needed
    return min(needed, max(1, for_forecast, _ceil(job.requested)))


def _to_keep(job: _Job, service_time: float, waiting: float, left: float, at: float) -> int:
    """Return how many workers begin, within a time that is left, what will wait some time from now.

    What waits now and what arrives until then, more of it than is likely: as many standard deviations as the
    wished share of items has.
    """
    items = waiting
    if job.arrives:
        items += job.coming_rate * at + job.deviations * math.sqrt(job.diffusion * at)
    return _to_begin(items, left + at, service_time, busy=job.busy)


def _items(job: _Job) -> int:
    """Return how many items there can be when workers can work that the next pass asks for.

    That is as many workers as can be busy then.
    """
    items = job.busy + job.waiting + job.due_soon
    if job.arrives:
        more = job.coming_rate * job.reaction
        items += max(1.0, more + job.deviations * math.sqrt(more * job.arrival_variation))
    return _ceil(items)


def _worst(job: _Job, until: float) -> float:
    """Return after which time (s) chance asks for most workers, if nothing waits now.

    In a time h, r x h + z x sqrt(d x h) items arrive, and are to be begun within target + h.
    """
    chance = job.deviations * math.sqrt(job.diffusion)
    if chance <= 0:
        return until
    sure = job.coming_rate * job.age_target
    root = (sure + math.sqrt(sure * sure + chance * chance * job.age_target)) / chance
    return min(until, root * root)


def _for_forecast(job: _Job, service_time: float) -> int:
    """Return how many workers begin what will wait once they can work, in the time that is left then.

    That is not shorter than the time until the next pass.
    """
    waiting = _forecast(job, service_time)
    return _to_begin(
        waiting, max(job.left(later=job.spin_up), job.every), service_time, busy=max(job.busy, job.requested)
    )


def _forecast(job: _Job, service_time: float) -> float:
    """Return how many items will wait when workers that are asked for now can work, 0 or more.

    The workers that are coming count for half of the time. Items that become due count with what the rate
    does not explain: retries are part of the rate already.
    """
    arriving = (job.rate + job.coming_rate) / 2 * job.spin_up if job.arrives else 0.0
    if job.arrives and job.reaction > job.age_target:
        arriving += job.deviations * math.sqrt(job.diffusion * job.spin_up)
    due = max(0.0, job.due_soon - job.rate * job.reaction)
    begun = _begun(job.coming, job.spin_up, service_time, busy=job.busy)
    return max(0.0, job.waiting + arriving + due - begun)


def _begun(workers: float, within: float, service_time: float, *, busy: float) -> float:
    """Return how many items workers can begin within a time, of whom some are busy at its start.

    A busy worker becomes free after a part of the service time that is not known; each moment is equally
    likely. A free one begins an item at once.
    """
    if service_time <= 0:
        return math.inf if workers > 0 else 0.0
    rounds = within / service_time
    busy = min(busy, workers)
    return busy * rounds + (workers - busy) * max(1.0, rounds)


def _to_begin(items: float, within: float, service_time: float, *, busy: float) -> int:
    """Return the fewest workers that begin so many items within a time: the inverse of `_begun`.

    It is never more than the busy workers and one more for each item, however little time there is.
    """
    if items <= 0:
        return 0
    if within >= service_time:
        return max(1, _ceil(items * service_time / within)) if within > 0 else 1
    rounds = within / service_time
    if items <= busy * rounds:
        return max(1, _ceil(items / rounds))
    return max(1, _ceil(busy + items - busy * rounds))


def _ceil(number: float) -> int:
    return math.ceil(number * (1 - _ROUNDING))
