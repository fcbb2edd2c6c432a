"""One queue: what is leased and by whom, next, scheduled, dead; its limits, groups and schedules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasequeue.alive import Fleet
from leasequeue.dashboard.action import Action, Question
from leasequeue.dashboard.view import Page

if TYPE_CHECKING:
    from leasequeue.dashboard.view import View
    from leasequeue.queue import AsyncWorkQueue

#: How many items, dead letters, schedules and groups the page shows of each kind.
ROWS = 20


async def read(view: View) -> dict[str, Any]:
    """Read the first ones of each list."""
    name = view.text("queue")
    history = await view.history(name)
    queue = view.queue(name)
    return {"name": name, "history": history, **await view.shared(("queue", name), lambda: _read(queue))}


async def _read(queue: AsyncWorkQueue) -> dict[str, Any]:
    leased, following, scheduled, dead = await asyncio.gather(
        queue.inspect("leased", count=ROWS, data=False),
        queue.peek(ROWS, data=False),
        queue.inspect("scheduled", count=ROWS, data=False),
        queue.dead_letters.list(count=ROWS, data=False),
    )
    limits, schedules, workers = await asyncio.gather(
        queue.limits.get(), queue.schedules.list(data=False), Fleet(queue).workers()
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
        "workers": workers,
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
        done="The queue is paused: nothing is leased. What runs goes on.",
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
)
