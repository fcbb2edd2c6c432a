"""`leasequeue limits`, `leasequeue pause`, `leasequeue resume`: how many items of a queue may be leased."""

from __future__ import annotations

import functools
from datetime import datetime  # noqa: TC003 - typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import print_json, print_line, print_rows
from leasequeue.cli.options import choice_option, duration_option, format_time, number_option, time_option
from leasequeue.cli.server import AsJson, Code, fail, note, queue_command
from leasequeue.durations import duration_text
from leasequeue.queue.limits import EACH_GROUP, MAX_LIMIT, Limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue.limits import HoldLimit, Pause, QueueLimits

ALL = "all"
Group = Annotated[str | None, typer.Option(metavar="GROUP", help="A group; by default the whole queue.")]

LimitedGroup = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP",
        help="A group, or * for each one without separate limits; by default the whole queue.",
    ),
]


@functools.partial(queue_command, creates=True)
async def limits(  # noqa: PLR0913 - each is an option of the command
    queue: AsyncWorkQueue,
    *,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="How many may be leased in a time: 10/s, 100/m, 5000/h, 1/5s."),
    ] = None,
    burst: Annotated[
        int | None,
        number_option(
            "How many may be leased at once after a quiet time; 1 by default.",
            minimum=1,
            maximum=MAX_LIMIT,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        number_option("How many may be under lease at the same time.", minimum=1, maximum=MAX_LIMIT),
    ] = None,
    group: LimitedGroup = None,
    ageing: Annotated[
        float | None, duration_option("After this time without a lease, a level counts as one higher.")
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Share --rate and --concurrency with all queues that are given this NAME.",
        ),
    ] = None,
    hold: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Instead: the limits of a NAME that handlers hold a place of."),
    ] = None,
    remove: Annotated[
        str | None,
        choice_option("Remove this limit.", ("rate", "concurrency", "ageing", "shared", ALL)),
    ] = None,
    as_json: AsJson = False,
) -> Code:
    """Show, set or remove limits of a queue, its groups, and what its handlers hold.

    Without options it shows limits and pauses. `leasequeue pause` and `leasequeue resume` change pauses.
    """
    of_rate = {"rate": rate, "burst": burst, "shared": shared}
    given: dict[str, Any] = {**of_rate, "concurrency": concurrency, "ageing": ageing}
    changes = any(value is not None for value in given.values())
    if remove and changes:
        raise typer.BadParameter("cannot be combined with a limit to set", param_hint="--remove")
    if hold is not None and remove and (remove != ALL or group):
        raise typer.BadParameter(f"with --hold, remove {ALL}, and without --group", param_hint="--remove")
    if changes:
        await queue.limits.set(**given, group=group, hold=hold)
    elif remove and (missing := await _remove(queue, remove, group, hold)):
        return fail(missing, Code.MISSED)
    found = _rows(await queue.limits.get(), await queue.limits.holds())
    shown = [row for row in found if changes or remove or _is_asked(row, group, hold)]
    print_rows([{"queue": queue.name, **row} for row in shown], as_json=as_json)
    if not shown:
        note(f"{queue.name} has no limits")
    return Code.DONE


async def _remove(queue: AsyncWorkQueue, limit: str, group: str | None, hold: str | None) -> str | None:
    """Remove a limit, or all; say what there was not."""
    names: Any = () if limit == ALL else (limit,)
    limits = queue.limits
    removing = limits.remove(*names, group=group) if hold is None else limits.remove_hold(hold)
    if await removing:
        return None
    whose = _what(queue.name, group) if hold is None else f"the hold {hold!r} of {queue.name!r}"
    return f"{whose} has no {'limit' if limit == ALL else f'limit {limit!r}'}"


@functools.partial(queue_command, creates=True)
async def pause(
    queue: AsyncWorkQueue,
    *,
    group: Group = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; `leasequeue limits` shows it.")] = "",
    until: Annotated[
        datetime | None,
        time_option("When the pause ends: 2030-01-31T09:00Z; by default when it is resumed."),
    ] = None,
    for_: Annotated[
        float | None, duration_option("Instead: how long the pause lasts: 30s, 5m, 2d.", "--for")
    ] = None,
    as_json: AsJson = False,
) -> Code:
    """Pause a queue or a group.

    No item of it is leased until it is resumed or, with --until or --for, until the time has come. What
    is leased continues, and items can be added.
    """
    pause = await queue.pause(reason=reason, until=until, for_=for_, group=group)
    if as_json:
        print_json({"queue": queue.name, "group": group, **_paused(pause)})
    else:
        end = format_time(pause.until) if pause.until else "you call `leasequeue resume`"
        lasts = "" if for_ is None else f" for {duration_text(for_)}"
        print_line(f"{_what(queue.name, group)} is paused{lasts}: its items wait until {end}")
    return Code.DONE


@queue_command
async def resume(queue: AsyncWorkQueue, *, group: Group = None, as_json: AsJson = False) -> Code:
    """End the pause of a queue or a group."""
    resumed = await queue.resume(group=group)
    if as_json:
        print_json({"queue": queue.name, "group": group, "resumed": resumed})
        return Code.DONE if resumed else Code.MISSED
    if not resumed:
        return fail(f"{_what(queue.name, group)} was not paused", Code.MISSED)
    print_line(f"{_what(queue.name, group)} is resumed: its items are leased again")
    return Code.DONE


def _what(name: str, group: str | None) -> str:
    return repr(name) if group is None else f"the group {group!r} of {name!r}"


def _is_asked(row: dict[str, Any], group: str | None, hold: str | None) -> bool:
    if hold is not None:
        return bool(row["of"] == f"hold {hold}")
    return group is None or row["group"] == group


def _rows(found: QueueLimits, holds: dict[str, HoldLimit]) -> Iterator[dict[str, Any]]:
    none = Limit()
    if found.queue != none or found.paused or found.ageing is not None:
        yield _row("queue", None, found.queue, found.paused) | {"ageing": found.ageing}
    if found.shared is not None:
        used = found.shared_leased if found.shared_limit.concurrency else None
        yield _row(f"shared {found.shared}", None, found.shared_limit, used=used)
    if found.each_group != none:
        yield _row("each group", EACH_GROUP, found.each_group)
    for group in sorted({*found.groups, *found.paused_groups}):
        limit = found.groups.get(group, none)
        used = found.leased.get(group, 0) if limit.concurrency else None
        yield _row("group", group, limit, found.paused_groups.get(group), used)
    for name, held in holds.items():
        yield _row(f"hold {name}", None, held, used=held.held) | {"waiting": held.waiting}


def _row(
    of: str, group: str | None, limit: Limit, pause: Pause | None = None, used: int | None = None
) -> dict[str, Any]:
    return {
        "of": of,
        "group": group,
        "rate": limit.rate,
        "burst": limit.burst,
        "concurrency": limit.concurrency,
        "used": used,
        "waiting": None,
        "ageing": None,
        **_paused(pause),
    }


def _paused(pause: Pause | None) -> dict[str, Any]:
    return {
        "paused": format_time(pause.since) if pause else None,
        "until": format_time(pause.until) if pause else None,
        "reason": pause.reason if pause else None,
    }
