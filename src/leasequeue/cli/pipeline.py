"""`leasequeue pipeline`: the jobs of `leasequeue.spark.jobs` as commands, also for `spark-submit`."""

from __future__ import annotations

import importlib
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from leasequeue import errors
from leasequeue.cli.formatting import print_facts, print_json
from leasequeue.cli.options import choice_option, number_option
from leasequeue.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    codec_place,
    fail,
    group_of,
    run_blocking_command,
)
from leasequeue.durations import duration_text
from leasequeue.errors import InvalidArgument, ServerError
from leasequeue.errors.describing import TEXT_LENGTH, plain
from leasequeue.wire.urls import holds_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasequeue.spark.jobs.session import SparkFailed

app = group_of(help="Load, archive, analyse, redrive and backfill queues with Spark.")

#: What a source may be, and the variables of the server's URL: as in `leasequeue.spark`, which is imported
#: when a job runs, so that the help needs no Spark.
FORMATS = ("csv", "json", "parquet", "table")
URL_VARIABLES = ("LEASEQUEUE_URL", "REDIS_URL")
#: The options of the data source that have one here.
_OPTIONS = {"idColumn": "--id", "idFrom": "--id-from", "dataColumn": "--data"}
_SPARK_OPTION = re.compile(rf"\b({'|'.join(_OPTIONS)})\b")
#: The jobs that write payloads or read them; the others use none.
_WITH_CODEC = ("load", "redrive", "backfill")
#: Updates of the progress per second.
_REFRESH_RATE = 5


