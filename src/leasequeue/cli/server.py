"""Options, errors and exit codes of the commands that use a server."""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import sys
import warnings
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn, ParamSpec, get_type_hints

import typer

from leasequeue.cli.formatting import print_json, print_line
from leasequeue.describing import TEXT_LENGTH, plain
from leasequeue.errors import ConnectionLost, InvalidArgument, LeasequeueError, ServerError
from leasequeue.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

Parameters = ParamSpec("Parameters")

DEFAULT_URL = "redis://localhost:6379"

Url = Annotated[
    str,
    typer.Option("--url", envvar=["LEASEQUEUE_URL", "REDIS_URL"], metavar="URL", help="The server's URL."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")]
AnyQueues = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUEUE", help="The queues' names; by default all queues on the server."),
]


class Code(IntEnum):
    """The exit codes of a command."""

    DONE = 0
    #: An item was not found, or could not be changed.
    MISSED = 1
    #: A problem was found and repaired.
    REPAIRED = 1
    USAGE = 2
    #: A problem was found that is left to the user.
    LEFT = 3
    #: The server cannot be reached or refuses.
    SERVER = 5


open_queue = AsyncWorkQueue.from_url
#: Makes a group of commands.
group_of = functools.partial(typer.Typer, no_args_is_help=True, add_completion=False)


def command(run: Callable[Parameters, Coroutine[Any, Any, Code]]) -> Callable[Parameters, NoReturn]:
    """Return a command that runs a coroutine function; see `run_command`."""

    @functools.wraps(run)
    def command(*arguments: Parameters.args, **options: Parameters.kwargs) -> NoReturn:
        run_command(run(*arguments, **options))

    return command


def queue_command(run: Callable[Concatenate[AsyncWorkQueue, ...], Coroutine[Any, Any, Code]]) -> Any:
    """Return a command on one queue: `run` gets it, open, in place of the argument QUEUE and of --url.

    Typer reads the signature of the command: that of `run`, with QUEUE first and --url before the last one.
    """

    async def opened(name: str, url: str, options: dict[str, Any]) -> Code:
        async with open_queue(url, name) as queue:
            return await run(queue, **options)

    @functools.wraps(run)
    def command(*, name: str, url: str, **options: Any) -> NoReturn:
        run_command(opened(name, url, options))

    hints = get_type_hints(run, localns={"AsyncWorkQueue": AsyncWorkQueue}, include_extras=True)
    _, *rest = inspect.signature(run).parameters.values()
    *rest, last = (one.replace(annotation=hints[one.name]) for one in rest)
    parameters = [
        inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=QueueName),
        *rest,
        inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, default=DEFAULT_URL, annotation=Url),
        last,
    ]
    del command.__wrapped__  # `wraps` sets it, and its signature would be read
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by `inspect`
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def run_command(work: Coroutine[Any, Any, Code]) -> NoReturn:
    """Run a command and end the process with its exit code.

    Raises:
        typer.Exit: Always, with the exit code. A LeasequeueError is printed as one line on standard error.
    """
    run_blocking_command(lambda: asyncio.run(work))


def run_blocking_command(work: Callable[[], Code]) -> NoReturn:
    """Run a command that is not async; see `run_command`."""
    # Ids and data may hold any character, and not every terminal can show all of them.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # the streams are files
    warnings.showwarning = _warn
    try:
        code = work()
    except InvalidArgument as error:
        # A URL may hold a password.
        given = "" if error.argument == "url" else f"got {error.given}, "
        code = fail(f"{error.argument}: {given}expected {error.allowed}", Code.USAGE)
    except ServerError as error:
        advice = "(set --url or LEASEQUEUE_URL, or start a server with `leasequeue serve --port 6379`)"
        code = fail(explain(error, advice), Code.SERVER)
    except LeasequeueError as error:  # an extra is not installed
        code = fail(str(error), Code.USAGE)
    raise typer.Exit(code)


async def until_signal(work: Coroutine[Any, Any, Code]) -> Code | None:
    """Return the exit code of a command; None: SIGTERM or Ctrl-C has cancelled it."""
    working = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        return await working
    except asyncio.CancelledError:
        return None


def explain(error: ServerError, advice: str = "") -> str:
    """Return the text of an error of the server, with advice if the server cannot be reached."""
    parts = [str(error), *getattr(error, "__notes__", [])]
    if isinstance(error, ConnectionLost) and not error.maybe_applied:
        parts = ["the server cannot be reached:", *parts, advice]
    return " ".join(parts)


def fail(problem: str, code: Code) -> Code:
    """Print an error as one line and return the exit code."""
    note(" ".join(problem.split()))
    return code


def report_changes(
    queue: str, verb: str, done: int, missed: Iterable[tuple[str, str]], *, as_json: bool
) -> Code:
    """Print how many were changed, and for each id that was missed why; return the exit code."""
    missed = [*missed]
    if as_json:
        print_json({"queue": queue, verb: done, "missed": [name for name, _ in missed]})
    else:
        print_line(f"{done:,} {verb}")
    for _, why in missed:
        fail(why, Code.MISSED)
    return Code.MISSED if missed else Code.DONE


def confirm(question: str, *, yes: bool) -> None:
    """Ask before an action that cannot be undone.

    Raises:
        typer.Exit: If standard input is not a terminal (2).
        typer.Abort: If the answer is no (1).
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.Exit(
            fail(f"{question} Nothing was done: without a terminal, confirm with --yes", Code.USAGE)
        )
    typer.confirm(plain(question, TEXT_LENGTH), abort=True, err=True)


def note(text: str) -> None:
    """Print a line on standard error; standard output has only the result, so that it can be piped."""
    typer.echo(f"leasequeue: {plain(text, TEXT_LENGTH)}", err=True)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    note(str(message))
