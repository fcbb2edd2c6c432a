"""`leasequeue show`, `leasequeue peek`: show the items of a queue, or one item in full."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasequeue.cli.formatting import (
    encoded,
    preview,
    print_block,
    print_facts,
    print_json,
    print_table,
    readable,
    shortened,
    view_document,
)
from leasequeue.cli.options import choice_option, format_time, number_option
from leasequeue.cli.server import AsJson, Code, fail, note, queue_command
from leasequeue.item.codec import dump_compact
from leasequeue.queue.run_logs import runs_of
from leasequeue.states import ITEM_STATES, State
from leasequeue.tasks.wire import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue import AsyncWorkQueue
    from leasequeue.queue import Counts, DeadLetter, ItemView


#: What is said to `--state dead`.
DEAD_ELSEWHERE = "`leasequeue dead ls QUEUE` lists dead letters"


@queue_command
async def show(
    queue: AsyncWorkQueue,
    item_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Show this item in full; by default the first items of each state."
        ),
    ] = None,
    *,
    state: Annotated[
        State | None,
        choice_option("Show only items in this state.", ITEM_STATES, elsewhere={"dead": DEAD_ELSEWHERE}),
    ] = None,
    count: Annotated[int, number_option("How many items of each state.", minimum=1, maximum=1000)] = 20,
    as_json: AsJson = False,
) -> Code:
    """Show the items of a queue, or one of them in full.

    Without an ID: the first items of each state, by their place in the queue, the end of
    their lease or their due time. With --json each item is a line.

    With an ID: the item with its last error and its data, the dead letter and the result with that id, and
    the logs of its runs, each record with its attempt, if their task keeps them.
    The exit code is 1 if there are none.
    """
    if item_id is not None:
        return await _show_one(queue, item_id, as_json=as_json)
    states = [one for one in ITEM_STATES if state in (one, None)]
    counts = await queue.counts()
    views = [view for one in states for view in await queue.inspect(one, count=count)]
    print_views(queue.name, views, as_json=as_json)
    if not as_json:
        _note_others(queue.name, counts, states, len(views))
        await _note_pause(queue, {view.group for view in views if view.state == "waiting"})
    return Code.DONE


async def _note_pause(queue: AsyncWorkQueue, groups: set[str | None]) -> None:
    """Say whether items wait because the queue or their group is paused."""
    if not groups:
        return
    limits = await queue.limits.get()
    for group in (None, *sorted(one for one in groups if one is not None)):
        pause = limits.paused if group is None else limits.paused_groups.get(group)
        if pause is not None:
            what = queue.name if group is None else f"the group {group} of {queue.name}"
            why = f" ({pause.reason})" if pause.reason else ""
            note(f"{what} is paused{why}: leasequeue limits {queue.name} shows until when")


def print_views(name: str, views: Sequence[ItemView], *, as_json: bool) -> None:
    """Print items as a table, or as a line of JSON each."""
    if as_json:
        for view in views:
            print_json({"queue": name, **view_document(view)})
    elif views:
        print_table(("id", "state", "bytes", "attempt", "until", "holder", "data"), map(_row, views))


def _row(view: ItemView) -> list[Any]:
    size = "gone" if view.size is None else view.size
    return [view.id, view.state, size, view.attempt, format_time(view.due), _holder(view), preview(view.data)]


def _holder(view: ItemView) -> str | None:
    """Return the session that has leased an item. The mark of a scheduled item is not a session."""
    return None if view.state == "scheduled" else view.holder


def _note_others(name: str, counts: Counts, states: Sequence[State], shown: int) -> None:
    total = sum(getattr(counts, state) for state in states)
    if total > shown:
        note(f"{total - shown:,} more: see --count")
    if not total and not shown:
        note(f"{name} has no {states[0] if len(states) == 1 else 'unfinished'} items")
    if counts.dead:
        note(f"{counts.dead:,} dead letter{'s' * (counts.dead != 1)}: leasequeue dead ls {name}")


async def _show_one(queue: AsyncWorkQueue, item_id: str, *, as_json: bool) -> Code:
    view = await queue.find(item_id)
    letter = await queue.dead_letters.get(item_id)
    result = await queue.results._shown(item_id)  # noqa: SLF001 - it may be unreadable
    logs = await queue.results.logs(item_id)
    if view is None and letter is None and result is None and not logs:
        return fail(f"{queue.name!r} has no item, dead letter or result with the id {item_id!r}", Code.MISSED)
    if as_json:
        print_json(
            {
                "queue": queue.name,
                "id": item_id,
                "item": view_document(view) if view else None,
                "dead_letter": view_document(letter) if letter else None,
                **encoded("result", result),
                "logs": [{**dataclasses.asdict(one), "at": format_time(one.at)} for one in logs],
            }
        )
        return Code.DONE
    if view:
        _print_item(view)
        if view.state == "waiting":
            await _note_pause(queue, {view.group})
    if letter:
        print_dead_letter(letter)
    if result is not None:
        if not view and not letter:
            print_facts({"id": item_id, "state": "completed"})
        print_block("result", readable(result))
    for attempt, records in runs_of(logs):
        print_block(f"logs of attempt {attempt}", "\n".join(map(str, records)))
    return Code.DONE


def _print_item(view: ItemView) -> None:
    until = {"leased": "leased until", "scheduled": "due"}.get(view.state, "until")
    print_facts(
        {
            "id": view.id,
            "task": task_of(view.data or b""),
            "state": view.state,
            "attempt": view.attempt,
            until: format_time(view.due),
            "holder": _holder(view),
            "token": view.token,
            "last leased": None if view.age is None else f"{view.age:,.1f} s ago",
            "priority": view.priority or None,
            "group": view.group,
            "expires": format_time(view.expires),
            "progress": None if view.progress is None else shortened(dump_compact(view.progress)),
            "bytes": view.size,
        }
    )
    if view.error:
        print_block("last error", view.error)
    if view.data:
        print_block("data", readable(view.data))


def print_dead_letter(letter: DeadLetter) -> None:
    """Print a dead letter in full."""
    print_facts(
        {
            "id": letter.id,
            "task": task_of(letter.data or b""),
            "state": "dead",
            "died": format_time(letter.died_at),
            "attempt": letter.attempt,
            "token": letter.token or None,
            "bytes": letter.size,
        }
    )
    print_block("error", letter.error)
    if letter.data:
        print_block("data", readable(letter.data))


@queue_command
async def peek(
    queue: AsyncWorkQueue,
    *,
    count: Annotated[int, number_option("How many items.", minimum=1, maximum=1000)] = 1,
    as_json: AsJson = False,
) -> Code:
    """Show the items that are leased next, without leasing them.

    With --json each item is a line. The exit code is 1 if no item waits.
    """
    views = await queue.peek(count)
    print_views(queue.name, views, as_json=as_json)
    if not views:
        note(f"{queue.name} has no waiting items")
    return Code.DONE if views else Code.MISSED
