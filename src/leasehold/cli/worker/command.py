"""The command itself: options in, exit code out."""

from __future__ import annotations

import asyncio
import enum
from typing import Annotated

import typer

from leasehold.cli.times import duration
from leasehold.cli.worker.logs import set_up_logs
from leasehold.cli.worker.settings import Settings

#: The least of --exit-on-unhealthy (s).
SHORTEST_PATIENCE = 0.1


class LogFormat(enum.StrEnum):
    """What log lines look like."""

    text = "text"
    json = "json"


class LogLevel(enum.StrEnum):
    """What is logged at least."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def worker(  # noqa: PLR0913 - each is an option
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER",
            help="Where the worker is, or a function that makes one: module:worker, path/to/file.py:worker.",
            show_default=False,
        ),
    ],
    *,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="How many runs at once; as the program says by default."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="How long runs may go on after a stop; as the program says by default.",
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, max=1000, help="How many worker processes; one that dies is started anew.")
    ] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a .py file changes. For development.")
    ] = False,
    exit_on_unhealthy: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="Stop, with exit code 4, when the worker has been unhealthy for so long.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Import the worker, ask the server, print a table, and run nothing."),
    ] = False,
    log_format: Annotated[
        LogFormat, typer.Option(help="Log lines for people, or one JSON object a line.")
    ] = LogFormat.text,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged at least.")] = LogLevel.info,
) -> None:
    """Run a worker: work on the items of queues until it is stopped.

    SIGTERM or Ctrl-C: no more work is taken, and runs may go on for the grace time.
    A second one cuts them off, a third ends the process.
    What is not done goes back to the front of its queue.

    Exit codes: 0 all runs came to their end, 2 wrong usage, 3 runs were cut off, 4 unhealthy, 1 a crash.
    """
    if exit_on_unhealthy is not None and exit_on_unhealthy < SHORTEST_PATIENCE:
        raise typer.BadParameter(f"at least {SHORTEST_PATIENCE:g} s", param_hint="--exit-on-unhealthy")
    settings = Settings(
        target=target,
        concurrency=concurrency,
        grace=grace,
        exit_on_unhealthy=exit_on_unhealthy,
        log_format=log_format.value,
        log_level=log_level.value,
    )
    raise typer.Exit(_run(settings, processes=processes, reload=reload, check=check))


def _run(settings: Settings, *, processes: int, reload: bool, check: bool) -> int:
    # Each way needs things that the others do without.
    if check:
        from leasehold.cli.worker.check import check as look

        return look(settings)
    if reload or processes > 1:
        return _supervise(settings, processes=processes, reload=reload)
    from leasehold.cli.worker.process import work

    return work(settings)


def _supervise(settings: Settings, *, processes: int, reload: bool) -> int:
    from leasehold.cli.worker.supervisor import Supervisor

    set_up_logs(settings.log_format, settings.log_level)

    async def run() -> int:
        changes = None
        if reload:
            from leasehold.cli.worker.reload import code_changes
            from leasehold.cli.worker.target import folder_of

            changes = code_changes(folder_of(settings.target))
        return await Supervisor(settings, processes=processes, changes=changes).run()

    return asyncio.run(run())
