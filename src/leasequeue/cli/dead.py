"""`leasequeue dead`: list, show, requeue and drop dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from leasequeue.cli.formatting import print_json, print_line, print_table, shortened, view_document
from leasequeue.cli.options import duration_option, format_time, number_option
from leasequeue.cli.server import (
    DEFAULT_URL,
    AnyQueues,
    AsJson,
    Code,
    QueueName,
    Url,
    command,
    confirm,
    fail,
    group_of,
    note,
    open_queue,
    queue_command,
    report_changes,
    run_command,
    server_time,
    visit,
)
from leasequeue.cli.show import print_dead_letter
from leasequeue.durations import LONGEST_KEPT_SECONDS
from leasequeue.errors import summary_of
from leasequeue.tasks.letters import LetterFilter
from leasequeue.tasks.wire import task_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue import DeadLetter

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
Filters: TypeAlias = tuple[str | None, str | None, float | None]
#: Without --task, --error and --since.
NO_FILTERS: Filters = (None, None, None)
#: How many dead letters are read at once.
PAGE = 100


async def _chosen(
    queue: AsyncWorkQueue, task: str | None, error: str | None, since: float | None
) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters to which all applies that is given, the newest of each shard first."""
    oldest = 0.0
    if since is not None:
        oldest = await server_time(queue) - since
    wanted = LetterFilter(task=task, error=error, oldest=oldest)
    for shard in queue.shards:
        start = 0
        while page := await shard.dead_letters.list(start=start, count=PAGE):
            start += PAGE
            for letter in await wanted.choose(shard, page):
                yield letter


@app.command("ls")
@command
async def list_letters(
    queues: AnyQueues = None,
    *,
    count: Annotated[int, number_option("How many.", minimum=1, maximum=1000)] = 100,
    start: Annotated[int, number_option("Where to begin: 0 is the newest, -1 the oldest.")] = 0,
    task: OfTask = None,
    error: WithError = None,
    since: Since = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """List dead letters of queues, the newest first. With --json each dead letter is a line."""
    filters = task, error, since
    only = queues[0] if queues and len({*queues}) == 1 else None
    if start and filters != NO_FILTERS:
        raise typer.BadParameter("cannot be combined with --task, --error and --since", param_hint="--start")
    if start and only is None:
        raise typer.BadParameter("needs one QUEUE", param_hint="--start")
    first = 0 if only is None else 1  # of one queue, the column that names it is left out
    found, total = await _newest(url, queues, filters, start=start, count=count)
    if as_json:
        for name, letter in found:
            print_json({"queue": name, **view_document(letter)})
        return Code.DONE
    if found:
        titles = ("queue", "id", "task", "died", "attempt", "bytes", "error")
        print_table(titles[first:], [[name, *_row(letter)][first:] for name, letter in found])
    if total > len(found):
        note(f"{total - len(found):,} more: see --count" + " and --start" * first)
    elif not found:
        whose = "there are" if only is None else f"{only} has"
        note(f"{whose} no {'' if filters == NO_FILTERS else 'such '}dead letters")
    return Code.DONE


async def _newest(
    url: str, queues: Sequence[str] | None, filters: Filters, *, start: int, count: int
) -> tuple[list[tuple[str, DeadLetter]], int]:
    """Return the newest dead letters of queues, each with its queue, and how many there are."""
    found: list[tuple[str, DeadLetter]] = []
    total = 0

    async def look(queue: AsyncWorkQueue) -> None:
        nonlocal found, total
        letters: list[DeadLetter] = []
        if filters == NO_FILTERS:
            letters = await queue.dead_letters.list(start=start, count=count)
            total += await queue.dead_letters.count()
        else:
            async for letter in _chosen(queue, *filters):
                total += 1
                if len(letters) < count or letter.died_at > letters[-1].died_at:
                    letters = sorted([*letters, letter], key=lambda one: -one.died_at)[:count]
        both = [*found, *((queue.name, letter) for letter in letters)]
        found = sorted(both, key=lambda one: -one[1].died_at)[:count]

    await visit(url, queues, look)
    return found, total


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
    chooses = dry_run or filters != NO_FILTERS
    if ids and chooses:
        options = "--task, --error, --since and --dry-run"
        raise typer.BadParameter(f"{options} go with --all, not with ids", param_hint="ID")
    if not ids:
        if not chooses:
            return report_changes(queue.name, "requeued", await letters.requeue_all(), [], as_json=as_json)
        found = [letter.id async for letter in _chosen(queue, *filters)]
        if dry_run:
            if not as_json:
                print_line(f"{len(found):,} would be requeued")
                return Code.DONE
            return report_changes(queue.name, "chosen", len(found), [], as_json=True)
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
