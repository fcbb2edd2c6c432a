"""The report of one pass: what was seen, wanted, asked for and got, and why."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from leasequeue.autoscale.model import JobReport, TierReport  # noqa: TC001 - msgspec reads the types when it runs
from leasequeue.errors.describing import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

#: An event has at most so many bytes of JSON.
MAX_EVENT_BYTES = 1000


@dataclass(frozen=True, kw_only=True)
class PassError:
    """What went wrong in one part of a pass. The other parts were done."""

    #: As `job resize`, `tier media/spot` or `server`.
    part: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """What one pass saw, wanted, asked for and got."""

    #: Passes are counted over all copies and restarts; 0: none was finished.
    number: int = 0
    #: When it began, in seconds since 1970, by the clock of the autoscaler's server; 0: not known.
    at: float = 0.0
    #: How long it took (s).
    duration: float = 0.0
    #: The copy that made it: host, process id, and some characters that no other one has.
    copy: str = ""
    #: Whether this copy leads. If not, another one asks for units, and the pass did nothing.
    leads: bool = True
    #: Whether nothing was asked for, and nothing was kept.
    dry_run: bool = False
    #: Of each job its name, `signals` (what was seen), `answer` (`workers`, and `why`) and its `share` of the
    #: workers.
    jobs: tuple[JobReport, ...] = ()
    #: Of each tier its `deployment`, its name `tier`, and the units that are `ready`, were `requested` before
    #: and are `wanted`, with `why`; `asked`: whether the back end has taken the request.
    tiers: tuple[TierReport, ...] = ()
    #: The parts that failed: `part`, such as `tier media/spot`, and `problem`.
    errors: tuple[PassError, ...] = ()
    #: For how long the report had been kept when it was read (s).
    age: float = 0.0

    @property
    def changes(self) -> tuple[TierReport, ...]:
        """The tiers of which another number is wanted than was asked for before."""
        return tuple(tier for tier in self.tiers if tier.is_change)

    def to_json(self) -> bytes:
        """Return the report as one line of JSON; what is no finite number is null."""
        return msgspec.json.encode(asdict(self))

    def event(self) -> dict[str, Any]:
        """Return what an event can hold of it: at most 1,000 bytes of JSON."""
        counts = {"pass": self.number, "errors": len(self.errors)}
        tiers = {f"{one.deployment}/{one.tier}": one.wanted for one in self.tiers}
        changed = {f"{one.deployment}/{one.tier}": one.wanted for one in self.changes}
        problems = [f"{one.part}: {one.problem}"[:200] for one in self.errors[:2]]
        for event in (
            {**counts, "wanted": tiers, "problems": problems},
            {**counts, "wanted": tiers},
            {**counts, "changed": changed},
        ):
            if len(msgspec.json.encode(event)) <= MAX_EVENT_BYTES:
                return event
        return {**counts, "units": sum(tiers.values()), "changed": len(changed)}

    def lines(self) -> Iterable[str]:
        """Yield what is logged: a line for each change, and one for the pass."""
        verb = "would ask" if self.dry_run else "asked"
        for one in self.changes:
            done = verb if one.asked or self.dry_run else "could not ask"
            tier = f"{one.deployment}/{one.tier}"
            yield f"{done} {tier} for {counted(one.wanted, 'unit')}, before {one.requested}: {one.why}"
        waiting = sum(one.signals.waiting for one in self.jobs)
        wanted = sum(one.wanted for one in self.tiers)
        ready = sum(one.ready or 0 for one in self.tiers)
        yield (
            f"pass {self.number}: {counted(len(self.jobs), 'job')}, {counted(waiting, 'item')} waiting; "
            f"{counted(wanted, 'unit')} wanted, {ready} ready; "
            f"{counted(len(self.errors), 'error')}; {self.duration:.2f} s"
        )


@dataclass(frozen=True, kw_only=True)
class MetricValue:
    """One value for a metrics exporter: a gauge."""

    name: str
    unit: str
    description: str
    attributes: dict[str, str]
    value: float


_JOB, _DEPLOYMENT, _TIER = "leasequeue.job", "leasequeue.deployment", "leasequeue.tier"


def metric_values(report: PassReport) -> list[MetricValue]:
    """Return the values of a pass for a metrics exporter. What is not known has none."""
    found: list[MetricValue] = []

    def add(name: str, unit: str, description: str, value: float | None, **labels: str) -> None:
        if value is not None and math.isfinite(value):
            names = {"job": _JOB, "deployment": _DEPLOYMENT, "tier": _TIER}
            attributes = {names[key]: text for key, text in labels.items()}
            found.append(
                MetricValue(
                    name=f"leasequeue.autoscale.{name}",
                    unit=unit,
                    description=description,
                    attributes=attributes,
                    value=value,
                )
            )

    for tier in report.tiers:
        labels = {"deployment": tier.deployment, "tier": tier.tier}
        add("wanted", "{unit}", "Units that are wanted.", tier.wanted, **labels)
        add("requested", "{unit}", "Units that were asked for.", tier.requested, **labels)
        add("ready", "{unit}", "Units that work.", tier.ready, **labels)
    for job in report.jobs:
        add("workers", "{worker}", "Workers that a job needs.", job.answer.workers, job=job.job)
        add("waiting", "{item}", "Items that wait.", job.signals.waiting, job=job.job)
        add("oldest_age", "s", "Wait of the oldest item.", job.signals.oldest_age, job=job.job)
    add("pass.duration", "s", "How long the last pass took.", report.duration)
    add("errors", "{error}", "Parts of the last pass that failed.", len(report.errors))
    return found


def read_report(stored: object, *, age: float) -> PassReport | None:
    """Return a report from the JSON values in which it was kept; None: it cannot be read."""
    try:
        report = msgspec.convert(stored, PassReport)
    except (msgspec.ValidationError, RecursionError):
        return None
    return replace(report, age=max(0.0, age)) if report.number > 0 else None
