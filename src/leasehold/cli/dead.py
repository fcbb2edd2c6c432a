"""`leasehold dead`: what was given up: look at it, try it again, drop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.formatting import last_words, letter_document, print_json, print_table, shortened
from leasehold.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    carry_out,
    complain,
    confirm,
    opened,
    say,
)
from leasehold.cli.show import print_letter
from leasehold.cli.times import duration, written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold import DeadLetter

app = typer.Typer(
    help="Look at dead letters, requeue or drop them.", no_args_is_help=True, add_completion=False
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Which; or --all.")]


@app.command("ls")
def list_letters(
    queue: QueueName,
    *,
    count: Annotated[int, typer.Option(min=1, max=1000, help="So many.")] = 100,
    start: Annotated[int, typer.Option(help="Begin here: 0 is the newest, -1 the oldest.")] = 0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List dead letters, the newest first. With --json each is a line."""
    carry_out(_list(url, queue, start, count, as_json=as_json))


@app.command("show")
def show_letter(
    queue: QueueName,
    item_id: Annotated[str, typer.Argument(metavar="ID", help="Which.")],
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter in full, with its data and its last error."""
    carry_out(_show(url, queue, item_id, as_json=as_json))


@app.command()
def requeue(
    queue: QueueName,
    ids: Ids = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All of them, the oldest first.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put dead letters back to the end of the queue, to be tried anew.

    One whose id has been added again since stays where it is; then the exit
    code is 1, as for one that is not there.
    """
    _check_one_way(ids, "--all" if everything else None)
    carry_out(_requeue(url, queue, ids, as_json=as_json))


@app.command()
def drop(
    queue: QueueName,
    ids: Ids = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All of them; asks before.")] = False,
    older_than: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="DURATION", help="Those that died so long ago: 30s, 5m, 2d."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Drop dead letters for good."""
    _check_one_way(ids, "--all" if everything else None, "--older-than" if older_than is not None else None)
    if everything:
        confirm(f"Drop all dead letters of {queue}, with their data?", yes=yes)
    carry_out(_drop(url, queue, ids, older_than, as_json=as_json))


def _check_one_way(ids: Sequence[str] | None, *options: str | None) -> None:
    ways = [*filter(None, options), *(["ids"] if ids else [])]
    if len(ways) != 1:
        choices = "ids, --all or --older-than" if len(options) > 1 else "ids or --all"
        raise typer.BadParameter(f"give {choices}: one of them", param_hint="ID")


async def _list(url: str, name: str, start: int, count: int, *, as_json: bool) -> Code:
    async with opened(url, name) as queue:
        letters = await queue.dead_letters.list(start=start, count=count, data=as_json)
        more = await queue.dead_letters.count() - len(letters)
    if as_json:
        for letter in letters:
            print_json({"queue": name, **letter_document(letter)})
        return Code.DONE
    if letters:
        print_table(("id", "died", "attempt", "bytes", "error"), map(_row, letters))
    if more > 0:
        say(f"{more:,} more; --count and --start say which are shown")
    elif not letters:
        say(f"{name} has no dead letters")
    return Code.DONE


def _row(letter: DeadLetter) -> list[str | int | None]:
    error = shortened(last_words(letter.error))
    return [letter.id, written(letter.died_at), letter.attempt, letter.size, error]


async def _show(url: str, name: str, item_id: str, *, as_json: bool) -> Code:
    async with opened(url, name) as queue:
        letter = await queue.dead_letters.get(item_id)
    if letter is None:
        return complain(f"{name!r} has no dead letter with the id {item_id!r}", Code.MISSED)
    if as_json:
        print_json({"queue": name, **letter_document(letter)})
    else:
        print_letter(letter)
    return Code.DONE


async def _requeue(url: str, name: str, ids: Sequence[str] | None, *, as_json: bool) -> Code:
    async with opened(url, name) as queue:
        if not ids:
            return _report(name, "requeued", await queue.dead_letters.requeue_all(), [], as_json=as_json)
        answers = await queue.dead_letters.requeue(*ids)
        missed = [item_id for item_id, done in zip(ids, answers, strict=True) if not done]
        code = _report(name, "requeued", sum(answers), missed, as_json=as_json)
        for item_id in missed:
            stays = await queue.dead_letters.get(item_id) is not None
            why = "stays dead, as its id is in the queue again" if stays else "is no dead letter"
            complain(f"{item_id!r} {why}", code)
    return code


async def _drop(
    url: str, name: str, ids: Sequence[str] | None, older_than: float | None, *, as_json: bool
) -> Code:
    async with opened(url, name) as queue:
        if not ids:
            dropped = await queue.dead_letters.drop_older_than(older_than or 0)
            return _report(name, "dropped", dropped, [], as_json=as_json)
        answers = await queue.dead_letters.drop(*ids)
    missed = [item_id for item_id, done in zip(ids, answers, strict=True) if not done]
    code = _report(name, "dropped", sum(answers), missed, as_json=as_json)
    for item_id in missed:
        complain(f"{item_id!r} is no dead letter", code)
    return code


def _report(name: str, verb: str, done: int, missed: list[str], *, as_json: bool) -> Code:
    if as_json:
        print_json({"queue": name, verb: done, "missed": missed})
    else:
        typer.echo(f"{done:,} {verb}")
    return Code.MISSED if missed else Code.DONE
