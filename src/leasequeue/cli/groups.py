"""`leasequeue groups`: list the groups of a queue, and list, purge, cancel or move what one has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, print_rows, view_document
from leasequeue.cli.options import number_option
from leasequeue.cli.server import AsJson, Code, fail, queue_command, report_changes

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@queue_command
async def groups(  # noqa: PLR0913 - each is an option of the command
    queue: AsyncWorkQueue,
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
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Look at all leased and scheduled items for groups.")
    ] = False,
    count: Annotated[int, number_option("How many to list.", minimum=1, maximum=1000)] = 100,
    after: Annotated[str | None, typer.Option(help="The group after which to begin.")] = None,
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
    if group is None:
        found = await queue.groups.list(after=after, count=count, everywhere=everywhere)
        print_rows([{"group": name, **numbers._asdict()} for name, numbers in found.items()], as_json=as_json)
        return Code.DONE
    if given:
        if purge:
            done, word = await queue.groups.purge(group), "purged"
        elif cancel:
            done, word = await queue.groups.cancel(group), "cancelled"
        else:
            done, word = len(await queue.groups.move(group, str(to))), "moved"
        return report_changes(queue.name, word, done, [], as_json=as_json)
    views = await queue.groups.find(group, count=count, data=as_json)
    if not views:
        return fail(f"{queue.name!r} has no unfinished item of the group {group!r}", Code.MISSED)
    if as_json:
        for view in views:
            print_json({"queue": queue.name, **view_document(view)})
        return Code.DONE
    print_rows([{"id": one.id, "state": one.state} for one in views], as_json=False)
    return Code.DONE
