"""`leasequeue upgrade`: raise the format of queues, say what holds them back, or lower it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from leasequeue.cli.formatting import print_json, print_line
from leasequeue.cli.options import number_option
from leasequeue.cli.server import DEFAULT_URL, AsJson, Code, QueueNames, Url, command, note, open_queue
from leasequeue.keys import FORMAT
from leasequeue.queue import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.formats import QueueFormat


@command
async def upgrade(
    queues: QueueNames,
    *,
    to: Annotated[
        int | None,
        number_option("The format; by default the newest that this version knows.", minimum=1),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> Code:
    """Raise the format of queues, and say what holds them back.

    That is a registered worker that does not know it: then none of the queues is raised. Older
    programs are refused from then on. With --to an older format, lower it: older programs are
    permitted again once nothing is left of what was written before.
    """
    wanted = FORMAT if to is None else to
    if wanted > FORMAT:
        raise typer.BadParameter(f"this version knows the formats 1 to {FORMAT}", param_hint="--to")
    async with AsyncExitStack() as opened:
        all_ = [await opened.enter_async_context(open_queue(url, name)) for name in queues]
        done = [await formats.upgrade(queue, wanted, check=True) for queue in all_]
        if not check and not any(one.held_by for one in done):
            done = [await formats.upgrade(queue, wanted) for queue in all_]
    code = Code.DONE
    for name, found in zip(queues, done, strict=True):
        held_by = [f"{one.name} (leasequeue {one.versions.get('leasequeue', '?')})" for one in found.held_by]
        before, now = _text(found.before), _text(found.now)
        if as_json:
            facts = {"queue": name, "before": before, "format": now, "wanted": wanted}
            print_json({**facts, "held_by": held_by, "left": found.left})
        else:
            print_line(f"{name}: format {now}" + (f", before {before}" if now != before else ""))
        if held_by:
            note(f"{name}: these workers do not know format {wanted}: {', '.join(held_by)}")
        if found.left:
            note(
                f"{name}: programs that only know older formats are refused until these keys are gone, which "
                f"may be in the newer one, and the command is called again: {', '.join(found.left)}"
            )
        if held_by or found.left or {*found.now} != {formats.target(wanted)}:
            code = Code.MISSED
    return code


def _text(found: Sequence[QueueFormat]) -> str:
    """Return the formats of all shards, and which one a program must know if that is another."""
    texts = (f"{one.format}" + f" (for {one.floor})" * (one.floor != one.format) for one in found)
    return ", ".join(sorted({*texts}))
