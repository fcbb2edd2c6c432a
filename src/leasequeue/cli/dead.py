"""`leasequeue dead`: list, show, requeue and drop dead letters."""

from __future__ import annotations

import sys
import time
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
from leasequeue.queue.queue import engine_of
from leasequeue.tasks.wire import task_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.views import DeadLetter

app = group_of(help="List, show, requeue and drop dead letters.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of dead letters.")]
OfTask = Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only those of this task.")]
WithError = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Only those with this text in their error.")
]
Since = Annotated[
    float | None,
    duration_option("Only those that died at most so long ago: 30s, 5m, 2d.", longest=LONGEST_KEPT_SECONDS),
]
#: How many dead letters are read at once.
PAGE = 100


async def _chosen(
    queue: AsyncWorkQueue, task: str | None, error: str | None, since: float | None
) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters to which all applies that is given, the newest first."""
    oldest = 0.0
    if since is not None:
        [now] = await engine_of(queue).runner.ask((b"TIME",))
        # This machine's time, if the server permits no other one.
        oldest = (time.time() if isinstance(now, BaseException) else int(now[0])) - since
    start = 0
    while page := await queue.dead_letters.list(start=start, count=PAGE):
        start += PAGE
        for letter in page:
            if letter.died_at < oldest or (error or "") not in letter.error:
                continue
            whole = letter
            if task is not None and letter.data is None and letter.size:
                whole = await queue.dead_letters.get(letter.id) or letter  # the reply had no room for it
            if task is None or task == task_of(whole.data or b""):
                yield letter


@app.command("ls")
@queue_command
async def list_letters(
    queue: AsyncWorkQueue,
    *,
    count: Annotated[int, number_option("How many.", minimum=1, maximum=1000)] = 100,
    start: Annotated[int, number_option("Where to begin: 0 is the newest, -1 the oldest.")] = 0,
    task: OfTask = None,
    error: WithError = None,
    since: Since = None,
    as_json: AsJson = False,
) -> Code:
    """List dead letters, the newest first. With --json each dead letter is a line."""
    filters = task, error, since
    if all_of_them := filters == (None, None, None):
        letters = await queue.dead_letters.list(start=start, count=count)
        more = await queue.dead_letters.count() - len(letters)
    elif start:
        raise typer.BadParameter("cannot be combined with --task, --error and --since", param_hint="--start")
    else:
        letters, more = [], 0
        async for letter in _chosen(queue, *filters):
            letters, more = (letters, more + 1) if len(letters) == count else ([*letters, letter], more)
    if as_json:
        for letter in letters:
            print_json({"queue": queue.name, **view_document(letter)})
        return Code.DONE
    if letters:
        print_table(("id", "task", "died", "attempt", "bytes", "error"), map(_row, letters))
    if more > 0:
        note(f"{more:,} more: see --count and --start")
    elif not letters:
        note(f"{queue.name} has no {'' if all_of_them else 'such '}dead letters")
    return Code.DONE


def _row(letter: DeadLetter) -> list[str | int | None]:
    # On a terminal it must fit into a line; on a pipe it is whole.
    error = summary_of(letter.error)
    error = shortened(error) if sys.stdout.isatty() else error
    task = task_of(letter.data or b"")
    return [letter.id, task, format_time(letter.died_at), letter.attempt, letter.size, error]


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
    everything: Annotated[
        bool, typer.Option("--all", help="Requeue all, or those of the options below, the oldest first.")
    ] = False,
    task: OfTask = None,
    error: WithError = None,
    since: Since = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --all: only count them, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> Code:
    """Move dead letters to the end of the queue, as new items.

    A dead letter whose id has been added again is not moved. The exit code is then
    1, as for an id without a dead letter.
    """
    _check_one_way(ids, "--all" if everything else None)
    letters, filters = queue.dead_letters, (task, error, since)
    chooses = dry_run or filters != (None, None, None)
    if ids and chooses:
        options = "--task, --error, --since and --dry-run"
        raise typer.BadParameter(f"{options} go with --all, not with ids", param_hint="ID")
    if not ids:
        if not chooses:
            return report_changes(queue.name, "requeued", await letters.requeue_all(), [], as_json=as_json)
        found = [letter.id async for letter in _chosen(queue, *filters)]
        if dry_run:
            return report_changes(queue.name, "chosen", len(found), [], as_json=as_json)
        done = sum(await letters.requeue(*found[::-1]))
        return report_changes(queue.name, "requeued", done, [], as_json=as_json)
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
