"""`leasehold pipeline`: the jobs of `leasehold.spark.jobs`, from the terminal."""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from leasehold.cli.formatting import print_facts, print_json
from leasehold.cli.server import DEFAULT_URL, AsJson, Code, Url, complain, end
from leasehold.errors import ExtraMissing

try:
    from leasehold.spark.jobs import JOBS, job_of
    from leasehold.spark.jobs.command import JobFailed, arguments, carry_out, exit_code
    from leasehold.spark.jobs.page import duration
    from leasehold.spark.jobs.session import tasks
except ExtraMissing as missing:
    raise typer.Exit(complain(str(missing), Code.USAGE)) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leasehold.spark.jobs.command import Argument, Job

app = typer.Typer(
    help="Load, archive, analyse, redrive and backfill queues with Spark.",
    no_args_is_help=True,
    add_completion=False,
)

#: How often it is looked how far Spark is (s).
_LOOK = 0.2


def _command(job: Job) -> Callable[..., None]:
    """A function with a signature as typer reads it, that runs a job."""

    def run(**given: Any) -> None:
        as_json = given.pop("as_json")
        end(lambda: _run(job, given, as_json=as_json))

    parameters = [_parameter(argument) for argument in arguments(job)]
    parameters.append(_keyword("as_json", AsJson, default=False))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as inspect says
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # What it returns and raises is for programs.
    told = inspect.cleandoc(job.__doc__ or "").partition("\n\nReturns:")[0]
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in told.split("\n\n"))
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
        with _progress() as tell:
            report = carry_out(job, given, tell)
    except JobFailed as error:
        return complain(str(error), Code(exit_code(error)))
    if as_json:
        print_json(report)
    else:
        print_facts(facts(report))
    return Code.MISSED if report.get("stayed") else Code.DONE


def facts(report: dict[str, Any]) -> dict[str, Any]:
    """What people see of a report; a state and a total may have the same name."""
    told = {name.replace("_", " "): _shown(name, value) for name, value in report.items() if name != "now"}
    return told | {f"{state} at the end": count for state, count in report.get("now", {}).items()}


def _shown(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:,.1f}" if name == "per_second" else duration(value)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show what is done while the block runs, if somebody looks on; else tell it in lines."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"leasehold: {escape(text)}")
        return
    over, told = threading.Event(), ""

    def tell(text: str) -> None:
        nonlocal told
        told = text

    with console.status("") as status:

        def look() -> None:
            while not over.wait(_LOOK):
                done, there = tasks()
                status.update(escape(told) + f" [dim]{done:,} of {there:,} tasks[/dim]" * bool(there))

        watching = threading.Thread(target=look, name="progress", daemon=True)
        watching.start()
        try:
            yield tell
        finally:
            over.set()
            watching.join()


for _name in JOBS:
    app.command(_name)(_command(job_of(_name)))
