"""`leasehold pipeline`: the jobs of `leasehold.spark.jobs` as commands."""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from leasehold.cli.formatting import print_facts, print_json
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, Url, fail, run_blocking_command
from leasehold.errors import ExtraMissing

try:
    from leasehold.spark.jobs import JOBS, job_of
    from leasehold.spark.jobs.command import JobFailed, arguments, carry_out, exit_code
    from leasehold.spark.jobs.html_page import duration
    from leasehold.spark.jobs.session import tasks
except ExtraMissing as missing:
    raise typer.Exit(fail(str(missing), Code.USAGE)) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.spark.jobs.command import Argument, Job

app = typer.Typer(
    help="Load, archive, analyse, redrive and backfill queues with Spark.",
    no_args_is_help=True,
    add_completion=False,
)

#: Seconds between two updates of the progress.
_INTERVAL = 0.2


def _command(job: Job) -> Callable[..., None]:
    """Return a function that runs a job, with the signature that typer reads."""

    def run(**given: Any) -> None:
        as_json = given.pop("as_json")
        run_blocking_command(lambda: _run(job, given, as_json=as_json))

    parameters = [_parameter(argument) for argument in arguments(job)]
    parameters.append(_keyword("as_json", AsJson, default=False))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect says
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # Its return value and exceptions are for programs.
    text = inspect.cleandoc(job.__doc__ or "").partition("\n\nReturns:")[0]
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return run


def _parameter(argument: Argument) -> inspect.Parameter:
    if argument.name == "url":
        return _keyword("url", Url, default=DEFAULT_URL)
    kind: Any = Literal[argument.choices] if argument.choices else argument.kind
    kind = list[kind] if argument.many else kind
    if not argument.option:
        shown = typer.Argument(metavar=argument.name.upper(), help=argument.help)
        return inspect.Parameter(
            argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Annotated[kind, shown]
        )
    flag = f"--{argument.name.replace('_', '-')}"
    if argument.default is None:
        kind |= None
    option = Annotated[kind, typer.Option(flag, help=argument.help)]
    return _keyword(argument.name, option, default=argument.default)


def _keyword(name: str, kind: Any, *, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _run(job: Job, given: dict[str, Any], *, as_json: bool) -> Code:
    try:
        with _progress() as show_step:
            report = carry_out(job, given, show_step)
    except JobFailed as error:
        return fail(str(error), Code(exit_code(error)))
    if as_json:
        print_json(report)
    else:
        print_facts(facts(report))
    return Code.MISSED if report.get("stayed") else Code.DONE


def facts(report: dict[str, Any]) -> dict[str, Any]:
    """Return the names and values of a report to print. A state and a total may have the same name."""
    totals = {name.replace("_", " "): _shown(name, value) for name, value in report.items() if name != "now"}
    return totals | {f"{state} at the end": count for state, count in report.get("now", {}).items()}


def _shown(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:,.1f}" if name == "per_second" else duration(value)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show the progress on a terminal while the block runs; elsewhere print a line for each step."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"leasehold: {escape(text)}")
        return
    over, step = threading.Event(), ""

    def report(text: str) -> None:
        nonlocal step
        step = text

    with console.status("") as status:

        def update() -> None:
            while not over.wait(_INTERVAL):
                done, total = tasks()
                status.update(escape(step) + f" [dim]{done:,} of {total:,} tasks[/dim]" * bool(total))

        updating = threading.Thread(target=update, name="progress", daemon=True)
        updating.start()
        try:
            yield report
        finally:
            over.set()
            updating.join()


for _name in JOBS:
    app.command(_name)(_command(job_of(_name)))
