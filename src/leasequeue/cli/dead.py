"""`leasequeue dead`: list, show, requeue and drop dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, print_table, shortened, view_document
from leasequeue.cli.options import duration_option, format_time, number_option
from leasequeue.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    confirm,
    fail,
    group_of,
    note,
    open_queue,
    queue_command,
    report_changes,
    run_command,
)
from leasequeue.cli.show import print_dead_letter
from leasequeue.durations import LONGEST_KEPT_SECONDS
from leasequeue.errors import summary_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.views import DeadLetter

app = group_of(help="List, show, requeue and drop dead letters.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of dead letters.")]


@app.command("ls")
@queue_command
async def list_letters(
    queue: AsyncWorkQueue,
    *,
    count: Annotated[int, number_option("How many.", minimum=1, maximum=1000)] = 100,
    start: Annotated[int, number_option("Where to begin: 0 is the newest, -1 the oldest.")] = 0,
    as_json: AsJson = False,
) -> Code:
    """List dead letters, the newest first. With --json each dead letter is a line."""
    letters = await queue.dead_letters.list(start=start, count=count, data=as_json)
    more = await queue.dead_letters.count() - len(letters)
    if as_json:
        for letter in letters:
            print_json({"queue": queue.name, **view_document(letter)})
        return Code.DONE
    if letters:
        print_table(("id", "died", "attempt", "bytes", "error"), map(_row, letters))
    if more > 0:
        note(f"{more:,} more: see --count and --start")
    elif not letters:
        note(f"{queue.name} has no dead letters")
    return Code.DONE


def _row(letter: DeadLetter) -> list[str | int | None]:
    # On a terminal it must fit into a line; on a pipe it is whole.
    error = summary_of(letter.error)
    error = shortened(error) if sys.stdout.isatty() else error
    return [letter.id, format_time(letter.died_at), letter.attempt, letter.size, error]


@app.command("show")
@queue_command
async def show_dead_letter(
    queue: AsyncWorkQueue,
    item_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the dead letter.")],
    *,
    as_json: AsJson = False,
) -> Code:
    """Show a dead letter in full, with its data and its last error."""
    letter = await queue.dead_letters.get(item_id)
    if letter is None:
        return fail(f"{queue.name!r} has no dead letter with the id {item_id!r}", Code.MISSED)
    if as_json:
        print_json({"queue": queue.name, **view_document(letter)})
    else:
        print_dead_letter(letter)
    return Code.DONE


@app.command()
@queue_command
async def requeue(
    queue: AsyncWorkQueue,
    ids: Ids = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Requeue all, the oldest first.")] = False,
    as_json: AsJson = False,
) -> Code:
    """Move dead letters to the end of the queue, as new items.

    A dead letter whose id has been added again is not moved. The exit code is then
    1, as for an id without a dead letter.
    """
    _check_one_way(ids, "--all" if everything else None)
    letters = queue.dead_letters
    if not ids:
        return report_changes(queue.name, "requeued", await letters.requeue_all(), [], as_json=as_json)
    answers = await letters.requeue(*ids)
    missed = [
        (one, f"{one!r} was not moved: its id is in the queue again" if await letters.get(one) else why)
        for one, why in _missed(ids, answers)
    ]
    return report_changes(queue.name, "requeued", sum(answers), missed, as_json=as_json)


@app.command()
def drop(
    name: QueueName,
    ids: Ids = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Drop all, after a confirmation.")] = False,
    older_than: Annotated[
        float | None,
        duration_option("Drop those older than this: 30s, 5m, 2d.", longest=LONGEST_KEPT_SECONDS),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters with their data."""
    _check_one_way(ids, "--all" if everything else None, "--older-than" if older_than is not None else None)
    if everything:
        confirm(f"Drop all dead letters of {name}, with their data?", yes=yes)
    run_command(_drop(url, name, ids, older_than or 0, as_json=as_json))


async def _drop(url: str, name: str, ids: Sequence[str] | None, older_than: float, *, as_json: bool) -> Code:
    async with open_queue(url, name) as queue:
        if not ids:
            dropped = await queue.dead_letters.drop_older_than(older_than)
            return report_changes(name, "dropped", dropped, [], as_json=as_json)
        answers = await queue.dead_letters.drop(*ids)
    return report_changes(name, "dropped", sum(answers), _missed(ids, answers), as_json=as_json)


def _check_one_way(ids: Sequence[str] | None, *options: str | None) -> None:
    ways = [*filter(None, options), *(["ids"] if ids else [])]
    if len(ways) != 1:
        choices = "ids, --all or --older-than" if len(options) > 1 else "ids or --all"
        raise typer.BadParameter(f"give exactly one of {choices}", param_hint="ID")


def _missed(ids: Sequence[str], answers: Sequence[bool]) -> list[tuple[str, str]]:
    return [
        (one, f"{one!r} is not a dead letter") for one, done in zip(ids, answers, strict=True) if not done
    ]
