"""What is known and what is wished: the values that the autoscaler's functions take.

A **worker** is what runs one item at a time. A **unit** is what a back end starts and stops: a process, a
pod or a machine, with a number of workers in it. A **job** is the work of one queue. A **deployment** is what
does the work of one or several jobs; it has one or several **tiers** of units, for instance steady and
pre-emptible machines.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the types when it runs
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Signals:
    """What is known of one job at one moment."""

    #: Items that wait, those included that became due and those that a dead worker has left.
    waiting: int = 0
    #: Items that live workers hold.
    leased: int = 0
    #: How many of the waiting ones have been left: their lease expired, or their worker is dead.
    abandoned: int = 0
    #: Items that become due before the units can work that the next pass asks for.
    due_soon: int = 0
    #: For how long the oldest waiting item has waited (s).
    oldest_age: float = 0.0
    #: Items per second that come to wait, smoothed, and by how much that changes each second.
    arrival_rate: float = 0.0
    arrival_trend: float = 0.0
    #: The standard error of the rate (items per second): how wrong it may be by chance.
    arrival_error: float = 0.0
    #: The squared coefficient of variation of the times between arrivals; 1: at random.
    arrival_variation: float = 1.0
    #: Items per second that workers have begun lately.
    lease_rate: float = 0.0
    #: For how long they have begun none (s), as far as is known.
    since_lease: float = 0.0
    #: How long a worker takes for one item (s), the mean; None: not known yet.
    service_time: float | None = None
    #: Its squared coefficient of variation; 0: always the same, 1: exponential.
    service_variation: float = 1.0
    #: Workers that can work now.
    ready: int = 0
    #: Workers that have been asked for, those that are ready included.
    requested: int = 0
    #: The workers that work until those that are asked for now are ready, on average: one that is halfway
    #: through its spin-up counts half. `plan` sets it; None: not known.
    coming: float | None = None
    #: How many items of other jobs one item adds on average, as measured, by the names of these jobs.
    children: Mapping[str, float] = field(default_factory=dict)
    #: How many items may be leased at once; 0: the queue is paused; None: any number.
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class JobPolicy:
    """What is wished for one job."""

    #: How long an item may wait until its run begins (s).
    age_target: float = 60.0
    #: How long one item takes (s); None: measured.
    service_time: float | None = None
    #: The share of items that wait no longer than the age target, when items arrive at random.
    confidence: float = 0.99
    #: Whether items are left out that are leased, and that no live worker holds.
    ignore_abandoned: bool = False
    #: How many items of other jobs one item adds on average, by the names of these jobs; None: measured.
    children: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TierPolicy:
    """What is wished for one tier. Units, not workers."""

    name: str
    min_units: int = 0
    max_units: int = 10
    workers_per_unit: int = 1
    #: From the request of a unit until it works (s); after twice the time it counts as not delivered.
    spin_up: float = 30.0
    #: Whether the platform may take a unit away at any time.
    preemptible: bool = False
    #: For how long (s) fewer must have been enough before fewer are asked for.
    slow_down: float = 300.0
    #: For how long (s) more must have been needed before more are asked for.
    slow_up: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DeploymentPolicy:
    """What is wished for one deployment."""

    name: str
    #: The names of its jobs. Their workers are shared: one unit works on all of them.
    jobs: tuple[str, ...]
    #: Filled in this order.
    tiers: tuple[TierPolicy, ...]
    #: The share of the wanted workers (0 to 1) that is on tiers that are not pre-emptible, if they have room.
    steady_share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What is wished for all."""

    jobs: Mapping[str, JobPolicy]
    deployments: Mapping[str, DeploymentPolicy]
    #: The time between two passes (s).
    every: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How many workers one job needs, and why. The largest of the parts, at least 0."""

    workers: int
    #: What arrives in the long run, with the age target kept in the wished share of cases.
    for_rate: int = 0
    #: What waits now, begun within the age target.
    for_backlog: int = 0
    #: What will wait when workers that are asked for now are ready.
    for_forecast: int = 0
    #: One line for people: which part decided, with its figures.
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class TierUnits:
    """The units of one tier, as its back end says. None: the back end could not say."""

    ready: int | None
    requested: int | None


@dataclass(frozen=True, kw_only=True)
class TierReport:
    """What one pass wanted of one tier, and what became of it. Units; None: the back end could not say."""

    deployment: str
    tier: str
    ready: int | None
    #: What was asked for before this pass.
    requested: int | None
    wanted: int
    why: str = ""
    #: Whether the back end has taken the request; False in a dry run.
    asked: bool = False

    @property
    def is_change(self) -> bool:
        """Whether another number is wanted than was asked for before, as far as that is known."""
        return self.requested is not None and self.wanted != self.requested


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """What one pass saw of one job, and what it answered."""

    job: str
    signals: Signals
    answer: Answer
    #: Its share of the deployment's ready workers; the shares of a deployment add up.
    share: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of one pass: what to ask for, and the memory for the next pass."""

    jobs: tuple[JobReport, ...]
    tiers: tuple[TierReport, ...]
    #: What the next pass is to be given: JSON values only.
    memory: Mapping[str, object]
