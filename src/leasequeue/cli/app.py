"""The table of commands. A command's module is imported when the command is called."""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable


def convert_quickly(parameters: list[Any]) -> list[Any]:
    """Have parameters convert texts, and values that have a parser, without pydantic; return them.

    Newer versions of typer convert each value with pydantic, whose import takes longer than most commands.
    Older ones are left as they are.
    """
    for one in parameters:
        if hasattr(one, "get_runtime_param") and "get_runtime_param" not in vars(one):
            one.get_runtime_param = _Quick(one, one.get_runtime_param).itself
    return parameters


class _Quick:
    """What typer asks to convert a value."""

    def __init__(self, parameter: Any, make: Callable[[], Any]) -> None:
        self._make = make
        annotation = parameter.type_descriptor.annotation
        self._many = annotation == list[str]
        self._parse = parameter.type_descriptor.parameter_info.parser
        if self._parse is None and annotation in {str, list[str]}:
            self._parse = str

    def itself(self) -> _Quick:
        """Return it: what is called in place of `make`."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter, converted."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._parse is None:
            return self._make().coerce(value, param=param, ctx=ctx)
        return [self._parse(one) for one in value] if self._many else self._parse(value)


#: The end of the help of commands that use a server: see `leasequeue.cli.server.Code`.
EXIT_CODES = (
    "Exit codes: 0 done, 1 an item was not found or not changed, 2 wrong usage, "
    "5 the server cannot be reached or refuses."
)


class Command(NamedTuple):
    """A command: its module in `leasequeue.cli`, its text in `leasequeue --help`, and the end of its help."""

    module: str
    help: str
    epilog: str | None = EXIT_CODES


#: By what they are for, in the order of the help. Each module has a function with the command's name, or a
#: `typer.Typer` named `app`.
GROUPS = {
    "Look at work": {
        "ls": Command("ls", "Count the items of queues: waiting, leased, scheduled, dead."),
        "top": Command("top.command", "Watch queues, workers, runs and dead letters, live."),
        "stats": Command("stats", "Show how long items wait, and what workers do; serve metrics."),
        "show": Command("show", "Show the items of a queue, or one of them in full."),
        "peek": Command("show", "Show the items that are leased next, without leasing them."),
        "dashboard": Command(
            "dashboard", "Show the queues of a server in the browser, until Ctrl-C or SIGTERM.", None
        ),
        "events": Command("events", "Print the events of a queue; switch them on and off."),
        "workers": Command("workers", "List the workers of queues; fail, quiet or stop one."),
    },
    "Act on items": {
        "add": Command("add", "Add an item to a queue, or one for each line of a file."),
        "cancel": Command("cancel", "Cancel items, whether they wait or run."),
        "promote": Command("promote", "Run delayed items now, also those that are to be retried."),
        "priority": Command("promote", "Change the priority of items that wait or are delayed."),
        "tags": Command("tags", "List the tags of items; find, cancel or requeue what has one."),
        "groups": Command("groups", "List the groups of items; list, purge, cancel or move what one has."),
        "dead": Command("dead", "List, show, requeue and drop dead letters."),
        "schedule": Command("schedule", "List schedules; add, run or remove one."),
        "flow": Command(
            "flow", "List, show, find, signal, cancel, retry, replay, delete and check flow runs."
        ),
    },
    "Act on queues": {
        "limits": Command(
            "limits", "Show, set or remove limits of a queue, its groups, and what its handlers hold."
        ),
        "pause": Command("limits", "Pause a queue or a group."),
        "resume": Command("limits", "End the pause of a queue or a group."),
        "mv": Command("whole_queues", "Move items that wait to the end of another queue, in their order."),
        "purge": Command("whole_queues", "Remove all items of a queue that wait."),
        "rm": Command(
            "whole_queues",
            "Delete queues, with all their items, dead letters, results, schedules, events and limits.",
        ),
        "recover": Command(
            "whole_queues",
            "Return items that were leased long ago to the front of the queue, and print their ids.",
        ),
        "clear-leases": Command(
            "whole_queues", "End all leases of one queue, or of all: the items return to the front."
        ),
        "clean": Command(
            "clean", "Reclaim expired leases and repair what dead processes and other clients left behind."
        ),
        "fsck": Command(
            "fsck",
            "Check the keys of queues against each other, and repair what does not agree.",
            "Exit codes: 0 nothing was found, 1 all that was found is repaired, 2 wrong usage, "
            "3 something is left to you, 5 the server cannot be reached or refuses.",
        ),
        "upgrade": Command("upgrade", "Raise the format of queues, and say what holds them back."),
    },
    "Run": {
        "worker": Command("worker", "Run a worker until it is stopped.", None),
        "dev": Command("dev", "Run a server, a worker that reloads and a dashboard, for development.", None),
        "autoscale": Command(
            "autoscale.command",
            "Run as many workers as the work of queues needs; plan how many that will be.",
            None,
        ),
        "pipeline": Command("pipeline", "Load, archive, analyse, redrive and backfill queues with Spark."),
        "demo": Command(
            "demo.command",
            "Process files with worker processes, kill one and stop one, and check that nothing is lost.",
            None,
        ),
    },
    "Set up": {
        "serve": Command("serve", "Run a server until Ctrl-C or SIGTERM.", None),
        "acl": Command("acl", "Print the ACL SETUSER line with all that a user must be permitted."),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def load(name: str) -> Any:
    """Import a command and return it as a Click command."""
    module = importlib.import_module(f"leasequeue.cli.{COMMANDS[name].module}")
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, rich_markup_mode="rich")
        group.command(name)(getattr(module, name.replace("-", "_")))
    command = typer.main.get_command(group)
    command.name = name
    for one in getattr(command, "commands", {"": command}).values():
        one.epilog = one.epilog or COMMANDS[name].epilog
        one.get_params = functools.partial(_parameters, one.get_params)
    return command


def _parameters(get_params: Any, ctx: Any) -> list[Any]:
    return convert_quickly(get_params(ctx))


class LazyGroup(TyperGroup):
    """A group that imports only the command that is called.

    Help and completion use the table above, so they need no imports.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """See `TyperGroup`."""
        return convert_quickly(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """See `TyperGroup`."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = load(name)
        if not gc.isenabled():  # see `leasequeue.cli.main`
            gc.freeze()
            gc.enable()
        return name, command, rest


app = typer.Typer(
    name="leasequeue",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # a password may be among them
    rich_markup_mode="rich",
)


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"leasequeue {importlib.metadata.version('leasequeue')}")
        raise typer.Exit


@app.callback()
def _leasequeue(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Leasequeue: an atomic work queue for asyncio on Redis or Valkey."""


def _not_imported() -> None:
    """Stand for a command until it is imported."""
    raise AssertionError


for _title, _commands in GROUPS.items():
    for _name, _command in _commands.items():
        app.command(_name, help=_command.help, rich_help_panel=_title)(_not_imported)
