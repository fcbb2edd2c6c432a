"""`leasehold show`: show the items of a queue, or one item in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from leasehold.cli.formatting import (
    ITEM_TITLES,
    dead_letter_document,
    encoded,
    holder,
    item_document,
    item_row,
    print_block,
    print_facts,
    print_json,
    print_table,
    readable,
)
from leasehold.cli.server import (
    DEFAULT_URL,
    AsJson,
    Code,
    QueueName,
    Url,
    fail,
    note,
    open_queue,
    run_command,
)
from leasehold.cli.times import format_time
from leasehold.states import ITEM_STATES, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold import Counts, DeadLetter, ItemView


def show(
    queue: QueueName,
    item_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Show this item in full; by default the first items of each state."
        ),
    ] = None,
    *,
    state: Annotated[State | None, typer.Option(help="Show only items in this state.")] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many items of each state.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show the items of a queue, or one of them in full.

    Without an ID: the first items of each state, by their place in the queue, the end of
    their lease or their due time. With --json each item is a line.

    With an ID: the item with its data, and the dead letter and the result with that id.
    The exit code is 1 if there are none.
    """
    if item_id is None:
        run_command(_show_items(url, queue, [state] if state else [*ITEM_STATES], count, as_json=as_json))
    run_command(_show_one(url, queue, item_id or "", as_json=as_json))


async def _show_items(url: str, name: str, states: Sequence[State], count: int, *, as_json: bool) -> Code:
    views: list[ItemView] = []
    async with open_queue(url, name) as queue:
        counts = await queue.counts()
        for state in states:
            views += await queue.inspect(state, count=count)
    if as_json:
        for view in views:
            print_json({"queue": name, **item_document(view)})
        return Code.DONE
    if views:
        print_table(ITEM_TITLES, map(item_row, views))
    _note_others(name, counts, states, len(views))
    return Code.DONE


def _note_others(name: str, counts: Counts, states: Sequence[State], shown: int) -> None:
    total = sum(getattr(counts, state) for state in states)
    if total > shown:
        note(f"{total - shown:,} more: see --count")
    if not total and not shown:
        note(f"{name} has no {states[0] if len(states) == 1 else 'unfinished'} items")
    if counts.dead:
        note(f"{counts.dead:,} dead letter{'s' * (counts.dead != 1)}: leasehold dead ls {name}")


async def _show_one(url: str, name: str, item_id: str, *, as_json: bool) -> Code:
    async with open_queue(url, name) as queue:
        view = await queue.find(item_id)
        letter = await queue.dead_letters.get(item_id)
        result = await queue.results.get(item_id)
    if view is None and letter is None and result is None:
        return fail(f"{name!r} has no item, dead letter or result with the id {item_id!r}", Code.MISSED)
    if as_json:
        print_json(
            {
                "queue": name,
                "id": item_id,
                "item": item_document(view) if view else None,
                "dead_letter": dead_letter_document(letter) if letter else None,
                **encoded("result", result),
            }
        )
        return Code.DONE
    if view:
        _print_item(view)
    if letter:
        print_dead_letter(letter)
    if result is not None:
        if not view and not letter:
            print_facts({"id": item_id, "state": "completed"})
        print_block("result", readable(result))
    return Code.DONE


def _print_item(view: ItemView) -> None:
    until = {"leased": "leased until", "scheduled": "due"}.get(view.state, "until")
    print_facts(
        {
            "id": view.id,
            "state": view.state,
            "attempt": view.attempt,
            until: format_time(view.due),
            "holder": holder(view),
            "token": view.token,
            "last leased": None if view.age is None else f"{view.age:,.1f} s ago",
            "bytes": view.size,
        }
    )
    if view.data:
        print_block("data", readable(view.data))


def print_dead_letter(letter: DeadLetter) -> None:
    """Print a dead letter in full."""
    print_facts(
        {
            "id": letter.id,
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