def _without_password(context: typer.Context, url: str) -> str:
    source = context.get_parameter_source("url")
    under_spark_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    if under_spark_submit and holds_login(url) and source is not None and source.name == "COMMANDLINE":
        # The message leaves out the URL itself.
        raise typer.BadParameter(
            f"spark-submit logs its arguments: set {' or '.join(URL_VARIABLES)} to a URL with a password"
        )
    return url


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A file, a folder, a pattern such as data/*.csv, or the name of a table."
    ),
]
SourceFormat = Annotated[
    str | None,
    choice_option(
        "What the source is: files (CSV with a header, JSON with an object per line) or a table. "
        "By default the ending of its name (.csv, .json, .jsonl), or else parquet.",
        FORMATS,
        "--format",
    ),
]
Id = Annotated[str | None, typer.Option("--id", help="The column of the id; by default `id`.")]
IdFrom = Annotated[
    str | None,
    typer.Option("--id-from", help="Instead: columns whose content is hashed to make the id, with commas."),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="The column of the data; by default `data`, else the row as JSON."),
]
ReaderOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="An option of Spark's reader, such as sep=; - may be repeated."),
]
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar=[*URL_VARIABLES], metavar="URL", help="The server's URL.", callback=_without_password
    ),
]
Cluster = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="The URL names nodes of a cluster, HOST:PORT,HOST:PORT; the queue's name has a hash tag.",
    ),
]


@app.command()
def load(  # noqa: PLR0913 - each is an option
    queue: QueueName,
    source: Source,
    *,
    format: SourceFormat = None,  # noqa: A002 - the option's name
    id: Id = None,  # noqa: A002 - as above
    id_from: IdFrom = None,
    data: Data = None,
    option: ReaderOption = None,
    url: Url = DEFAULT_URL,
    cluster: Cluster = False,
    as_json: AsJson = False,
) -> None:
    """Add the rows of a table to a queue, except those whose id is already there."""
    _run("load", **locals())


@app.command()
def archive(
    queue: QueueName,
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="The folder of the archive, on any file system of Spark.")
    ],
    *,
    checkpoint: Annotated[
        str | None, typer.Option(help="The folder for the position of the run; by default in the archive.")
    ] = None,
    batch: Annotated[int, number_option("The maximum of events of one batch.")] = 100_000,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Continue if events were dropped before they were archived.")
    ] = False,
    url: Url = DEFAULT_URL,
    cluster: Cluster = False,
    as_json: AsJson = False,
) -> None:
    """Write the kept events of a queue that an archive does not have yet into the archive.

    The archive is Parquet, with a folder for each batch and, in it, one for each date in UTC. It reads as one
    table. Each event is in it once, also after crashes.
    """
    _run("archive", **locals())


@app.command()
def report(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The folder of the report.")],
    *,
    events: Annotated[str | None, typer.Option(help="An archive of events.")] = None,
    queue: Annotated[
        str | None, typer.Option(help="Instead: a queue, whose kept events are read now.")
    ] = None,
    url: Url = DEFAULT_URL,
    cluster: Cluster = False,
    as_json: AsJson = False,
) -> None:
    """Report on a queue: throughput, waits, service times, failures, errors, workers, hours, slowest items.

    The queue wait is the time from when an item began to wait (added, due, expired, released, failed,
    requeued) until it was leased; the service time is that from a lease until its completion.

    Writes tables as Parquet, with times in seconds, and a self-contained page `report.html`.
    """
    _run("report", **locals())


@app.command()
def redrive(
    queue: QueueName,
    *,
    where: Annotated[
        str | None,
        typer.Option(
            help="A condition in SQL over id, data (as text), size, attempt, token, age (seconds) and error."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the dead letters.")] = False,
    url: Url = DEFAULT_URL,
    cluster: Cluster = False,
    as_json: AsJson = False,
) -> None:
    """Requeue dead letters at the end of the queue: those that match a condition, or all.

    A dead letter whose id has been added again since it died stays, and the new item is left alone.
    """
    _run("redrive", **locals())


@app.command()
def backfill(  # noqa: PLR0913 - as above
    queue: QueueName,
    source: Source,
    *,
    rate: Annotated[float, number_option("How many items fall due per second.", whole=False)],
    start: Annotated[
        str | None,
        typer.Option(help="When the first item falls due, such as 2030-01-31T09:00Z; by default now."),
    ] = None,
    order_by: Annotated[
        str | None, typer.Option(help="The column to order the rows by; by default the table's order.")
    ] = None,
    format: SourceFormat = None,  # noqa: A002 - the option's name
    id: Id = None,  # noqa: A002 - as above
    id_from: IdFrom = None,
    data: Data = None,
    option: ReaderOption = None,
    url: Url = DEFAULT_URL,
    cluster: Cluster = False,
    as_json: AsJson = False,
) -> None:
    """Add the rows of a table to a queue so that they fall due at a given rate.

    All items are added at once, as scheduled items: the server holds them until they are completed, and the
    job need not run while they fall due. Items that are already in the queue stay as they are.
    """
    _run("backfill", **locals())


def _run(name: str, *, as_json: bool, **given: Any) -> None:
    if name in _WITH_CODEC:
        given["codec"] = codec_place()

    def work() -> Code:
        # Here, so that the help needs no Spark.
        session = importlib.import_module("leasequeue.spark.jobs.session")
        job = getattr(importlib.import_module(f"leasequeue.spark.jobs.{name}"), name)
        try:
            with _progress(session.task_counts) as progress:
                report = session.run_job(job, given, progress)
        except InvalidArgument as error:
            error.argument, error.allowed = map(_with_our_options, (error.argument, error.allowed))
            raise
        except session.SparkFailed as error:
            return fail(_with_our_options(str(error)), exit_code(error))
        if as_json:
            print_json(report)
        else:
            print_facts(facts(report))
        return Code.MISSED if report.get("stayed") else Code.DONE

    run_blocking_command(work)


def _with_our_options(problem: str) -> str:
    """Return an error with the options of the command line in place of those of the data source."""
    return _SPARK_OPTION.sub(lambda match: _OPTIONS[match[0]], problem)


def exit_code(error: SparkFailed) -> Code:
    """Return the exit code of a job that failed: that of the Leasequeue error that ended it, else 1."""
    kind = getattr(errors, error.kind, None)
    if not isinstance(kind, type):
        return Code.MISSED
    if issubclass(kind, ServerError):
        return Code.SERVER
    return Code.USAGE if issubclass(kind, InvalidArgument) else Code.MISSED


def facts(report: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed of a report; a state and a total may have the same name."""
    shown = {name.replace("_", " "): _shown(name, value) for name, value in report.items() if name != "now"}
    return shown | {f"{state} at the end": count for state, count in report.get("now", {}).items()}


def _shown(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    if name == "failure_share":
        return f"{value:.1%}"
    return f"{value:,.1f}" if name == "per_second" else duration_text(value)


@contextmanager
def _progress(task_counts: Callable[[], tuple[int, int]]) -> Iterator[Callable[[str], None]]:
    """Show the progress of a block on a terminal; print it in lines elsewhere."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"leasequeue: {escape(plain(text, TEXT_LENGTH))}")
        return
    step = _Step(task_counts)
    with console.status(step, refresh_per_second=_REFRESH_RATE):
        yield step.begin


class _Step:
    """The step that runs, and how many of its tasks are done whenever the status line is drawn."""

    def __init__(self, task_counts: Callable[[], tuple[int, int]]) -> None:
        self._task_counts = task_counts
        self._text = ""

    def begin(self, text: str) -> None:
        self._text = text

    def __rich__(self) -> Text:
        done, total = self._task_counts()
        return Text(plain(self._text)).append(f" {done:,} of {total:,} tasks" * bool(total), "dim")


if __name__ == "__main__":
    app()
