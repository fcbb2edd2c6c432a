"""Options, errors and exit codes of the commands that use a server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import signal
import sys
import time
import warnings
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn, ParamSpec, get_type_hints

import typer

from leasequeue.cli.formatting import CODEC_VARIABLE, print_json, print_line
from leasequeue.errors import (
    ConnectionLost,
    FormatTooNew,
    InvalidArgument,
    LeasequeueError,
    QueueClosed,
    ServerError,
    WrongKeyType,
)
from leasequeue.errors.describing import TEXT_LENGTH, plain
from leasequeue.queue import AsyncWorkQueue
from leasequeue.queue.queue import engine_of
from leasequeue.queue.shards import opening
from leasequeue.wire.discovery import KNOWN_BY, MAX_KEYS, MAX_QUEUES, STEP_KEYS, client_at
from leasequeue.wire.endpoints import client_named, is_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence

Parameters = ParamSpec("Parameters")

DEFAULT_URL = "redis://localhost:6379"

Url = Annotated[
    str,
    typer.Option("--url", envvar=["LEASEQUEUE_URL", "REDIS_URL"], metavar="URL", help="The server's URL."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Create = Annotated[bool, typer.Option("--create", help="Make the queue if there is none of this name.")]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE", help="The queues' names.")]
AnyQueues = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUEUE", help="The queues' names; by default all queues on the server."),
]


class Code(IntEnum):
    """The exit codes of a command."""

    DONE = 0
    #: A queue or an item was not found, or could not be changed.
    MISSED = 1
    #: A problem was found and repaired.
    REPAIRED = 1
    USAGE = 2
    #: A problem was found that is left to the user.
    LEFT = 3
    #: The server cannot be reached or refuses.
    SERVER = 5


class QueueUnknown(LeasequeueError):
    """There is no queue of this name on the server. The text names those that have a similar name."""


#: The ends of the keys of which a queue has at least one, as long as it holds or has leased anything.
_KEYS = (
    *(*KNOWN_BY, b"deadlines", b"declared", b"events", b"events:keep", b"heartbeats", b"runs:ends"),
    b"shards",
)
#: How many similar names to name.
_SIMILAR = 3


@contextlib.asynccontextmanager
async def open_queue(url: str, name: str, *, create: bool | None = None) -> AsyncIterator[AsyncWorkQueue]:
    """Open a queue, with its shards, for a block. With `create`, it need not exist.

    `create` is False if the user could have said --create. If the server is away, what is done with the queue
    raises ConnectionLost: it is not known whether it has shards.

    Raises:
        QueueUnknown: If there is no queue of this name, as far as the server permits to see that.
    """
    if name.startswith(("redis://", "rediss://", "unix://")):
        raise InvalidArgument("url", name, "the option --url before a URL; what stands alone names a queue")
    lost: ServerError | None = None
    try:
        client = await client_at(url)
        opened = await opening.open_queue(name, client, codec=codec_place())
    except ConnectionLost as error:
        client, lost = client_named(DEFAULT_URL), error
        opened = AsyncWorkQueue(name, client)
    async with opened as queue:
        if lost:
            await queue.close()
        try:
            if not lost and not create and not await _exists(queue):
                names, _ = await opening.find_whole_queues(client, max_keys=MAX_KEYS, max_queues=MAX_QUEUES)
                advice = ", and --create makes a new one" * (create is False)
                raise QueueUnknown(f"no such queue: {name}; {_similar(name, names)}{advice}")
            if not lost and queue.shards != (queue,) and not is_cluster(client):
                await _note_hidden(queue)
        except ConnectionLost as error:
            lost = error
            await queue.close()
        except ServerError:
            pass  # the command itself is refused, or it is only forbidden to look for queues
        try:
            yield queue
        except QueueClosed as error:  # wrong usage is reported first, and the command waits no second time
            raise lost or error from None


def codec_place() -> str | None:
    """Return where the codec of the queues is, which may be a module in this folder."""
    if codec := os.environ.get(CODEC_VARIABLE):
        sys.path[:0] = [] if "" in sys.path else [""]
    return codec or None


async def _exists(queue: AsyncWorkQueue) -> bool:
    """Return whether a queue has any of the keys that show it, or an item that is in none of them."""
    engine = engine_of(queue.shards[0])
    pattern = engine.keys.data_pattern
    count = (await ask_each(queue, b"EXISTS", _KEYS))[0]
    cursor = b"" if count else b"0"  # an error of the server, too
    for _ in range(MAX_KEYS // STEP_KEYS):
        if not cursor:
            break
        [page] = await engine.runner.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % STEP_KEYS))
        if isinstance(page, BaseException) or page[1]:
            return True
        cursor = b"" if page[0] == b"0" else page[0]
    return bool(count)


async def _note_hidden(queue: AsyncWorkQueue) -> None:
    """Say so if there is a queue of the same name without shards, which no command reaches."""
    keys = (b"%b:%b" % (queue.name.encode(), end) for end in _KEYS)
    [count] = await engine_of(queue.shards[0]).runner.ask((b"EXISTS", *keys))
    if isinstance(count, int) and count:
        note(
            f"{queue.name} is the queue with {len(queue.shards)} shards here; that of the same name without "
            "shards has items or settings, too, and only programs that give no `shards` see it"
        )


async def ask_each(
    queue: AsyncWorkQueue, command: bytes, ends: Iterable[bytes], *arguments: bytes
) -> list[Any]:
    """Send a command about keys of each shard, by the ends of their names; return replies and errors."""
    engines = [*map(engine_of, queue.shards)]
    calls = (
        one.runner.ask((command, *(b"%b:%b" % (one.keys.prefix, end) for end in ends), *arguments))
        for one in engines
    )
    return [reply for [reply] in await asyncio.gather(*calls)]


def _similar(name: str, names: list[str]) -> str:
    from difflib import get_close_matches  # only then, to start quickly

    close = get_close_matches(name, names, _SIMILAR)
    return f"there is {', '.join(close)}" if close else "`leasequeue ls` lists those that are there"


async def all_queues(url: str, *, limited: bool = True) -> list[str]:
    """Return the names of the queues on the server; say so if these are not all, or there is none."""
    limits = {"max_keys": MAX_KEYS, "max_queues": MAX_QUEUES} if limited else {}
    names, complete = await opening.find_whole_queues(url, **limits)
    if not complete:
        note(f"stopped after {MAX_KEYS:,} keys or {len(names):,} queues: name the queues that are missing")
    if not names:
        note("found no queue on this server")
    return names


async def visit(
    url: str,
    names: Sequence[str] | None,
    look: Callable[[AsyncWorkQueue], Awaitable[None]],
    *,
    limited: bool = True,
) -> bool:
    """Call `look` with each of these queues, or of all on the server; report keys of a wrong type.

    Of all, those that are too new are reported, too. Return whether none was reported. `limited` is as for
    `all_queues`.
    """
    complete = True
    for name in dict.fromkeys(names or await all_queues(url, limited=limited)):
        async with open_queue(url, name, create=not names or None) as queue:
            try:
                await look(queue)
            except (WrongKeyType, FormatTooNew) as error:
                if names and isinstance(error, FormatTooNew):
                    raise
                complete = False
                note(f"{name}: {error}")
    return complete


async def server_time(queue: AsyncWorkQueue) -> float:
    """Return the server's time, in seconds since 1970; this machine's if the access rules forbid to ask."""
    [now] = await engine_of(queue.shards[0]).runner.ask((b"TIME",))
    return time.time() if isinstance(now, BaseException) else int(now[0])


#: Makes a group of commands.
group_of = functools.partial(typer.Typer, no_args_is_help=True, add_completion=False)


def command(run: Callable[Parameters, Coroutine[Any, Any, Code]]) -> Callable[Parameters, NoReturn]:
    """Return a command that runs a coroutine function; see `run_command`."""

    @functools.wraps(run)
    def command(*arguments: Parameters.args, **options: Parameters.kwargs) -> NoReturn:
        run_command(run(*arguments, **options))

    return command


def queue_command(
    run: Callable[Concatenate[AsyncWorkQueue, ...], Coroutine[Any, Any, Code]],
    *,
    creates: bool = False,
    unknown: bool = False,
) -> Any:
    """Return a command on one queue: `run` gets it, open, in place of the argument QUEUE and of --url.

    Typer reads the signature of the command: that of `run`, with QUEUE first and --url before the last one.

    Args:
        run: What the command does.
        creates: Whether it makes a queue if there is none of the name: then it has the option --create.
        unknown: Whether it is of use without that option, too.
    """

    async def opened(name: str, url: str, options: dict[str, Any], *, create: bool | None) -> Code:
        async with open_queue(url, name, create=create) as queue:
            return await run(queue, **options)

    @functools.wraps(run)
    def command(*, name: str, url: str, **options: Any) -> NoReturn:
        run_command(opened(name, url, options, create=options.pop("create", unknown or None)))

    hints = get_type_hints(run, localns={"AsyncWorkQueue": AsyncWorkQueue}, include_extras=True)
    _, *rest = inspect.signature(run).parameters.values()
    *rest, last = (one.replace(annotation=hints[one.name]) for one in rest)
    parameters = [
        inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=QueueName),
        *rest,
        *[inspect.Parameter("create", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Create)]
        * creates,
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


def run_confirmed(
    work: Callable[[], Coroutine[Any, Any, Code]],
    question: str,
    *,
    yes: bool,
    url: str,
    names: Sequence[str],
) -> NoReturn:
    """Run a command that cannot be undone, if its queues exist and the user agrees; see `run_command`."""

    async def look() -> None:
        for name in names:
            async with open_queue(url, name):
                pass

    def confirmed() -> Code:
        if not yes:
            asyncio.run(look())
            confirm(question, yes=yes)
        return asyncio.run(work())

    run_blocking_command(confirmed)


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
    except QueueUnknown as error:
        code = fail(str(error), Code.MISSED)
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
