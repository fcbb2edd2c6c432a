"""What the commands that speak to a server share: their options, their errors, their exit codes."""

from __future__ import annotations

import asyncio
import sys
import warnings
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from leasehold.errors import ConnectionLost, InvalidArgument, LeaseholdError, ServerError
from leasehold.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

DEFAULT_URL = "redis://localhost:6379"

Url = Annotated[
    str,
    typer.Option("--url", envvar=["LEASEHOLD_URL", "REDIS_URL"], metavar="URL", help="Where the server is."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


class Code(IntEnum):
    """How a command ends."""

    DONE = 0
    #: Something that was asked for was not there, or could not be done to it.
    MISSED = 1
    USAGE = 2
    #: The server cannot be reached, or refuses.
    SERVER = 5


@asynccontextmanager
async def opened(url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    """Open a queue for the length of a block."""
    async with AsyncWorkQueue.from_url(url, name) as queue:
        yield queue


def carry_out(work: Coroutine[Any, Any, Code]) -> NoReturn:
    """Run a command to its end, and end the process as it says.

    Raises:
        typer.Exit: Always, with the exit code; errors of ours are a line on standard error.
    """
    end(lambda: asyncio.run(work))


def end(work: Callable[[], Code]) -> NoReturn:
    """Do the same with a function that is not async.

    Raises:
        typer.Exit: As `carry_out`.
    """
    # Ids and data may hold anything; not every terminal can show it.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # the streams are files
    warnings.showwarning = _warn
    try:
        code = work()
    except InvalidArgument as error:
        # What was given may be a URL with a password in it.
        given = "" if error.argument == "url" else f"got {error.given}, "
        code = complain(f"{error.argument}: {given}expected {error.allowed}", Code.USAGE)
    except ServerError as error:
        told = [str(error), *getattr(error, "__notes__", [])]
        if isinstance(error, ConnectionLost) and not error.maybe_applied:
            told.insert(0, "the server cannot be reached:")
            told.append("(--url or LEASEHOLD_URL says where it is; `leasehold serve` starts one)")
        code = complain(" ".join(told), Code.SERVER)
    except LeaseholdError as error:  # a part whose library is not installed
        code = complain(str(error), Code.USAGE)
    raise typer.Exit(code)


def complain(problem: str, code: Code) -> Code:
    """Say in one line what is wrong, and give back the exit code for it."""
    say(" ".join(problem.split()))
    return code


def say(text: str) -> None:
    """Tell people something that is not the answer, so that the answer can be piped."""
    typer.echo(f"leasehold: {text}", err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone.

    Raises:
        typer.Exit: If nobody can be asked (2).
        typer.Abort: If the answer is no (1).
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.Exit(
            complain(
                f"{question} Nobody is there to be asked: say so with --yes; nothing was done", Code.USAGE
            )
        )
    typer.confirm(question, abort=True, err=True)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    say(str(message))
