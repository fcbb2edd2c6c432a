"""Schedules of all queues: when each is due next, and whether anybody ticks it."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from leasequeue.codecs import codec_in
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.view import NotFound, Page, key_of, read_segment, rows_after
from leasequeue.errors import InvalidArgument
from leasequeue.errors.describing import NAME_LENGTH, plain
from leasequeue.item import Item
from leasequeue.queue.cron import stamp

if TYPE_CHECKING:
    from leasequeue.dashboard.view import View

#: How many schedules a page has; of how many queues they are read together.
ROWS, QUEUES = 50, 200
#: How late a tick is that stands out (s): a worker ticks within seconds.
OVERDUE_SECONDS = 60.0


async def read(view: View) -> dict[str, Any]:
    """Read those of a slice of the queues, the next due first."""
    await view.sampler.look()
    view.sampler.check()
    query = view.request.query_params
    queues = view.board.queues.by_name()
    names = sorted(queues)
    start = bisect_left(names, query.get("from", ""))
    chosen = names[start : start + QUEUES]
    answers = await view.each(
        [queues[name] for name in chosen], lambda queue: queue.schedules.list(data=False), "schedules"
    )
    found = [(queue.name, one) for queue, schedules in answers for one in schedules]
    found.sort(key=lambda row: row[1].next_due.timestamp() if row[1].next_due else math.inf)
    wanted = query.get("find", "").strip().lower()
    matching = [row for row in found if any(wanted in text.lower() for text in (row[0], row[1].name))]
    seen = view.sampler.histories
    return {
        "part": rows_after(matching, lambda row: key_of(row[0], row[1].name), query.get("after", ""), ROWS),
        "stats": {name: seen[name].stats for name in chosen if name in seen},
        "overdue_at": time.time() - OVERDUE_SECONDS,
        "find": query.get("find", ""),
        "total": len(found),
        "matching": len(matching),
        "slice": (chosen[0], chosen[-1]) if len(chosen) < len(names) and chosen else None,
        "is_first_slice": start == 0,
        "next_slice": names[start + QUEUES] if start + QUEUES < len(names) else None,
    }


async def _run(view: View) -> int:
    """Add the item of a schedule now, as `leasequeue schedule run` does."""
    queue, name = view.queue(view.text("queue")), read_segment(view.field("schedule"))
    found = next((one for one in await queue.schedules.list() if one.name == name), None)
    if found is None:
        raise NotFound(f"the queue has no schedule {name!r}")
    if found.data is None:
        raise InvalidArgument("schedule", name, f"one with less than its {found.size:,} bytes of data")
    if codec := codec_in(found.data):  # adding it would encode it twice
        allowed = f"one whose data can be decoded here; it is encoded by {codec}, which the dashboard lacks"
        raise InvalidArgument("schedule", name, allowed)
    return int(await queue.add_item(Item(found.data, f"{name}@{stamp(round(time.time() * 1000))}")))


async def _remove(view: View) -> int:
    return int(await view.queue(view.text("queue")).schedules.remove(read_segment(view.field("schedule"))))


async def _ask_remove(view: View) -> Question:
    name = plain(read_segment(view.field("schedule")), NAME_LENGTH)
    return Question(
        text=f"Remove 1 schedule, {name}? Items that it has added stay. A program that declares it creates "
        "it again: a running worker within a minute, else the next deploy.",
        button="Remove it",
    )


PAGE = Page(path="/schedules", template="schedules.html", read=read, menu="Schedules")
ACTIONS = (
    Action(
        name="run",
        path="/queues/{queue}/run-schedule",
        call=_run,
        named=("schedule",),
        done="{} item was added for the schedule. Its next time stays as it is.",
    ),
    Action(
        name="unschedule",
        path="/queues/{queue}/remove-schedule",
        call=_remove,
        ask=_ask_remove,
        named=("schedule",),
        done="{} schedules were removed. A program that declares one creates it again.",
    ),
)
