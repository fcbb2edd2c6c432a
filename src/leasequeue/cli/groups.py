"""`leasequeue groups`: list the groups of a queue, and list, purge, cancel or move what one has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, print_rows, view_document
from leasequeue.cli.options import number_option
from leasequeue.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    command,
    fail,
    open_queue,
    report_changes,
)

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@command
async def groups(  # noqa: PLR0913 - each is an option of the command
    name: QueueName,
    group: Annotated[
        str | None, typer.Argument(metavar="GROUP", help="A group; by default all are listed.")
    ] = None,
    *,
    purge: Annotated[bool, typer.Option("--purge", help="Remove its items that wait.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its unfinished items.")] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Move its items that wait or are scheduled to this queue."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the queue OTHER if there is none of this name.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Look at all leased and scheduled items for groups.")
    ] = False,
    count: Annotated[int, number_option("How many to list.", minimum=1, maximum=1000)] = 100,
    after: Annotated[str | None, typer.Option(help="The group after which to begin.")] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """List the groups of items; list, purge, cancel or move what one has.

    Without --everywhere, groups are listed of which items wait. The exit code is 1 if GROUP has
    no unfinished item. With --json each group, or each item, is a line.
    """
    acts = {"--purge": purge, "--cancel": cancel, "--to": to is not None}
    given = [name for name, is_given in acts.items() if is_given]
    if group is None and given:
        raise typer.BadParameter("goes with a GROUP", param_hint=given[0])
    if len(given) > 1:
        raise typer.BadParameter(f"cannot be combined with {given[1]}", param_hint=given[0])
    if create and to is None:
        raise typer.BadParameter("goes with --to", param_hint="--create")
    async with open_queue(url, name) as queue:
        if group is None:
            found = await queue.groups.list(after=after, count=count, everywhere=everywhere)
            rows = [{"group": one, **numbers._asdict()} for one, numbers in found.items()]
            print_rows(rows, as_json=as_json)
            return Code.DONE
        if not given:
            return await _list_items(queue, group, count, as_json=as_json)
        if purge:
            done, word = await queue.groups.purge(group), "purged"
        elif cancel:
            done, word = await queue.groups.cancel(group), "cancelled"
        else:
            async with open_queue(url, str(to), create=create) as other:
                done, word = len(await queue.groups.move(group, other.name)), "moved"
        is_missed = not done and not await queue.groups.find(group, count=1, data=False)
        missed = [(group, _has_none(queue, group))] if is_missed else []
        return report_changes(queue.name, word, done, missed, as_json=as_json)


async def _list_items(queue: AsyncWorkQueue, group: str, count: int, *, as_json: bool) -> Code:
    views = await queue.groups.find(group, count=count, data=as_json)
    if not views:
        return fail(_has_none(queue, group), Code.MISSED)
    if as_json:
        for view in views:
            print_json({"queue": queue.name, **view_document(view)})
    else:
        print_rows([{"id": one.id, "state": one.state} for one in views], as_json=False)
    return Code.DONE


def _has_none(queue: AsyncWorkQueue, group: str) -> str:
    return f"{queue.name!r} has no unfinished item of the group {group!r}"
