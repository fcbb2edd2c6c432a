"""What `leasequeue autoscale` prints: tables, and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from leasequeue.cli.formatting import print_rows
from leasequeue.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.autoscale import Config, Estimate
    from leasequeue.autoscale.report import PassReport


def print_config(config: Config, *, as_json: bool) -> None:
    """Print the tiers of a configuration."""
    print_rows(
        [
            {
                "deployment": name,
                "tier": tier,
                "backend": one.backend,
                "units": f"{one.policy.min_units:,} to {one.policy.max_units:,}",
                "workers": one.policy.workers_per_unit,
                "jobs": ", ".join(deployment.policy.jobs),
            }
            for name, deployment in config.deployments.items()
            for tier, one in deployment.tiers.items()
        ],
        as_json=as_json,
    )


def print_report(report: PassReport, *, as_json: bool) -> None:
    """Print what a pass saw of the jobs, and what it wants of the tiers."""
    if as_json:
        typer.echo(report.to_json().decode())
        return
    print_rows(
        [
            {
                "job": one.job,
                "waiting": one.signals.waiting,
                "leased": one.signals.leased,
                "oldest": duration(one.signals.oldest_age),
                "arrive/s": f"{one.signals.arrival_rate:.3g}",
                "takes": duration(one.signals.service_time),
                "workers": one.answer.workers,
                "why": one.answer.why,
            }
            for one in report.jobs
        ],
        as_json=False,
    )
    if report.jobs and report.tiers:
        typer.echo()
    print_rows(
        [
            {
                "tier": f"{one.deployment}/{one.tier}",
                "ready": one.ready,
                "requested": one.requested,
                "wanted": one.wanted,
                "why": one.why,
            }
            for one in report.tiers
        ],
        as_json=False,
    )


def print_estimate(rows: Iterable[Estimate], *, backlog: int, as_json: bool) -> None:
    """Print a row for each number of workers."""
    print_rows(
        [_finite(asdict(row)) if as_json else _estimate_row(row, backlog=backlog) for row in rows],
        as_json=as_json,
    )


def _estimate_row(row: Estimate, *, backlog: int) -> dict[str, Any]:
    grows = row.utilisation >= 1
    shown = {
        "workers": row.workers,
        "busy": "too few" if grows else f"{row.utilisation:.0%}",
        "mean wait": duration(row.mean_wait),
        "p99 wait": duration(row.p99_wait),
        "in time": _percent(row.within),
    }
    if backlog:
        shown["backlog gone after"] = duration(row.clear_in)
    return {**shown, "": "← the fewest" if row.fewest else ""}


def _percent(share: float) -> str:
    """Return a share in percent, rounded down, so that what is not always is not shown as 100 %."""
    if share >= 0.9999:
        return "over 99.99%"
    return (
        f"{math.floor(share * 10_000) / 100:.2f}%" if share >= 0.99 else f"{math.floor(share * 1000) / 10}%"
    )


def duration(seconds: float | None) -> str | None:
    """Return a duration for people: None if it is not known."""
    if seconds is None:
        return None
    return duration_text(seconds) if math.isfinite(seconds) else "without end"


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with null for what JSON does not have."""
    finite: dict[str, Any] = json.loads(json.dumps(values), parse_constant=lambda _: None)
    return finite
