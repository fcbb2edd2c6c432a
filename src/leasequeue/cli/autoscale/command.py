"""`leasequeue autoscale`: run the autoscaler, and plan with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from leasequeue.autoscale import load_config
from leasequeue.cli.formatting import print_json, print_line, print_rows
from leasequeue.cli.options import duration_option, number_option
from leasequeue.cli.server import AsJson, Code, command, fail, note
from leasequeue.cli.worker.settings import set_up_logs
from leasequeue.durations import duration_text
from leasequeue.errors import InvalidConfig
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leasequeue.autoscale import Autoscaler, Config, Estimate
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
        print_json(json.loads(report.to_json()))
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
        print_line()
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
        [
            # null for what JSON does not have
            msgspec.json.decode(msgspec.json.encode(row)) if as_json else _estimate_row(row, backlog=backlog)
            for row in rows
        ],
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


#: The largest number of workers, and of items.
MAX_WORKERS, MAX_ITEMS = 1_000_000, 1_000_000_000
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(?:/(s|m|h|d))?", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}

log = Log("leasequeue.autoscale")


class RunByDefault(TyperGroup):
    """A group whose command `run` may be left out: a first argument that is no command is its FILE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `TyperGroup`."""
        if args and args[0] not in {*self.commands, "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunByDefault,
    help="Run as many workers as the work of queues needs; plan how many that will be.\n\n"
    "`leasequeue autoscale FILE` is short for `leasequeue autoscale run FILE`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration: autoscale.toml.")]


@app.command(
    epilog="Exit codes: 0 done, 1 a part of the pass has failed, 2 wrong usage or configuration, "
    "5 the server cannot be reached or refuses."
)
@command
async def run(
    file: File,
    *,
    once: Annotated[bool, typer.Option("--once", help="Make one pass, print its report, and end.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The same, but ask for nothing and change nothing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the configuration and its programs; print its tiers.")
    ] = False,
    as_json: AsJson = False,
) -> Code:
    """Run as many workers as the work of the queues needs, until SIGTERM or Ctrl-C.

    Any number of copies may run: one of them leads at a time. It ends after the pass that it
    makes; a second signal ends it at once. With --json each pass is a line.
    """
    try:
        config = load_config(file, programs=check)
    except InvalidConfig as error:
        return fail(str(error), Code.USAGE)
    if check:
        print_config(config, as_json=as_json)
        return Code.DONE
    if once or dry_run:
        return await _once(config, dry_run=dry_run, as_json=as_json)
    return await _run(config, as_json=as_json)


async def _once(config: Config, *, dry_run: bool, as_json: bool) -> Code:
    from leasequeue.autoscale import Autoscaler
    from leasequeue.autoscale.backends import leaving_units

    autoscaler = Autoscaler(leaving_units(config))
    with _errors_only():
        try:
            report = await autoscaler.once(dry_run=dry_run)
        finally:
            await autoscaler.close()
    print_report(report, as_json=as_json)
    if not report.leads and not report.errors:
        note("another copy makes a pass at this moment: nothing was asked for")
    code = Code.MISSED if report.errors else Code.DONE
    for error in dict.fromkeys(report.errors):
        code = fail(f"{error.part}: {error.problem}", Code.SERVER if error.part == "server" else code)
    return code


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """Log only errors of the program itself: what else is logged is in the report."""
    handler, logger = logging.StreamHandler(), logging.getLogger("leasequeue")
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def _run(config: Config, *, as_json: bool) -> Code:
    from leasequeue.autoscale import Autoscaler
    from leasequeue.cli.autoscale.http import ReportServer

    set_up_logs("json" if as_json else "text", "info")
    # The client of Kubernetes logs each request.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    autoscaler = Autoscaler(config)
    server = None if config.http is None else ReportServer(config, autoscaler.last_report)

    def show(report: PassReport) -> None:
        if as_json:
            print_report(report, as_json=True)
        if server is not None:
            server.show(report)

    reading = None if server is None else asyncio.create_task(server.run())
    try:
        _stop_on_signals(autoscaler, asyncio.current_task())
        if server is not None:
            server.start()
        await autoscaler.run(on_report=show)
        await autoscaler.close()
    except asyncio.CancelledError:
        log.warning("interrupted; what runs continues")
    finally:
        if server is not None and reading is not None:
            server.close()
            reading.cancel()
            await asyncio.wait([reading])
    return Code.DONE


def _stop_on_signals(autoscaler: Autoscaler, command: asyncio.Task[Code] | None) -> None:
    """Stop after the pass at the first signal, and at once at the second one."""
    received: list[int] = []

    def stop(number: int) -> None:
        log.info("%s: %s", signal.Signals(number).name, "stopping at once" if received else "stopping")
        if received and command is not None:
            command.cancel()
        received.append(number)
        autoscaler.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


# -------------------------------------------------------------------------- estimate


def _parse_rate(text: object) -> float:
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a rate; write 50/s, 100/m, 5000/h or 20000/d")
    return float(match[1]) / _SECONDS[match[2]]


@app.command()
@command
async def estimate(  # noqa: PLR0913 - each is an option of the command
    *,
    rate: Annotated[
        float,
        typer.Option(
            parser=_parse_rate, metavar="RATE", help="Items that arrive in a time: 50/s, 100/m, 5000/h."
        ),
    ],
    service_time: Annotated[float, duration_option("How long a worker takes for one item.")],
    age_target: Annotated[float, duration_option("How long an item may wait until its run begins.")] = 60.0,
    confidence: Annotated[
        float,
        number_option("The share of items that wait no longer.", minimum=0.5, maximum=0.9999, whole=False),
    ] = 0.99,
    arrival_variation: Annotated[
        float,
        number_option(
            "The squared coefficient of variation of the times between arrivals; 1: at random.",
            minimum=0,
            maximum=10_000,
            whole=False,
        ),
    ] = 1.0,
    service_variation: Annotated[
        float,
        number_option(
            "That of the service times; 0: always the same, 1: exponential.",
            minimum=0,
            maximum=10_000,
            whole=False,
        ),
    ] = 1.0,
    backlog: Annotated[int, number_option("Items that wait already.", minimum=0, maximum=MAX_ITEMS)] = 0,
    spin_up: Annotated[
        float, duration_option("With --backlog: from the request of a worker until it works.")
    ] = 30.0,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N", help="A number of workers to look at; repeat it for more. By default some."
        ),
    ] = None,
    as_json: AsJson = False,
) -> Code:
    """Print how many workers a rate of items needs, and how long items wait. Asks no server."""
    from leasequeue.autoscale import estimate as estimated

    rows = estimated(
        rate=rate,
        service_time=service_time,
        age_target=age_target,
        confidence=confidence,
        arrival_variation=arrival_variation,
        service_variation=service_variation,
        backlog=backlog,
        spin_up=spin_up,
        workers=[*map(_parse_workers, workers or [])],
    )
    print_estimate(rows, backlog=backlog, as_json=as_json)
    return Code.DONE


def _parse_workers(text: str) -> int:
    if not re.fullmatch(r"\d{1,7}", text, re.ASCII) or not 1 <= int(text) <= MAX_WORKERS:
        problem = f"{text!r} is not a whole number from 1 to {MAX_WORKERS:,}"
        raise typer.BadParameter(problem, param_hint="--workers")
    return int(text)
