"""`leasequeue tags`: list the tags of a queue, and find, cancel or requeue what has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, print_rows, view_document
from leasequeue.cli.options import number_option
from leasequeue.cli.server import AsJson, Code, fail, note, queue_command, report_changes
from leasequeue.states import DEAD

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@queue_command
async def tags(
    queue: AsyncWorkQueue,
    tag: Annotated[
        str | None, typer.Argument(metavar="TAG", help="A tag; by default all are listed.")
    ] = None,
    *,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the unfinished items with it.")] = False,
    requeue: Annotated[bool, typer.Option("--requeue", help="Requeue the dead letters with it.")] = False,
    count: Annotated[int, number_option("How many to list.", minimum=1, maximum=1000)] = 100,
    after: Annotated[
        str | None, typer.Option(help="The tag, or with TAG the id, after which to begin.")
    ] = None,
    as_json: AsJson = False,
) -> Code:
    """List the tags of items; find, cancel or requeue what has one.

    The exit code is 1 if no item and no dead letter has the tag. With --json each tag, or each
    item, is a line.
    """
    if tag is None and (cancel or requeue):
        raise typer.BadParameter("goes with a TAG", param_hint="--cancel" if cancel else "--requeue")
    if cancel and requeue:
        raise typer.BadParameter("cannot be combined with --requeue", param_hint="--cancel")
    if tag is None:
        found = await queue.tags.list(after=after, count=count)
        print_rows([{"tag": name, "items": number} for name, number in found.items()], as_json=as_json)
        return Code.DONE
    has_none = f"{queue.name!r} has no item and no dead letter with the tag {tag!r}"
    if cancel or requeue:
        done = await (queue.tags.cancel(tag) if cancel else queue.tags.requeue(tag))
        missed = [] if done or await queue.tags.count(tag) else [(tag, has_none)]
        word = "cancelled" if cancel else "requeued"
        return report_changes(queue.name, word, done, missed, as_json=as_json)
    views = await queue.tags.find(tag, after=after, count=count, data=as_json)
    if not views:
        return fail(has_none, Code.MISSED)
    if as_json:
        for view in views:
            print_json({"queue": queue.name, "state": DEAD, **view_document(view)})
        return Code.DONE
    print_rows([{"id": one.id, "state": getattr(one, "state", DEAD)} for one in views], as_json=False)
    if (total := await queue.tags.count(tag)) > len(views):
        note(f"{total:,} have the tag: see --count and --after")
    return Code.DONE
