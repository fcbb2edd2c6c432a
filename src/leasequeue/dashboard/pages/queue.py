"""One queue: what is leased and by whom, next, scheduled, dead; its limits, groups and schedules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasequeue.alive import Fleet
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.view import Page, checked_query
from leasequeue.errors import InvalidArgument
from leasequeue.errors.describing import NAME_LENGTH, plain

if TYPE_CHECKING:
    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue
    from leasequeue.queue.history import Tier

#: How many items, dead letters, schedules and groups the page shows of each kind.
ROWS = 20
#: How many cells of its history are drawn.
CELLS: dict[str, int] = {"minute": 60, "hour": 48, "day": 30}
#: How many items are moved by one request: more would keep the viewer waiting.
MAX_MOVED = 10_000


async def read(view: View) -> dict[str, Any]:
    """Read the first ones of each list."""
    name = view.text("queue")
    history = await view.history(name)
    queue = view.queue(name)
    by: Tier = checked_query(view.request.query_params, "by", (*CELLS,))  # type: ignore[assignment] # one of them
    rollup = await view.shared(("rollup", name, by), lambda: queue.history(by, count=CELLS[by]))
    return {
        "name": name,
        "history": history,
        "by": by,
        "rollup": rollup,
        **await view.shared(("queue", name), lambda: _read(queue)),
    }


async def _read(queue: AsyncWorkQueue) -> dict[str, Any]:
    leased, following, scheduled, dead = await asyncio.gather(
        queue.inspect("leased", count=ROWS, data=False),
        queue.peek(ROWS, data=False),
        queue.inspect("scheduled", count=ROWS, data=False),
        queue.dead_letters.list(count=ROWS, data=False),
    )
    limits, schedules, workers = await asyncio.gather(
        queue.limits.get(),
        queue.schedules.list(data=False),
        Fleet(queue).workers({queue.name: {one.holder for one in leased if one.holder}}),
    )
    sessions = {session: one for one in workers for session in one.sessions.values()}
    groups = sorted({*limits.groups, *limits.paused_groups})
    return {
        "leased": [(one, sessions.get(one.holder or "")) for one in leased],
        "handlers": {run.item_id: run.handler for one in workers for run in one.running},
        "following": following,
        "scheduled": scheduled,
        "dead": dead,
        "limits": limits,
        "groups": [(one, limits.groups.get(one), limits.paused_groups.get(one)) for one in groups[:ROWS]],
        "more_groups": max(0, len(groups) - ROWS),
        "schedules": schedules[:ROWS],
        "more_schedules": max(0, len(schedules) - ROWS),
    }


async def _pause(view: View) -> None:
    reason = view.form.get("reason", [""])[0].strip()
    by = f"by {view.rights.who}" if view.rights.who else ""
    await view.queue(view.text("queue")).pause(reason=" ".join(filter(None, (reason, by))))


async def _resume(view: View) -> None:
    await view.queue(view.text("queue")).resume()


async def _purge(view: View) -> int:
    queue = view.queue(view.text("queue"))
    return await queue.admin.purge(scheduled="scheduled" in view.form, dead="dead" in view.form)


async def _moved(view: View) -> tuple[AsyncWorkQueue, AsyncWorkQueue, int]:
    """Return from where to where is moved, and how many."""
    queue, other = view.queue(view.text("queue")), view.queue(view.field("to"))
    wanted = view.field("number") or f"{MAX_MOVED}"
    if not (wanted.isascii() and wanted.isdigit() and 0 < len(wanted) < 16 and int(wanted)):
        raise InvalidArgument("number", wanted, "a whole number from 1 on, or nothing: all that wait")
    return queue, other, min(int(wanted), MAX_MOVED)


async def _move(view: View) -> int:
    queue, other, number = await _moved(view)
    moved = await queue.admin.move(other, count=number)
    await view.sampler.sample(other.name)
    return len(moved)


async def _ask_move(view: View) -> Question:
    queue, other, number = await _moved(view)
    waiting = (await queue.counts()).waiting
    number = min(number, waiting)
    return Question(
        text=f"Move the first {number:,} of {waiting:,} items that wait to the end of the queue "
        f"{plain(other.name, NAME_LENGTH)}? Items whose id it has stay. Callers that wait for results "
        "wait in vain.",
        button=f"Move {number:,}",
    )


async def _keep_history(view: View) -> None:
    await view.queue(view.text("queue")).history.keep()


async def _stop_history(view: View) -> None:
    await view.queue(view.text("queue")).history.stop()


async def _ask_purge(view: View) -> Question:
    counts = await view.queue(view.text("queue")).counts()
    parts = [f"{counts.waiting:,} waiting items"]
    parts += [f"{counts.scheduled:,} scheduled items"] if "scheduled" in view.form else []
    parts += [f"{counts.dead:,} dead letters"] if "dead" in view.form else []
    total = (
        counts.waiting + counts.scheduled * ("scheduled" in view.form) + counts.dead * ("dead" in view.form)
    )
    return Question(
        text=f"Remove {', '.join(parts)} of the queue, with their data? Items under lease stay.",
        button=f"Remove {total:,}",
    )


PAGE = Page(path="/queues/{queue}", template="queue.html", read=read)
ACTIONS = (
    Action(
        name="pause",
        path="/queues/{queue}/pause",
        call=_pause,
        done="The queue is paused: nothing is leased. What runs keeps running.",
    ),
    Action(
        name="resume",
        path="/queues/{queue}/resume",
        call=_resume,
        done="The queue is resumed: its items are leased again.",
    ),
    Action(
        name="purge",
        path="/queues/{queue}/purge",
        call=_purge,
        done="{} items were removed.",
        ask=_ask_purge,
    ),
    Action(
        name="move",
        path="/queues/{queue}/move",
        call=_move,
        ask=_ask_move,
        named=("to",),
        done="{} items were moved.",
    ),
    Action(
        name="history",
        path="/queues/{queue}/keep-history",
        call=_keep_history,
        done="The queue keeps its history from now on, in at most 450 kB.",
    ),
    Action(
        name="history",
        path="/queues/{queue}/stop-history",
        call=_stop_history,
        done="The queue keeps its history no more. What it has kept is shown until it expires.",
    ),
)
