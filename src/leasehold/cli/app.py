"""The commands, put together: a line for each. A command's file is imported when the command is used."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable


#: At the end of the help of what speaks to a server: see `leasehold.cli.server.Code`.
EXIT_CODES = (
    "Exit codes: 0 done, 1 something asked for was not there, 2 wrong usage, 5 the server is away or refuses."
)


class Place(NamedTuple):
    """Where a command is, and what `leasehold --help` says of it."""

    module: str
    help: str
    epilog: str | None = None


#: A function of the command's name, or a `typer.Typer` called `app`, is in each of the modules.
COMMANDS = {
    "add": Place("leasehold.cli.add", "Add an item to a queue, or one for each line of a file.", EXIT_CODES),
    "ls": Place(
        "leasehold.cli.ls", "Count the items of queues: waiting, leased, scheduled, dead.", EXIT_CODES
    ),
    "show": Place("leasehold.cli.show", "Show the items of a queue, or one of them in full.", EXIT_CODES),
    "dead": Place("leasehold.cli.dead", "Look at dead letters, requeue or drop them.", EXIT_CODES),
    "schedule": Place("leasehold.cli.schedule", "List schedules, or remove some.", EXIT_CODES),
    "clean": Place(
        "leasehold.cli.clean",
        "Bring back and drop what dead processes and other clients left behind.",
        EXIT_CODES,
    ),
    "pipeline": Place(
        "leasehold.cli.pipeline",
        "Load, archive, analyse, redrive and backfill queues with Spark.",
        EXIT_CODES,
    ),
    "worker": Place("leasehold.cli.worker", "Run a worker: work on the items of queues until it is stopped."),
    "demo": Place(
        "leasehold.cli.demo.command",
        "Process files with worker processes, kill one and stop one, and check that nothing is lost.",
    ),
    "serve": Place("leasehold.cli.serve", "Start a server and run it until Ctrl-C or SIGTERM."),
}


def load(name: str) -> Any:
    """Import a command, and give it as what typer makes of it."""
    module = importlib.import_module(COMMANDS[name].module)
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, rich_markup_mode="rich")
        group.command(name)(getattr(module, name))
    command = typer.main.get_command(group)
    command.name = name
    for one in getattr(command, "commands", {"": command}).values():
        one.epilog = one.epilog or COMMANDS[name].epilog
    return command


class LazyGroup(TyperGroup):
    """Knows the names of its commands, and imports the one that is called.

    Help and completion go by the names and the lines above, so that both come at once.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """See `TyperGroup`."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


app = typer.Typer(
    name="leasehold",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # a password may be among them
    rich_markup_mode="rich",
)


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"leasehold {importlib.metadata.version('leasehold')}")
        raise typer.Exit


@app.callback()
def _leasehold(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Leasehold: an atomic work queue for asyncio on Redis or Valkey."""


def _stand_in(place: Place) -> Callable[[], None]:
    """What holds a command's place until it is called."""

    def command() -> None:
        raise AssertionError(f"{place.module} was not imported")

    return command


for _name, _place in COMMANDS.items():
    app.command(_name, help=_place.help)(_stand_in(_place))
