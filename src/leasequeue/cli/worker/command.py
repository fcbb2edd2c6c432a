"""The command `leasequeue worker`: its options and its exit code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.options import choice_option, duration_option, number_option, size_option
from leasequeue.cli.worker.settings import (
    LOG_FORMATS,
    LOG_LEVELS,
    LogFormat,
    LogLevel,
    WorkerSettings,
    set_up_logs,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: The minimum of --exit-on-unhealthy, in seconds.
MIN_UNHEALTHY = 0.1
#: The highest port.
LAST_PORT = 65535

#: The argument and some of the options.
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:WORKER",
        help="Tasks, a worker, or a function that returns one: module:tasks, path/to/file.py:worker.",
        show_default=False,
    ),
]
Concurrency = Annotated[
    int | None,
    number_option("How many runs at once; by default as the program says.", minimum=1, maximum=10_000),
]
HandlerProcesses = Annotated[
    int | None,
    number_option(
        'How many processes run handlers with run_in="process", in each worker process; by default as the '
        "program says, or one for each core, of which each worker process has its share.",
        minimum=1,
        maximum=1000,
    ),
]
Grace = Annotated[
    float | None,
    duration_option("How long to wait for runs when it stops; by default as the program says."),
]
MaxRuns = Annotated[
    int | None,
    number_option("Replace a process after so many runs, when those that run have ended.", minimum=1),
]
MaxMemory = Annotated[
    int | None,
    size_option("Replace a process in the same way when it uses more memory than this: 500M, 2G."),
]
HealthPort = Annotated[
    int | None,
    number_option(
        "Answer /live, /ready and /metrics at this port; of several processes, the next ones count up.",
        minimum=1,
        maximum=LAST_PORT,
    ),
]
HealthHost = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where --health-port listens; 0.0.0.0: at all addresses.")
]
LogRuns = Annotated[bool, typer.Option("--log-runs", help="Log a line for each run that has returned.")]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Its name in `leasequeue workers`; with --processes, NAME-1, NAME-2 and so on. By default as "
        "the program says, or HOST/PID.",
    ),
]


def _refuse_url(url: str | None) -> None:
    if url is not None:
        raise typer.BadParameter(
            'the program names the server: `TaskQueue.from_url(os.environ["LEASEQUEUE_URL"], "emails")` '
            "reads it from the environment"
        )


#: The option --url, which other commands have.
NoUrl = Annotated[str | None, typer.Option("--url", hidden=True, callback=_refuse_url)]

#: The options --check and --lifespan.
Check = Annotated[
    bool,
    typer.Option(
        "--check", help="Import it, ask the server, print the handlers; run nothing, the lifespan neither."
    ),
]
Lifespan = Annotated[
    bool,
    typer.Option(
        "--lifespan",
        help="With --check: start and end its lifespan, and check that it provides the parameters.",
    ),
]


def worker(  # noqa: PLR0913 - each is an option
    target: Target,
    *,
    name: Name = None,
    concurrency: Concurrency = None,
    handler_processes: HandlerProcesses = None,
    grace: Grace = None,
    processes: Annotated[
        int,
        number_option("How many worker processes; one that dies is restarted.", minimum=1, maximum=1000),
    ] = 1,
    max_runs: MaxRuns = None,
    max_memory: MaxMemory = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a .py file changes. For development.")
    ] = False,
    exit_on_unhealthy: Annotated[
        float | None,
        duration_option(
            "Stop with exit code 4 when the worker has been unhealthy for this time, "
            "unless only as the server has reached its maxmemory."
        ),
    ] = None,
    check: Check = False,
    lifespan: Lifespan = False,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    log_runs: LogRuns = False,
    log_format: Annotated[
        LogFormat, choice_option("Text, or one JSON object per line.", LOG_FORMATS)
    ] = "text",
    log_level: Annotated[LogLevel, choice_option("The lowest level to log.", LOG_LEVELS)] = "info",
    _url: NoUrl = None,
) -> None:
    """Run a worker until it is stopped.

    On SIGTERM or Ctrl-C the worker leases no more items and waits up to the grace time for
    its runs. A second signal interrupts the runs, a third ends the process.
    Interrupted items return to the front of their queue.

    Exit codes: 0 all runs ended, 1 a crash, 2 wrong usage or a worker that cannot be imported or configured,
    3 runs were interrupted and their items released, outcomes could not be sent, or the lifespan did not end
    in time, 4 unhealthy (see --exit-on-unhealthy), 5 the server refuses the login, the database, the
    certificate or a command (with --check: or cannot be reached).
    """
    given = locals()
    _check_options(exit_on_unhealthy, check=check, lifespan=lifespan)
    _check_ports(health_port, processes)
    settings = WorkerSettings(**{one: given[one] for one in WorkerSettings.__dataclass_fields__})
    raise typer.Exit(_run(settings, reload=reload, check=check))


def _check_options(exit_on_unhealthy: float | None, *, check: bool, lifespan: bool) -> None:
    if exit_on_unhealthy is not None and exit_on_unhealthy < MIN_UNHEALTHY:
        raise typer.BadParameter(f"must be at least {MIN_UNHEALTHY:g} s", param_hint="--exit-on-unhealthy")
    if lifespan and not check:
        raise typer.BadParameter("needs --check", param_hint="--lifespan")


def _check_ports(first: int | None, processes: int) -> None:
    if first is not None and first + processes - 1 > LAST_PORT:
        raise typer.BadParameter(f"{processes} processes need as many ports", param_hint="--health-port")


def _run(settings: WorkerSettings, *, reload: bool, check: bool) -> int:
    # Each branch imports only what it needs.
    if check:
        from leasequeue.cli.worker.process import check as check_worker

        return check_worker(settings)
    replaces = settings.max_runs is not None or settings.max_memory is not None
    if reload or settings.processes > 1 or replaces:
        return _supervise(settings, reload=reload)
    from leasequeue.cli.worker.process import work

    return work(settings)


def _supervise(settings: WorkerSettings, *, reload: bool) -> int:
    from leasequeue.cli.worker.supervisor import Supervisor

    set_up_logs(settings.log_format, settings.log_level)

    async def run() -> int:
        return await Supervisor(settings, changes=changes_of(settings.target) if reload else None).run()

    return asyncio.run(run())


def changes_of(target: str) -> AsyncIterator[str]:
    """Yield a file whenever the code of a target has changed."""
    from watchfiles import PythonFilter, awatch

    from leasequeue.cli.worker.target import folder_of

    batches = awatch(folder_of(target), watch_filter=PythonFilter(), raise_interrupt=False)
    return (min(path for _, path in batch) async for batch in batches)
