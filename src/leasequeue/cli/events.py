"""`leasequeue events`: read the events of a queue, and switch them on and off."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import encoded, print_json, print_line, readable
from leasequeue.cli.options import format_time
from leasequeue.cli.server import AsJson, Code, fail, note, queue_command, until_signal
from leasequeue.errors import NoEventsKept, NoEventsPublished
from leasequeue.errors.describing import TEXT_LENGTH, plain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue import Event

#: What each line of text begins with.
_FIRST = ("number", "what", "id", "at")
#: The fields that are times.
_TIMES = ("at", "due", "until")


@functools.partial(queue_command, unknown=True)
async def events(  # noqa: PLR0913 - each is an option of the command
    queue: AsyncWorkQueue,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C or SIGTERM.")] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Read what is published from now on, until Ctrl-C or SIGTERM."),
    ] = False,
    since: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Begin after the event with this number.")
    ] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", metavar="KIND", help="Only these events; may be repeated.")
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="ID", help="Only events of this item or worker; may be repeated."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Instead: keep about so many events from now on.")
    ] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Instead: publish events from now on.")] = False,
    stop: Annotated[
        bool,
        typer.Option("--stop", help="Instead: keep and publish none, and drop those that are kept."),
    ] = False,
    as_json: AsJson = False,
) -> Code:
    """Print the events of a queue; switch them on and off.

    Prints those that are kept or, with --live, those that are published. They are
    off by default: switch them on with --keep or --publish, for all processes.
    With --json each event is a line.
    """
    if keep is not None or publish or stop:
        if sum((keep is not None, publish, stop)) > 1 or follow or live:
            raise typer.BadParameter("use one of --keep, --publish and --stop, and alone")
        return await _switch(queue, keep, stop=stop)
    found = queue.events(since, follow=follow or live, live=live, ids=ids or None, kinds=kinds or None)
    if not (follow or live):
        return await _print(queue.name, found, as_json=as_json)
    code = await until_signal(_print(queue.name, found, as_json=as_json))
    if code is None:
        note("stopped")
    return code or Code.DONE


async def _switch(queue: AsyncWorkQueue, keep: int | None, *, stop: bool) -> Code:
    if stop:
        await queue.events.stop()
        note(f"{queue.name} neither keeps nor publishes events now")
    elif keep is not None:
        await queue.events.keep(count=keep)
        note(f"{queue.name} keeps about {keep:,} events from now on")
    else:
        await queue.events.publish()
        note(f"{queue.name} publishes events from now on")
    return Code.DONE


async def _print(queue: str, found: AsyncIterator[Event], *, as_json: bool) -> Code:
    """Print events, or say how to switch them on."""
    try:
        async for event in found:
            print_json(_document(event)) if as_json else print_line(_line(event))
    except NoEventsKept:
        return fail(
            f"{queue} keeps no events: `leasequeue events {queue} --keep 100000` keeps them", Code.USAGE
        )
    except NoEventsPublished:
        return fail(f"{queue} publishes no events: `leasequeue events {queue} --publish` does", Code.USAGE)
    return Code.DONE


def _given(event: Event) -> dict[str, Any]:
    # The cursor is the number: a shard is a queue here.
    values = ((field.name, getattr(event, field.name)) for field in fields(event) if field.name != "cursor")
    return {
        name: format_time(value) if name in _TIMES else value
        for name, value in values
        if value is not None and value is not False
    }


def _document(event: Event) -> dict[str, Any]:
    document = _given(event)
    result = document.pop("result", None)
    return document if result is None else document | encoded("result", result)


def _line(event: Event) -> str:
    given = _given(event)
    parts = [given["at"], f"{event.what:<13}", plain(event.id, TEXT_LENGTH)]
    for name in (name for name in given if name not in _FIRST):
        value = given[name]
        text = readable(value) if isinstance(value, bytes) else str(value)
        parts.append(f"{name}={plain(text, TEXT_LENGTH)}")
    return "  ".join(parts)
